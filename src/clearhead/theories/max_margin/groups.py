"""Max margin at one layer: samples over groups of inputs, and predictions that depend on all groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from clearhead.errors import InputError
from clearhead.numerics.memory import run_within_memory
from clearhead.numerics.moments import Array
from clearhead.theories.accumulator import Accumulator
from clearhead.theories.example import Example, Random
from clearhead.theories.max_margin.on_heads.choices import InputChoices
from clearhead.theories.max_margin.on_heads.measurement import Group, MaxMarginOnHeads
from clearhead.theories.max_margin.on_heads.predictions import KeptGroup
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.sums import Sums
from clearhead.theories.theory import Claim, Theory

OF_GROUPS = 2**31
"""Separates the random numbers of groups from those of inputs, whose numbers are smaller."""


class Groups(Accumulator):
    """Sums over groups of consecutive inputs, which are samples. Of the first groups, what predictions need is kept.

    A part of an audit makes the same groups as the whole: the number of an input decides. A group counts in the part
    with its last input, which therefore gets inputs before its own: those of the same group and of the one before. A
    group that is not complete is not saved.

    method: prepares inputs, and makes predictions of the groups that it keeps
    claims: those of the layer that are wanted; groups: how many were measured; kept: by the number of the group
    """

    def __init__(self, method: MaxMarginOnHeads, theory: Theory, layer: int, name: str, heads: int, **options: Any):
        super().__init__(theory, layer, name, heads, **options)
        self._method, self._size = method, method.sampling.inputs
        self.claims: tuple[Claim, ...] = ()
        self.groups = 0
        self.kept: dict[int, KeptGroup] = {}
        self._begun = False
        self._waiting: list[InputChoices] = []
        self._before: list[InputChoices] = []
        self._reasons: list[Reason] = []
        self._predicted: _Predicted | None = None

    @property
    def before(self) -> Sequence[InputChoices]:
        """The inputs of the group before, on which the rules of the next one are tested."""
        return self._before

    def collect(self, by_input: Sequence[Sequence[tuple[Example, Random]]], *, counted: bool = True) -> None:
        """Add inputs to the group that is not complete; measure it when it is, if its last input counts here."""
        pairs = [windows[0] for windows in by_input]
        if not self._begun:
            self._begin(pairs[0][0])
        usable = []
        for example, rng in pairs:
            reason = self._obstacle(example)
            if reason is None:
                usable.append((example, rng))
            elif reason not in self._reasons:
                self._reasons.append(reason)
        prepared = iter(self._method.prepare(*zip(*usable, strict=True)) if usable else ())
        numbers = {example.number for example, _ in usable}
        for example, _ in pairs:
            self._waiting += [next(prepared)] if example.number in numbers else []
            if example.number % self._size == 0:
                self._end_group(example, counted=counted)

    def finish(self, *, last: bool = False) -> Mapping[Claim, Sums]:
        """Return the sums with predictions; without a complete group, one skipped sample with the reasons."""
        if not self.groups:
            return self._skipped()
        if self.controls:
            self._predict()
            if last:
                self.kept.clear()
        return self.sums if self._predicted is None else self._with_predictions(self._predicted)

    def merge(self, other: Accumulator) -> None:
        """Add the groups of the next inputs of the same layer."""
        super().merge(other)
        assert isinstance(other, Groups)
        self.kept |= other.kept
        self.groups += other.groups
        self._reasons += [reason for reason in other._reasons if reason not in self._reasons]

    def state(self) -> dict[str, Any]:
        """Return everything but the group that is not complete."""
        numbers = {claim: index for index, claim in enumerate(self.theory.claims)}
        return {
            **super().state(),
            "expected": [numbers[claim] for claim in self.claims],
            "groups": self.groups,
            "kept": [[index, kept.state()] for index, kept in self.kept.items()],
            "reasons": [[str(reason.kind), reason.text] for reason in self._reasons],
            "predicted": None if self._predicted is None else self._predicted.state(numbers),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another accumulator of the same layer."""
        super().restore(state)
        claims = self.theory.claims
        self.claims = tuple(claims[number] for number in state["expected"])
        self.groups = state["groups"]
        self.kept = {index: KeptGroup.from_state(kept) for index, kept in state["kept"]}
        self._reasons = [Reason(ReasonKind(kind), text) for kind, text in state["reasons"]]
        self._predicted = None if state["predicted"] is None else _Predicted.from_state(state["predicted"], claims)

    def _begin(self, first: Example) -> None:
        """Note the layer's claims. Raise InputError if the first group and the one before it cannot be made."""
        needed = max(self.inputs // self._size - 1, 0) * self._size
        if first.number - 1 > needed:
            raise InputError(
                f"{self.name} has another number of inputs than its batch, so its groups of inputs cannot be divided; "
                f"audit {self.theory.key} without shards"
            )
        self._begun = True
        self.claims = self.claims or self.theory.claims_at(first)

    def _obstacle(self, example: Example) -> Reason | None:
        """Return why an input cannot be in a group."""
        if not set(self.theory.claims_at(example)) & set(self.claims):
            return Reason(ReasonKind.NOT_FOUND, "the layer's linear maps were not found in every call")
        return self.theory.applies(example)

    def _end_group(self, last: Example, *, counted: bool) -> None:
        """Measure the group if all its inputs could be used and no other part measures it."""
        complete = len(self._waiting) == self._size
        if complete and counted:
            group = Group(number=last.number // self._size - 1, prepared=self._waiting, before=self._before, last=last)
            samples = self.theory.measure(group, Random(last.seed, last.layer, OF_GROUPS, group.number))
            for claim, sample in last.wanted(samples).items():
                if isinstance(sample, Reason):
                    self.sums_of(claim).skip(sample)
                else:
                    self.sums_of(claim).add(sample, last.q.dtype, claim.size)
            if self.controls and group.number < self._method.sampling.groups:
                self.kept[group.number] = self._method.keep(group)
            self.groups += 1
        self._before, self._waiting = self._waiting if complete else [], []

    def _skipped(self) -> dict[Claim, Sums]:
        """Return the sums of one sample that could not be measured."""
        text = f"fewer than {self._size} inputs, which make one group"
        reasons = self._reasons or [Reason(ReasonKind.TOO_FEW_INPUTS, text)]
        skipped = {claim: self.empty_sums(claim) for claim in self.claims}
        for sums in skipped.values():
            sums.examples = 1
            for reason in reasons:
                sums.explain(reason)
        return skipped

    def _predict(self) -> None:
        """Compute the predictions that depend on all groups, unless they are those of the same groups."""
        if self._predicted is not None and self._predicted.groups == self.groups:
            return
        self._predicted = None
        claims = [claim for claim in self.sums if claim.predicted is None and claim.direction is None]
        heads = [head for head in range(self.heads) if any(self._covers(claim, head) for claim in claims)]
        if not heads or not self.kept:
            return
        kept = [self.kept[number] for number in sorted(self.kept)]
        by_claim = run_within_memory(
            lambda: self._method.predict(kept, heads, claims),
            task=f"the prediction of {self.theory.title} for layer {self.layer}",
            remedy="audit fewer inputs or this theory alone",
            device=torch.device("cpu"),
        )
        wanted = {claim: by_claim[claim] for claim in claims if claim in by_claim}
        self._predicted = _Predicted(self.groups, heads, wanted)

    def _with_predictions(self, predicted: "_Predicted") -> dict[Claim, Sums]:
        """Return the sums with the predicted values of some heads for the first groups."""
        sums = dict(self.sums)
        for claim, values in predicted.by_claim.items():
            by_head = np.full((len(values), self.heads), np.nan)
            by_head[:, predicted.heads] = values
            sums[claim] = self.sums[claim].with_predictions(by_head)
        return sums

    def _covers(self, claim: Claim, head: int) -> bool:
        """Return whether the head meets the claim's requirement."""
        needed = claim.requires
        if needed is None:
            return True
        [required] = [sums for other, sums in self.sums.items() if other.statistic == needed.statistic]
        return bool(required.value.count[head]) and bool(required.value.mean[head] >= needed.at_least)


class _Predicted:
    """Predicted values of some heads by claim, (groups, heads); `groups` is how many they were made of."""

    def __init__(self, groups: int, heads: Sequence[int], by_claim: Mapping[Claim, Array]) -> None:
        self.groups, self.heads, self.by_claim = groups, list(heads), by_claim

    def state(self, numbers: Mapping[Claim, int]) -> dict[str, Any]:
        by_claim = [[numbers[claim], values] for claim, values in self.by_claim.items()]
        return {"groups": self.groups, "heads": self.heads, "claims": by_claim}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], claims: Sequence[Claim]) -> "_Predicted":
        by_claim = {claims[number]: values for number, values in state["claims"]}
        return cls(state["groups"], state["heads"], by_claim)

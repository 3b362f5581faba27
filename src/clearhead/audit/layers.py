"""One layer under one theory: its sums, its groups of inputs, and both as plain values for shards and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from clearhead.audit.accumulators import ClaimSums, LayerSums
from clearhead.numerics.memory import run_within_memory
from clearhead.numerics.moments import Array
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Theory

__all__ = ["LayerPredictions", "MeasuredLayer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPredictions:
    """Predictions of some heads by the number of the claim, (examples, heads).

    groups: how many groups they were made of
    """

    groups: int
    heads: list[int]
    by_claim: list[tuple[int, Array]]


@dataclass(slots=True)
class MeasuredLayer:
    """One layer: its sums, how many inputs came, and the group of prepared examples that is not complete.

    inputs: number of the last input that came, among all inputs of the audit
    start: number of the last input that another part has counted
    begun: whether this part has got an input
    groups: how many groups were measured
    kept: what predictions need of the first groups, by the number of the group
    predictions: if they are computed already
    """

    sums: LayerSums
    claims: tuple[Claim, ...]
    inputs: int
    start: int = 0
    begun: bool = False
    groups: int = 0
    waiting: list[Any] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    kept: dict[int, Any] = field(default_factory=dict)
    predictions: LayerPredictions | None = None

    def explained(self, theory: Theory) -> LayerSums:
        """Return the sums; without a complete group, one skipped sample with the reasons."""
        if theory.grouping is None or self.groups:
            return self.sums
        text = f"fewer than {theory.grouping.size} inputs, which make one group"
        explained = LayerSums(self.sums.layer, self.sums.name, self.sums.heads)
        for claim in self.claims:
            explained.of(claim).examples = 1
            for reason in self.reasons or [Reason(ReasonKind.TOO_FEW_INPUTS, text)]:
                explained.of(claim).explain(reason)
        return explained

    def predicted(self, theory: Theory) -> LayerSums:
        """Return the sums with the predictions that depend on all groups."""
        self.predict(theory)
        made, sums = self.predictions, self.explained(theory)
        if made is None:
            return sums
        return sums.with_predictions({theory.claims[number]: x for number, x in made.by_claim}, made.heads)

    def predict(self, theory: Theory) -> None:
        """Compute the predictions that depend on all groups, unless they are those of the same groups."""
        grouping = theory.grouping
        if grouping is None or grouping.predictions is None or not self.groups:
            return
        if self.predictions is not None and self.predictions.groups == self.groups:
            return
        self.predictions = None
        claims = [claim for claim in self.sums.claims if claim.predicted is None and claim.direction is None]
        heads = [head for head in range(self.sums.heads) if any(_covers(self.sums, claim, head) for claim in claims)]
        if not heads or not self.kept:
            return
        kept = [self.kept[number] for number in sorted(self.kept)]
        predict = grouping.predictions.predict
        by_claim = run_within_memory(
            lambda: predict(kept, heads, claims),
            task=f"the prediction of {theory.title} for layer {self.sums.layer}",
            remedy="audit fewer inputs or this theory alone",
            device=torch.device("cpu"),
        )
        numbered = [(theory.claims.index(claim), by_claim[claim]) for claim in claims if claim in by_claim]
        self.predictions = LayerPredictions(groups=self.groups, heads=heads, by_claim=numbered)

    def merge(self, other: "MeasuredLayer") -> None:
        """Add the sums of the next part of the same audit."""
        self.sums.merge(other.sums)
        self.kept |= other.kept
        self.inputs += other.inputs - other.start
        self.groups += other.groups
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]

    def state(self, theory: Theory) -> dict[str, Any]:
        """Return everything but the group that is not complete, from which `from_state` restores every bit."""
        numbers = {claim: index for index, claim in enumerate(theory.claims)}
        return {
            "layer": self.sums.layer,
            "name": self.sums.name,
            "heads": self.sums.heads,
            "inputs": self.inputs,
            "start": self.start,
            "groups": self.groups,
            "kept": [[index, kept] for index, kept in self.kept.items()],
            "predictions": self.predictions,
            "reasons": [[str(reason.kind), reason.text] for reason in self.reasons],
            "expected": [numbers[claim] for claim in self.claims],
            "claims": [[numbers[claim], sums.state()] for claim, sums in self.sums.claims.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theory: Theory) -> "MeasuredLayer":
        """Return the layer that `state` was taken of."""
        sums = LayerSums(state["layer"], state["name"], state["heads"])
        sums.claims = {theory.claims[number]: ClaimSums.from_state(of_claim) for number, of_claim in state["claims"]}
        return cls(
            sums,
            tuple(theory.claims[number] for number in state["expected"]),
            state["inputs"],
            state["start"],
            groups=state["groups"],
            reasons=[Reason(ReasonKind(kind), text) for kind, text in state["reasons"]],
            kept=dict(state["kept"]),
            predictions=state["predictions"],
        )


def _covers(sums: LayerSums, claim: Claim, head: int) -> bool:
    """Return whether the head meets the claim's requirement."""
    needed = claim.requires
    if needed is None:
        return True
    [required] = [sums.claims[other] for other in sums.claims if other.statistic == needed.statistic]
    return bool(required.value.count[head]) and bool(required.value.mean[head] >= needed.at_least)

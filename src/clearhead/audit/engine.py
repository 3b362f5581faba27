"""The engine: one theory measured on a stream of attention calls.

It splits calls into examples with their random numbers (`examples`), asks the theory for samples, and sums them by
layer and head (`accumulators`).
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from clearhead.audit.accumulators import LayerSums, depth_curve
from clearhead.audit.examples import CONTROL_INPUTS, make_examples
from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.layers import MeasuredLayer
from clearhead.audit.record import DepthCurve
from clearhead.audit.samples import ClaimSamples
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.numerics.memory import run_within_memory
from clearhead.numerics.threads import one_thread, one_thread_each
from clearhead.theories.example import Cache, Example, Group, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import average
from clearhead.theories.theory import Claim, Role, Sample, Samples, Theory

__all__ = ["Measurement", "first_of_groups"]

OF_GROUPS = 2**31
"""Separates the random numbers of groups from those of inputs, whose numbers are smaller."""


class Measurement:
    """One theory, measured on the calls given to `observe`. It keeps sums and samples, and no inputs.

    Of the first groups it keeps what the theory's predictions need, if these depend on all groups.

    A part of an audit draws the same random numbers and makes the same groups as the whole: both depend on the numbers
    of the inputs. A group belongs to the part with its last input, which therefore gets some inputs before its own.

    controls: whether controls are measured too, on the first `control_inputs` inputs of the audit
    claims: the claims to measure; all of the theory by default
    first: how many inputs of the audit come before the first of this part
    lead: how many of them are given to it before its own, for its first group and the one before
    most: how many inputs of the audit are measured; further ones are ignored
    """

    def __init__(
        self,
        theory: Theory,
        *,
        seed: int = 0,
        controls: bool = True,
        claims: Collection[Claim] | None = None,
        first: int = 0,
        lead: int = 0,
        most: int | None = None,
        control_inputs: int = CONTROL_INPUTS,
    ) -> None:
        self.theory = theory
        self._claims = frozenset(theory.claims if claims is None else claims)
        self._seed, self._controls, self._first, self._lead, self._most = seed, controls, first, lead, most
        self._control_inputs = control_inputs
        self._layers: dict[int, MeasuredLayer] = {}
        self._cache = Cache()

    def observe(self, heads: Heads, *, inputs: int | None = None) -> None:
        """Measure one call of one layer.

        inputs: how many inputs the batch has, if the layer may have others, as the two towers of a model may
        """
        number = self._number_before(heads, inputs)
        by_input = make_examples(
            heads,
            self.theory.windows,
            first=number,
            seed=self._seed,
            controls=self._controls,
            per_audit=self._cache,
            claims=self._claims,
            control_inputs=self._control_inputs,
        )
        if self._most is not None:
            by_input = by_input[: max(self._most - number, 0)]
        if not by_input:
            return
        layer = self._layer(heads, by_input[0][0][0], self._of_layer(self._first, heads, inputs))
        layer.inputs, layer.begun = number + len(by_input), True
        run_within_memory(
            lambda: self._measure(layer, by_input),
            task=f"{self.theory.title} on an input of {heads.q.shape[-2]} tokens",
            remedy="audit shorter inputs (--max-tokens) or this theory alone",
            device=heads.q.device,
        )

    def _measure(self, layer: MeasuredLayer, by_input: Sequence[Sequence[tuple[Example, Random]]]) -> None:
        with one_thread(workers=True):
            if self.theory.grouping is None:
                self._measure_inputs(layer, by_input)
            else:
                self._measure_groups(layer, [examples[0] for examples in by_input])

    def _number_before(self, heads: Heads, inputs: int | None) -> int:
        """Return the number of the layer's last input before this call."""
        layer = self._layers.get(heads.layer)
        if layer is not None and (layer.begun or self.theory.grouping is None):
            return layer.inputs
        start = self._of_layer(self._first, heads, inputs) if layer is None else layer.inputs
        if self.theory.grouping is None:
            return start
        number = self._of_layer(self._first - self._lead, heads, inputs)
        if layer is not None:
            layer.start = start
        if number > first_of_groups(start, self.theory.grouping.size):
            raise InputError(
                f"{heads.name} has another number of inputs than its batch, so its groups of inputs cannot be divided; "
                f"audit {self.theory.key} without shards"
            )
        return number

    def _of_layer(self, count: int, heads: Heads, inputs: int | None) -> int:
        """Return how many inputs the layer has where the audit has `count`, in the ratio of this batch."""
        return count if inputs is None else count * (heads.q.shape[0] // heads.windows) // inputs

    def _layer(self, heads: Heads, example: Example, start: int) -> MeasuredLayer:
        if heads.layer not in self._layers:
            sums = LayerSums(heads.layer, heads.name, heads.q.shape[1])
            self._layers[heads.layer] = MeasuredLayer(sums, self._claims_of(example), start, start)
        return self._layers[heads.layer]

    def _claims_of(self, example: Example) -> tuple[Claim, ...]:
        claims = self.theory.claims if self.theory.claims_of is None else self.theory.claims_of(example)
        return tuple(claim for claim in claims if claim in self._claims)

    def _measure_inputs(self, layer: MeasuredLayer, by_input: Sequence[Sequence[tuple[Example, Random]]]) -> None:
        flat = [pair for examples in by_input for pair in examples]
        samples = iter(one_thread_each(lambda pair: self._samples(*pair), flat))
        for examples in by_input:
            self._add(layer, [next(samples) for _ in examples], examples[0][0].q.dtype)

    def _samples(self, example: Example, rng: Random) -> Samples:
        reason = self.theory.applies(example)
        if reason is not None:
            return dict.fromkeys(self._claims_of(example), reason)
        return self._wanted(self.theory.measure(example, rng))

    def _wanted(self, samples: Samples) -> Samples:
        return {claim: sample for claim, sample in samples.items() if claim in self._claims}

    def _add(self, layer: MeasuredLayer, windows: Sequence[Samples], dtype: torch.dtype) -> None:
        """Count one input: the mean of its windows, claim by claim. `dtype` is that of the tensors."""
        for claim in dict.fromkeys(claim for window in windows for claim in window):
            sums = layer.sums.of(claim)
            measured = [window[claim] for window in windows if claim in window]
            samples = [sample for sample in measured if isinstance(sample, Sample)]
            for reason in (sample for sample in measured if isinstance(sample, Reason)):
                sums.explain(reason)
            if samples:
                sums.add(samples[0] if len(windows) == 1 else average(samples), dtype, claim.size)
            else:
                sums.examples += 1

    def _measure_groups(self, layer: MeasuredLayer, examples: Sequence[tuple[Example, Random]]) -> None:
        grouping = self.theory.grouping
        assert grouping is not None
        usable = []
        for example, rng in examples:
            reason = self._group_obstacle(layer, example)
            if reason is None:
                usable.append((example, rng))
            elif reason not in layer.reasons:
                layer.reasons.append(reason)
        prepared = iter(grouping.prepare(*zip(*usable, strict=True)) if usable else ())
        numbers = {example.number for example, _ in usable}
        for example, _ in examples:
            layer.waiting += [next(prepared)] if example.number in numbers else []
            if example.number % grouping.size == 0:
                self._end_group(layer, example, grouping.size)

    def _end_group(self, layer: MeasuredLayer, last: Example, size: int) -> None:
        """Measure the group if all its inputs could be used and no other part measures it."""
        complete = len(layer.waiting) == size
        if complete and last.number > layer.start:
            group = Group(number=last.number // size - 1, prepared=layer.waiting, before=layer.before, last=last)
            rng = Random(self._seed, last.layer, OF_GROUPS, group.number)
            layer.sums.add(self._wanted(self.theory.measure(group, rng)), last.q.dtype)
            self._keep(layer, group)
            layer.groups += 1
        layer.before, layer.waiting = layer.waiting if complete else [], []

    def _keep(self, layer: MeasuredLayer, group: Group) -> None:
        assert self.theory.grouping is not None
        predictions = self.theory.grouping.predictions
        if predictions is not None and self._controls and group.number < predictions.groups:
            layer.kept[group.number] = predictions.keep(group)

    def _group_obstacle(self, layer: MeasuredLayer, example: Example) -> Reason | None:
        if not set(self._claims_of(example)) & set(layer.claims):
            return Reason(ReasonKind.NOT_FOUND, "the layer's linear maps were not found in every call")
        return self.theory.applies(example)

    def _sums(self) -> list[LayerSums]:
        """Return the sums of every layer, in order."""
        return [self._layers[number].explained(self.theory) for number in sorted(self._layers)]

    def predict(self, *, last: bool = False) -> None:
        """Compute the predictions that depend on all groups before `findings` needs them.

        last: whether no group follows, so that what the predictions are made of is dropped
        """
        if self._controls:
            for layer in self._layers.values():
                layer.predict(self.theory)
                if last:
                    layer.kept.clear()

    def findings(self) -> list[Finding]:
        """Return a finding for every claim, layer and head, without verdicts from controls."""
        layers = self._sums()
        if self._controls:
            layers = [self._layers[number].predicted(self.theory) for number in sorted(self._layers)]
        results = [
            finding
            for claim in self.theory.claims
            if claim.role is not Role.DEPTH
            for layer in layers
            if claim in layer.claims
            for finding in layer.claims[claim].findings(claim, layer.layer, layer.name, self._seed)
        ]
        return _with_requirements(results)

    def curves(self) -> list[DepthCurve]:
        """Return the curves over depth."""
        layers = self._sums()
        curves = (depth_curve(claim, layers) for claim in self.theory.claims if claim.role is Role.DEPTH)
        return [curve for curve in curves if curve is not None]

    def samples(self) -> list[ClaimSamples]:
        """Return the values of every claim and layer, input by input."""
        return [
            ClaimSamples.of(self.theory, claim, sums.layer, sums.name, sums.claims[claim].by_example())
            for sums in self._sums()
            for claim in self.theory.claims
            if claim in sums.claims and claim.role is not Role.DEPTH
        ]

    def notes(self) -> list[str]:
        """Return what to know of the inputs before trusting the numbers."""
        counts: dict[str, dict[int, int]] = {}
        for layer in self._sums():
            for sums in layer.claims.values():
                for caveat, count in sums.caveats.items():
                    counts.setdefault(caveat.text, {})[layer.layer] = count
        return [
            f"{self.theory.title}: {text} in {max(by_layer.values())} inputs at "
            f"{'layer' if len(by_layer) == 1 else 'layers'} {', '.join(map(str, by_layer))}"
            for text, by_layer in counts.items()
        ]

    def merge(self, other: "Measurement") -> None:
        """Add the sums of the next part of the same audit."""
        if (self.theory.key, self._seed, self._controls) != (other.theory.key, other._seed, other._controls):
            raise InputError(
                f"cannot merge {other.theory.key} with seed {other._seed} into {self.theory.key} with seed "
                f"{self._seed}; merge parts of one audit"
            )
        for number, layer in other._layers.items():
            if number in self._layers:
                self._layers[number].merge(layer)
            else:
                self._layers[number] = layer

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values and arrays, from which `from_state` restores every bit.

        Groups that are not complete are left out: a part that continues gets their inputs again (`first`, `lead`).
        """
        numbers = {claim: index for index, claim in enumerate(self.theory.claims)}
        return {
            "theory": self.theory.key,
            "seed": self._seed,
            "controls": self._controls,
            "claims": [numbers[claim] for claim in self.theory.claims if claim in self._claims],
            "most": self._most,
            "control inputs": self._control_inputs,
            "layers": [layer.state(self.theory) for layer in self._layers.values()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theory: Theory, *, first: int = 0, lead: int = 0) -> "Measurement":
        """Return the measurement that `state` was taken of. If it goes on, `first` and `lead` say where."""
        if state["theory"] != theory.key:
            raise InputError(f"the sums are of {state['theory']}, not of {theory.key}")
        restored = cls(
            theory,
            seed=state["seed"],
            controls=state["controls"],
            claims=[theory.claims[number] for number in state["claims"]],
            first=first,
            lead=lead,
            most=state["most"],
            control_inputs=state["control inputs"],
        )
        for entry in state["layers"]:
            restored._layers[entry["layer"]] = MeasuredLayer.from_state(entry, theory)
        return restored


def first_of_groups(start: int, size: int) -> int:
    """Return how many inputs come before those that a part needs which begins after `start` inputs.

    It needs the group that its first input is in and the group before.
    """
    return max(start // size - 1, 0) * size


def _with_requirements(findings: Sequence[Finding]) -> list[Finding]:
    """Mark findings whose claim requires more of another statistic than the head has."""
    values = {(f.claim.statistic, f.layer, f.head): f.value for f in findings}

    def checked(finding: Finding) -> Finding:
        needed = finding.claim.requires
        if needed is None or finding.verdict is Verdict.TRUE_BY_CONSTRUCTION:
            return finding
        if not values[needed.statistic, finding.layer, finding.head] < needed.at_least:
            return finding
        return dataclasses.replace(finding, applies=False, reasons=(needed.reason,))

    return [checked(finding) for finding in findings]

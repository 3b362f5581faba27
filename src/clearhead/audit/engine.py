"""The engine: one theory measured on a stream of attention calls.

It splits calls into examples with their random numbers (`examples`), asks the theory for samples, and sums them by
layer and head (`accumulators`).
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from clearhead.audit.accumulators import ClaimSums, LayerSums, depth_curve
from clearhead.audit.examples import make_examples
from clearhead.audit.findings import Finding, Verdict
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

__all__ = ["Measurement"]

OF_GROUPS = 2**31
"""Separates the random numbers of groups from those of inputs, whose numbers are smaller."""
NOT_SAVED = "the groups of inputs that the prediction is computed from were not saved with the sums"


@dataclass(slots=True)
class _Layer:
    """One layer: its sums, how many inputs came, and the group of prepared examples that is not complete.

    kept: what predictions need of the first groups, by the number of the group
    """

    sums: LayerSums
    claims: tuple[Claim, ...]
    inputs: int
    groups: int = 0
    waiting: list[Any] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    kept: dict[int, Any] = field(default_factory=dict)


class Measurement:
    """One theory, measured on the calls given to `observe`. It keeps sums and samples, and no inputs.

    Of the first groups it keeps what the theory's predictions need, if these depend on all groups. It is merged with
    the sums but not saved: predictions of restored sums are missing, and the findings say so.

    controls: whether controls are measured too
    claims: the claims to measure; all of the theory by default
    first: how many inputs of the audit come before the first, for parts of an audit that are merged
    most: how many inputs are measured; further ones are ignored
    """

    def __init__(
        self,
        theory: Theory,
        *,
        seed: int = 0,
        controls: bool = True,
        claims: Collection[Claim] | None = None,
        first: int = 0,
        most: int | None = None,
    ) -> None:
        self.theory = theory
        self._claims = frozenset(theory.claims if claims is None else claims)
        self._seed, self._controls, self._first, self._most = seed, controls, first, most
        self._layers: dict[int, _Layer] = {}
        self._cache = Cache()

    def observe(self, heads: Heads) -> None:
        """Measure one call of one layer."""
        number = self._layers[heads.layer].inputs if heads.layer in self._layers else self._first
        by_input = make_examples(
            heads,
            self.theory.windows,
            first=number,
            seed=self._seed,
            controls=self._controls,
            per_audit=self._cache,
            claims=self._claims,
        )
        if self._most is not None:
            by_input = by_input[: max(self._most - (number - self._first), 0)]
        if not by_input:
            return
        layer = self._layer(heads, by_input[0][0][0])
        layer.inputs += len(by_input)
        run_within_memory(
            lambda: self._measure(layer, by_input),
            task=f"{self.theory.title} on an input of {heads.q.shape[-2]} tokens",
            remedy="audit shorter inputs (--max-tokens) or this theory alone",
            device=heads.q.device,
        )

    def _measure(self, layer: _Layer, by_input: Sequence[Sequence[tuple[Example, Random]]]) -> None:
        with one_thread(workers=True):
            if self.theory.grouping is None:
                self._measure_inputs(layer, by_input)
            else:
                self._measure_groups(layer, [examples[0] for examples in by_input])

    def _layer(self, heads: Heads, example: Example) -> _Layer:
        if heads.layer not in self._layers:
            sums = LayerSums(heads.layer, heads.name, heads.q.shape[1])
            self._layers[heads.layer] = _Layer(sums, self._claims_of(example), self._first)
        return self._layers[heads.layer]

    def _claims_of(self, example: Example) -> tuple[Claim, ...]:
        claims = self.theory.claims if self.theory.claims_of is None else self.theory.claims_of(example)
        return tuple(claim for claim in claims if claim in self._claims)

    def _measure_inputs(self, layer: _Layer, by_input: Sequence[Sequence[tuple[Example, Random]]]) -> None:
        flat = [pair for examples in by_input for pair in examples]
        samples = iter(one_thread_each(lambda pair: self._samples(*pair), flat))
        for examples in by_input:
            self._add(layer, [next(samples) for _ in examples])

    def _samples(self, example: Example, rng: Random) -> Samples:
        reason = self.theory.applies(example)
        if reason is not None:
            return dict.fromkeys(self._claims_of(example), reason)
        return self._wanted(self.theory.measure(example, rng))

    def _wanted(self, samples: Samples) -> Samples:
        return {claim: sample for claim, sample in samples.items() if claim in self._claims}

    def _add(self, layer: _Layer, windows: Sequence[Samples]) -> None:
        """Count one input: the mean of its windows, claim by claim."""
        for claim in dict.fromkeys(claim for window in windows for claim in window):
            sums = layer.sums.of(claim)
            measured = [window[claim] for window in windows if claim in window]
            samples = [sample for sample in measured if isinstance(sample, Sample)]
            for reason in (sample for sample in measured if isinstance(sample, Reason)):
                sums.explain(reason)
            if samples:
                sums.add(samples[0] if len(windows) == 1 else average(samples))
            else:
                sums.examples += 1

    def _measure_groups(self, layer: _Layer, examples: Sequence[tuple[Example, Random]]) -> None:
        grouping = self.theory.grouping
        assert grouping is not None
        usable = []
        for example, rng in examples:
            reason = self._group_obstacle(layer, example)
            if reason is None:
                usable.append((example, rng))
            elif reason not in layer.reasons:
                layer.reasons.append(reason)
        if not usable:
            return
        kept, generators = zip(*usable, strict=True)
        for example, prepared in zip(kept, grouping.prepare(kept, generators), strict=True):
            layer.waiting.append(prepared)
            if len(layer.waiting) == grouping.size:
                group = Group(number=layer.groups, prepared=layer.waiting, before=layer.before, last=example)
                rng = Random(self._seed, example.layer, OF_GROUPS, layer.groups)
                layer.sums.add(self._wanted(self.theory.measure(group, rng)))
                self._keep(layer, group)
                layer.groups, layer.before, layer.waiting = layer.groups + 1, layer.waiting, []

    def _keep(self, layer: _Layer, group: Group) -> None:
        assert self.theory.grouping is not None
        predictions = self.theory.grouping.predictions
        if predictions is not None and self._controls and group.number < predictions.groups:
            layer.kept[group.number] = predictions.keep(group)

    def _group_obstacle(self, layer: _Layer, example: Example) -> Reason | None:
        if not set(self._claims_of(example)) & set(layer.claims):
            return Reason(ReasonKind.NOT_FOUND, "the layer's linear maps were not found in every call")
        return self.theory.applies(example)

    def _sums(self) -> list[LayerSums]:
        """Return the sums of every layer, in order."""
        return [self._explained(self._layers[number]) for number in sorted(self._layers)]

    def _explained(self, layer: _Layer) -> LayerSums:
        """Return the sums of a layer; without a complete group, one skipped sample with the reasons."""
        if self.theory.grouping is None or layer.groups:
            return layer.sums
        text = f"fewer than {self.theory.grouping.size} inputs, which make one group"
        explained = LayerSums(layer.sums.layer, layer.sums.name, layer.sums.heads)
        for claim in layer.claims:
            explained.of(claim).examples = 1
            for reason in layer.reasons or [Reason(ReasonKind.TOO_FEW_INPUTS, text)]:
                explained.of(claim).explain(reason)
        return explained

    def findings(self) -> list[Finding]:
        """Return a finding for every claim, layer and head, without verdicts from controls."""
        layers = [self._predicted(layer) for layer in self._sums()]
        results = [
            finding
            for claim in self.theory.claims
            if claim.role is not Role.DEPTH
            for layer in layers
            if claim in layer.claims
            for finding in layer.claims[claim].findings(claim, layer.layer, layer.name, self._seed)
        ]
        return _with_requirements(results)

    def _predicted(self, sums: LayerSums) -> LayerSums:
        """Return the sums of a layer with the predictions that depend on all groups."""
        layer, grouping = self._layers[sums.layer], self.theory.grouping
        if grouping is None or grouping.predictions is None or not layer.groups or not self._controls:
            return sums
        claims = [claim for claim in sums.claims if claim.predicted is None and claim.direction is None]
        covered = [head for head in range(sums.heads) if any(_covers(sums, claim, head) for claim in claims)]
        if not covered:
            return sums
        kept = [layer.kept.get(number) for number in range(min(layer.groups, grouping.predictions.groups))]
        if any(group is None for group in kept):
            return sums.without_predictions(claims, NOT_SAVED)
        predict = grouping.predictions.predict
        by_claim = run_within_memory(
            lambda: predict(kept, covered, claims),
            task=f"the prediction of {self.theory.title} for layer {sums.layer}",
            remedy="audit fewer inputs or this theory alone",
            device=torch.device("cpu"),
        )
        return sums.with_predictions({claim: by_claim[claim] for claim in claims if claim in by_claim}, covered)

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
        """Add the sums of another part of the same audit. Groups of inputs that are not complete are left out."""
        if (self.theory.key, self._seed, self._controls) != (other.theory.key, other._seed, other._controls):
            raise InputError(
                f"cannot merge {other.theory.key} with seed {other._seed} into {self.theory.key} with seed "
                f"{self._seed}; merge parts of one audit"
            )
        for number, layer in other._layers.items():
            if number not in self._layers:
                self._layers[number] = layer
                continue
            mine = self._layers[number]
            mine.sums.merge(layer.sums)
            mine.kept |= {mine.groups + number: kept for number, kept in layer.kept.items()}
            mine.inputs += layer.inputs - other._first
            mine.groups += layer.groups
            mine.reasons += [reason for reason in layer.reasons if reason not in mine.reasons]

    def state(self) -> dict[str, Any]:
        """Return the sums as values that JSON can hold, from which `from_state` restores every bit."""
        numbers = {claim: index for index, claim in enumerate(self.theory.claims)}
        return {
            "theory": self.theory.key,
            "seed": self._seed,
            "controls": self._controls,
            "first": self._first,
            "layers": [
                {
                    "layer": number,
                    "name": layer.sums.name,
                    "heads": layer.sums.heads,
                    "inputs": layer.inputs,
                    "groups": layer.groups,
                    "reasons": [[str(reason.kind), reason.text] for reason in layer.reasons],
                    "expected": [numbers[claim] for claim in layer.claims],
                    "claims": [[numbers[claim], sums.state()] for claim, sums in layer.sums.claims.items()],
                }
                for number, layer in self._layers.items()
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theory: Theory) -> "Measurement":
        """Return the measurement that `state` was taken of."""
        if state["theory"] != theory.key:
            raise InputError(f"the sums are of {state['theory']}, not of {theory.key}")
        restored = cls(theory, seed=state["seed"], controls=state["controls"], first=state["first"])
        for entry in state["layers"]:
            sums = LayerSums(entry["layer"], entry["name"], entry["heads"])
            sums.claims = {
                theory.claims[number]: ClaimSums.from_state(of_claim) for number, of_claim in entry["claims"]
            }
            restored._layers[entry["layer"]] = _Layer(
                sums,
                tuple(theory.claims[number] for number in entry["expected"]),
                entry["inputs"],
                groups=entry["groups"],
                reasons=[Reason(ReasonKind(kind), text) for kind, text in entry["reasons"]],
            )
        return restored


def _covers(sums: LayerSums, claim: Claim, head: int) -> bool:
    """Return whether the head meets the claim's requirement."""
    needed = claim.requires
    if needed is None:
        return True
    [required] = [sums.claims[other] for other in sums.claims if other.statistic == needed.statistic]
    return bool(required.value.count[head]) and bool(required.value.mean[head] >= needed.at_least)


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

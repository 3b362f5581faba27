"""Sums over examples, by claim, layer and head, and the findings and curves they make.

Running moments are kept, and of every input one number per claim and head, for comparisons with other audits. Sums of
two parts of the inputs can be merged, and saved and restored without losing a bit.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from clearhead.audit.findings import ControlResult, Finding, Verdict
from clearhead.audit.record import DepthCurve, DepthLine
from clearhead.audit.rows import Rows
from clearhead.errors import InputError
from clearhead.numerics.moments import (
    Array,
    Interval,
    RunningMoments,
    difference_p_value,
    evenly_spaced,
    prediction_error,
)
from clearhead.numerics.precision import resolution
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Control, Sample, Samples, Unit

__all__ = ["ClaimSums", "LayerSums", "depth_curve"]

THIS_MODEL = "this model"
UNPREDICTED = Reason(ReasonKind.NO_PREDICTION, "the predicted value could not be computed")


class _ControlSums:
    """Sums of one control.

    value: of each draw
    difference: the head's value minus the mean of the draws, by input; 0 where arithmetic does not resolve it
    resolution: the largest of the inputs
    largest: the largest difference, as a multiple of its resolution
    """

    def __init__(self, draws: tuple[int, ...], heads: int) -> None:
        self.value, self.difference = RunningMoments(draws), RunningMoments((heads,))
        self.resolution, self.largest = np.zeros(heads), np.zeros(heads)

    def add(self, draws: Array, difference: Array, resolution: Array) -> None:
        """Add the draws of one input, and the difference."""
        self.value.add(draws)
        self.difference.add(np.where(np.abs(difference) <= resolution, 0.0, difference))
        self.resolution = np.fmax(self.resolution, resolution)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.largest = np.fmax(self.largest, np.abs(difference) / resolution)

    def merge(self, other: "_ControlSums") -> None:
        """Add the sums of other inputs."""
        self.value.merge(other.value)
        self.difference.merge(other.difference)
        self.resolution = np.fmax(self.resolution, other.resolution)
        self.largest = np.fmax(self.largest, other.largest)

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values and arrays."""
        return {
            "value": self.value.state(),
            "difference": self.difference.state(),
            "resolution": self.resolution,
            "largest": self.largest,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "_ControlSums":
        """Return the sums that `state` was taken of."""
        sums = cls((), 0)
        sums.value, sums.difference = (RunningMoments.from_state(state[name]) for name in ("value", "difference"))
        sums.resolution, sums.largest = state["resolution"].copy(), state["largest"].copy()
        return sums


class ClaimSums:
    """Sums of one claim at one layer.

    examples: how many were counted, measured or not; reasons: why some were not
    values: by head, of each example; NaN for those that were not measured
    resolution: by head, the smallest difference from a value that arithmetic resolves, the largest of the examples
    by_construction: whether the claim held by construction on every example measured
    """

    def __init__(self, heads: int) -> None:
        self.value = RunningMoments((heads,))
        self.predicted = RunningMoments((heads,))
        self.deviation = RunningMoments((heads,))
        self.resolution = np.zeros(heads)
        self.shared = 1
        self.covered = np.ones(heads, dtype=bool)
        self.controls: dict[Control, _ControlSums] = {}
        self.examples = 0
        self.values = Rows(heads)
        self.reasons: list[Reason] = []
        self.undefined = False
        self.by_construction = True
        self.caveats: Counter[Reason] = Counter()

    def add(self, sample: Sample, dtype: torch.dtype, size: float = 0.0) -> None:
        """Add one sample. Controls and predictions count only where the value is defined.

        dtype: of the tensors that the sample was computed from; size: see `Claim.size`
        """
        defined = np.isfinite(sample.value)
        self.values.put(self.examples, np.where(defined, sample.value, np.nan)[None])
        self.examples += 1
        self.value.add(sample.value)
        if sample.predicted is not None:
            self._predict(sample.value, sample.predicted)
        self.shared = max(self.shared, sample.shared)
        if sample.covered is not None:
            self.covered &= sample.covered
        own = np.fmax(np.abs(sample.value), size)
        self.resolution = np.fmax(self.resolution, resolution(dtype, own))
        for control, draws in sample.controls.items():
            sums = self.controls.setdefault(control, _ControlSums(draws.shape, len(sample.value)))
            mean = _mean_of_finite(draws)
            sums.add(
                np.where(defined, draws, np.nan), sample.value - mean, resolution(dtype, np.fmax(own, np.abs(mean)))
            )
        self.undefined = self.undefined or not bool(defined.all())
        self.by_construction = self.by_construction and sample.by_construction
        if sample.caveat is not None:
            self.caveats[sample.caveat] += 1

    def _predict(self, value: Array, predicted: Array) -> None:
        """Count a prediction where the value is defined."""
        defined = np.isfinite(value)
        self.predicted.add(np.where(defined, predicted, np.nan))
        with np.errstate(invalid="ignore"):
            self.deviation.add(np.where(defined, value - predicted, np.nan))

    def with_predictions(self, predicted: Array) -> "ClaimSums":
        """Return the sums with predictions for the first examples, (examples, heads), in place of those of samples."""
        sums = copy.copy(self)
        sums.predicted, sums.deviation = (RunningMoments(self.value.count.shape) for _ in range(2))
        for index, value in enumerate(self.values.table(self.examples)[: len(predicted)]):
            sums._predict(value, predicted[index])
        return sums

    def skip(self, reason: Reason) -> None:
        """Count an example that could not be measured."""
        self.examples += 1
        self.explain(reason)

    def explain(self, reason: Reason) -> None:
        """Remember a reason, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def merge(self, other: "ClaimSums") -> None:
        """Add the sums of other examples of the same claim and layer."""
        self.value.merge(other.value)
        self.predicted.merge(other.predicted)
        self.deviation.merge(other.deviation)
        self.shared = max(self.shared, other.shared)
        self.covered &= other.covered
        self.resolution = np.fmax(self.resolution, other.resolution)
        for control, sums in other.controls.items():
            if control in self.controls:
                self.controls[control].merge(sums)
            else:
                self.controls[control] = sums
        self.values.put(self.examples, other.by_example())
        self.examples += other.examples
        for reason in other.reasons:
            self.explain(reason)
        self.undefined = self.undefined or other.undefined
        self.by_construction = self.by_construction and other.by_construction
        self.caveats += other.caveats

    def by_example(self) -> Array:
        """Return the values by example and head; NaN where the claim was not measured."""
        return self.values.table(self.examples)

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values and arrays."""
        return {
            "value": self.value.state(),
            "predicted": self.predicted.state(),
            "deviation": self.deviation.state(),
            "resolution": self.resolution,
            "shared": self.shared,
            "covered": self.covered,
            "controls": [{"name": c.name, "fixed": c.fixed, **s.state()} for c, s in self.controls.items()],
            "examples": self.examples,
            "values": self.by_example(),
            "reasons": [_reason_state(reason) for reason in self.reasons],
            "undefined": self.undefined,
            "by_construction": self.by_construction,
            "caveats": [[_reason_state(reason), count] for reason, count in self.caveats.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ClaimSums":
        """Return the sums that `state` was taken of."""
        sums = cls(len(state["covered"]))
        sums.value, sums.predicted, sums.deviation = (
            RunningMoments.from_state(state[name]) for name in ("value", "predicted", "deviation")
        )
        sums.resolution = state["resolution"].copy()
        sums.shared, sums.covered = state["shared"], state["covered"].copy()
        for entry in state["controls"]:
            sums.controls[Control(name=entry["name"], fixed=entry["fixed"])] = _ControlSums.from_state(entry)
        sums.examples = state["examples"]
        sums.values.put(0, state["values"])
        sums.reasons = [_reason(entry) for entry in state["reasons"]]
        sums.undefined, sums.by_construction = state["undefined"], state["by_construction"]
        sums.caveats = Counter({_reason(entry): count for entry, count in state["caveats"]})
        return sums

    def findings(self, claim: Claim, layer: int, name: str, seed: int) -> Iterator[Finding]:
        """Yield the finding of every head, without a verdict unless the claim holds by construction."""
        low, high = self.value.interval()
        low_deviation, high_deviation = self.deviation.interval()
        undefined = [Reason(ReasonKind.UNDEFINED, claim.undefined)] if self.undefined else []
        uncovered = Reason(ReasonKind.NOT_COVERED, claim.uncovered)
        for head in range(len(self.value.count)):
            count = int(self.value.count[head])
            predicted = float(self.predicted.mean[head]) if self.predicted.count[head] else np.nan
            unpredicted = claim.predicted is None and claim.direction is None and count and np.isnan(predicted)
            yield Finding(
                claim=claim,
                layer=layer,
                name=name,
                head=head,
                value=float(self.value.mean[head]) if count else np.nan,
                interval=Interval(float(low[head]), float(high[head])),
                predicted=predicted if claim.predicted is None else claim.predicted,
                controls=tuple(self._control(control, head, seed) for control in self.controls),
                inputs=count,
                skipped=self.examples - count,
                reasons=(
                    *((*self.reasons, *undefined) if self.examples > count else ()),
                    *(() if self.covered[head] else (uncovered,)),
                    *((UNPREDICTED,) if unpredicted else ()),
                ),
                applies=bool(self.covered[head]),
                verdict=Verdict.TRUE_BY_CONSTRUCTION if self.by_construction and count else Verdict.UNDECIDED,
                deviation=Interval(float(low_deviation[head]), float(high_deviation[head]))
                if self.deviation.count[head]
                else None,
                shared=self.shared,
                resolution=float(self.resolution[head]),
            )

    def _control(self, control: Control, head: int, seed: int) -> ControlResult:
        """Return the test of one head against one control.

        Draws made for each input are compared with the head input by input. Fixed draws are a sample of what the head
        might have been: the head must lie outside their spread, widened by its own error over inputs. That error is the
        smaller of the value's and of the difference's, because head and draws often vary together.
        """
        sums = self.controls[control]
        draws = sums.value.mean[:, head][sums.value.count[:, head] > 0]
        draws = draws if draws.size else np.array([np.nan])
        low, high = np.quantile(draws, [0.025, 0.975])
        difference, error = float(sums.difference.mean[head]), float(sums.difference.standard_error()[head])
        freedom = int(sums.difference.count[head]) - 1
        if control.fixed:
            compared, counted = int(sums.difference.count[head]), int(self.value.count[head])
            value, own_error = float(self.value.mean[head]), float(self.value.standard_error()[head])
            if compared < counted:
                # Some examples have no draws: the head is compared by its mean over the others.
                value = float(sums.difference.mean[head] + draws.mean())
                own_error *= math.sqrt(counted / max(compared, 1))
            difference = difference and value - float(draws.mean())
            error, freedom = prediction_error(draws, error=min(error, own_error)), len(draws) - 1
        resolved = float(sums.resolution[head])
        p = float(difference_p_value(difference, error, freedom, resolved))
        return ControlResult(
            name=control.name,
            value=float(draws.mean()),
            range=Interval(float(low), float(high)),
            draws=len(draws),
            seed=seed,
            p_value=p if self.value.count[head] > 1 else np.nan,
            difference=difference,
            error=error,
            freedom=max(freedom, 0),
            resolution=resolved,
            largest=float(sums.largest[head]),
            sample=evenly_spaced(draws),
        )


def _mean_of_finite(draws: Array) -> Array:
    """Return the mean over the draws that are finite; NaN where none is."""
    finite = np.isfinite(draws)
    total = np.where(finite, draws, 0.0).sum(axis=0)
    return np.where(finite.any(axis=0), total / np.maximum(finite.sum(axis=0), 1), np.nan)


def _reason_state(reason: Reason) -> list[str]:
    return [str(reason.kind), reason.text]


def _reason(state: Sequence[str]) -> Reason:
    return Reason(ReasonKind(state[0]), state[1])


@dataclass(slots=True)
class LayerSums:
    """Sums of the claims of one layer."""

    layer: int
    name: str
    heads: int
    claims: dict[Claim, ClaimSums] = field(default_factory=dict)

    def of(self, claim: Claim) -> ClaimSums:
        """Return the sums of a claim, which begin at zero."""
        return self.claims.setdefault(claim, ClaimSums(self.heads if claim.unit is Unit.HEAD else 1))

    def add(self, samples: Samples, dtype: torch.dtype) -> None:
        """Count one example, computed from tensors of the dtype."""
        for claim, sample in samples.items():
            if isinstance(sample, Reason):
                self.of(claim).skip(sample)
            else:
                self.of(claim).add(sample, dtype, claim.size)

    def with_predictions(self, predicted: Mapping[Claim, Array], heads: Sequence[int]) -> "LayerSums":
        """Return the sums with the predicted values of some heads, (examples, heads), for the first examples."""
        claims = dict(self.claims)
        for claim, values in predicted.items():
            by_head = np.full((len(values), self.heads), np.nan)
            by_head[:, heads] = values
            claims[claim] = self.claims[claim].with_predictions(by_head)
        return replace(self, claims=claims)

    def merge(self, other: "LayerSums") -> None:
        """Add the sums of other examples of the same layer."""
        if (self.name, self.heads) != (other.name, other.heads):
            raise InputError(
                f"layer {self.layer} is {self.name} with {self.heads} heads in one part and {other.name} with "
                f"{other.heads} in the other; merge parts of one audit"
            )
        for claim, sums in other.claims.items():
            if claim in self.claims:
                self.claims[claim].merge(sums)
            else:
                self.claims[claim] = sums


def depth_curve(claim: Claim, layers: Sequence[LayerSums]) -> DepthCurve | None:
    """Return the curve over depth of a claim with role DEPTH, with its model's line first; None if nothing is known."""
    measured = [layer for layer in layers if claim in layer.claims and layer.claims[claim].value.count.any()]
    if not measured:
        return None
    sums = [layer.claims[claim] for layer in measured]
    lines = {THIS_MODEL: [layer.value for layer in sums]}
    for control in sums[0].controls:
        lines[control.name] = [layer.controls[control].value for layer in sums]
    return DepthCurve(
        theory=claim.theory,
        title=claim.statistic,
        quantity=claim.formula,
        layers=tuple(layer.layer for layer in measured),
        lines=tuple(_line(name, moments) for name, moments in lines.items()),
        note=claim.note,
    )


def _line(name: str, by_layer: Sequence[RunningMoments]) -> DepthLine:
    ends = [moments.interval() for moments in by_layer]
    return DepthLine(
        name=name,
        values=tuple(float(moments.mean.flat[0]) if moments.count.flat[0] else np.nan for moments in by_layer),
        intervals=tuple(Interval(float(low.flat[0]), float(high.flat[0])) for low, high in ends),
    )

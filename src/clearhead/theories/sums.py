"""The numbers of one claim at one layer, summed over inputs.

Running moments are kept, and of every input one number per claim and head, for comparisons with other audits. Sums of
two parts of the inputs can be merged, and saved and restored without losing a bit.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from clearhead.numerics.moments import Array, RunningMoments
from clearhead.numerics.precision import resolution
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Control, Sample

GROWTH = 1.25
"""The factor by which the table grows when it is full."""


class ControlSums:
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

    def merge(self, other: "ControlSums") -> None:
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
    def from_state(cls, state: Mapping[str, Any]) -> "ControlSums":
        """Return the sums that `state` was taken of."""
        sums = cls((), 0)
        sums.value, sums.difference = (RunningMoments.from_state(state[name]) for name in ("value", "difference"))
        sums.resolution, sums.largest = state["resolution"].copy(), state["largest"].copy()
        return sums


class Sums:
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
        self.controls: dict[Control, ControlSums] = {}
        self.examples = 0
        self.values = _Rows(heads)
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
        own = np.fmax(np.abs(sample.value), size if sample.size is None else np.fmax(sample.size, size))
        self.resolution = np.fmax(self.resolution, resolution(dtype, own))
        for control, draws in sample.controls.items():
            sums = self.controls.setdefault(control, ControlSums(draws.shape, len(sample.value)))
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

    def with_predictions(self, predicted: Array) -> "Sums":
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

    def merge(self, other: "Sums") -> None:
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
    def from_state(cls, state: Mapping[str, Any]) -> "Sums":
        """Return the sums that `state` was taken of."""
        sums = cls(len(state["covered"]))
        sums.value, sums.predicted, sums.deviation = (
            RunningMoments.from_state(state[name]) for name in ("value", "predicted", "deviation")
        )
        sums.resolution = state["resolution"].copy()
        sums.shared, sums.covered = state["shared"], state["covered"].copy()
        for entry in state["controls"]:
            sums.controls[Control(name=entry["name"], fixed=entry["fixed"])] = ControlSums.from_state(entry)
        sums.examples = state["examples"]
        sums.values.put(0, state["values"])
        sums.reasons = [_reason(entry) for entry in state["reasons"]]
        sums.undefined, sums.by_construction = state["undefined"], state["by_construction"]
        sums.caveats = Counter({_reason(entry): count for entry, count in state["caveats"]})
        return sums


class _Rows:
    """A table of numbers that grows by rows: 8 bytes for each number, and no object for each row.

    Rows that were not put are NaN.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: Array = np.empty((0, width))
        self._count = 0

    def put(self, index: int, rows: Array) -> None:
        """Put rows at consecutive indices, from `index` on, after all rows so far."""
        end = index + len(rows)
        if end > len(self._rows):
            larger = np.full((max(end, int(GROWTH * len(self._rows))), self._width), np.nan)
            larger[: self._count] = self._rows[: self._count]
            self._rows = larger
        self._rows[index:end] = rows
        self._count = end

    def table(self, count: int) -> Array:
        """Return the first `count` rows."""
        table = np.full((count, self._width), np.nan)
        filled = min(count, self._count)
        table[:filled] = self._rows[:filled]
        return table


def _mean_of_finite(draws: Array) -> Array:
    """Return the mean over the draws that are finite; NaN where none is."""
    finite = np.isfinite(draws)
    total = np.where(finite, draws, 0.0).sum(axis=0)
    return np.where(finite.any(axis=0), total / np.maximum(finite.sum(axis=0), 1), np.nan)


def _reason_state(reason: Reason) -> list[str]:
    return [str(reason.kind), reason.text]


def _reason(state: Sequence[str]) -> Reason:
    return Reason(ReasonKind(state[0]), state[1])

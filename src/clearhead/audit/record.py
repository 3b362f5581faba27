"""What one audit did and found: the facts that the terminal, the JSON file and the report all show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType

import numpy as np

from clearhead.audit.findings import Finding
from clearhead.heads import LayerRecord
from clearhead.numerics.moments import Interval, RunningMoments
from clearhead.theories.theory import Dispute

__all__ = ["AuditRecord", "DepthCurve", "DepthLine", "Fidelity", "ModelSymmetry", "Timing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Evidence that what was captured is what the model computes, measured on the first batch.

    `output_difference`: largest change of the model's output by being watched (0 means bit-identical).
    `recompute_error`: largest relative difference of the attention recomputed from q, k, v and mask to the model's own.
    `swap_error`: relative change of the model's output with exact softmax attention swapped in; at most `tolerance`.
    `control_change`: the same with uniform attention swapped in, which must show.
    """

    layers: tuple[LayerRecord, ...]
    output_difference: float
    recompute_error: float
    swap_error: float
    control_change: float
    tolerance: float
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSymmetry:
    """How far permuting a model's tokens is from permuting its outputs: relative errors, 0 for a function of sets.

    `layers` by place in the forward pass and `whole` for the model's output, NaN where there is not one vector per
    token; `unrelated` is the error of the output against an unrelated order. `reason` tells why something is missing.
    """

    layers: tuple[float, ...]
    whole: float
    unrelated: float
    inputs: int
    draws: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds by phase, and the process's peak memory in bytes (None where the system does not tell)."""

    check: float
    forward: float
    theory: dict[str, float]
    total: float
    peak_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthLine:
    """One quantity by layer: means over inputs, and Student's 95 % intervals of these; NaN where there is none."""

    name: str
    values: tuple[float, ...]
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCurve:
    """How a quantity goes with depth, as papers draw it: the model's line first, then those that are its chance.

    `layers` are places in the forward pass, one for each value of every line; `quantity` is what the values are of.
    """

    theory: str
    title: str
    quantity: str
    layers: tuple[int, ...]
    lines: tuple[DepthLine, ...]
    note: str = ""

    def beside(self, others: Sequence["DepthCurve"], *, name: str) -> "DepthCurve":
        """The same with the first lines of other models' curves as one more, second, where they have the same layers.

        Of several models it is their mean, and its intervals are Student's over them.
        """
        lines = [other.lines[0] for other in others if other.layers == self.layers]
        if not lines:
            return self
        first, *rest = self.lines
        return replace(self, lines=(first, replace(_mean_line(lines), name=name), *rest))


def _mean_line(lines: Sequence[DepthLine]) -> DepthLine:
    if len(lines) == 1:
        return lines[0]
    moments = RunningMoments((len(lines[0].values),))
    for line in lines:
        moments.add(np.array(line.values, dtype=np.float64))
    low, high = moments.interval()
    return DepthLine(
        name=lines[0].name,
        values=tuple(float(value) for value in moments.mean),
        intervals=tuple(Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Everything that one audit reports."""

    model: str
    data: str
    version: str
    created: str
    seed: int
    inputs: int
    tokens: int
    fidelity: Fidelity
    findings: tuple[Finding, ...]
    timing: Timing
    symmetry: ModelSymmetry | None = None
    disputes: tuple[Dispute, ...] = ()
    curves: tuple[DepthCurve, ...] = ()
    notes: tuple[str, ...] = ()
    """What to know of this audit before trusting its verdicts."""

    def __str__(self) -> str:
        """Return what was audited and the verdicts."""
        return str(_notebook().summary_text(self))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return str(_notebook().notebook_html(self))


def _notebook() -> ModuleType:
    # By name at the call: the report is built on this module, and a record can be used without it.
    return import_module("clearhead.report.notebook")

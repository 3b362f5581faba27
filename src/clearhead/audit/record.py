"""The record of one audit: the facts that the terminal, the JSON file and the report all show."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clearhead.audit.finding_table import FindingTable
from clearhead.audit.findings import Finding
from clearhead.audit.manifest import Manifest
from clearhead.audit.samples import ClaimSamples
from clearhead.audit.shown_inputs import ShownInput
from clearhead.errors import InputError
from clearhead.heads import LayerRecord
from clearhead.numerics.moments import Interval, RunningMoments
from clearhead.rendering import render
from clearhead.theories.catalogue import TheorySource
from clearhead.theories.theory import Dispute, ModelValues, PlainWords, Position

__all__ = ["AuditRecord", "DepthCurve", "DepthLine", "Fidelity", "Timing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Evidence that what was captured is what the model computes, measured on the first batch.

    `output_difference`: largest change of the model's output by capturing (0 means bit-identical).
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
class Timing:
    """Seconds by phase, and the process's peak memory in bytes (None where the system does not say)."""

    check: float
    forward: float
    theory: dict[str, float]
    total: float
    peak_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthLine:
    """One quantity by layer: means over inputs and Student's 95 % intervals of them; NaN where undefined."""

    name: str
    values: tuple[float, ...]
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCurve:
    """A quantity by layer, as papers draw it: the model's line first, then its controls.

    `layers` are numbers in forward-pass order, one for each value of every line; `quantity` labels the values.
    """

    theory: str
    title: str
    quantity: str
    layers: tuple[int, ...]
    lines: tuple[DepthLine, ...]
    note: str = ""

    def with_line(self, others: Sequence["DepthCurve"], *, name: str) -> "DepthCurve":
        """Add the first lines of other models' curves as the second line, where they have the same layers.

        Of several models the line is their mean, and its intervals are Student's over them.
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
    measured_claims: str = "all"
    """The claims that were measured: "primary" or "all"."""
    whole_model: tuple[ModelValues, ...] = ()
    disputes: tuple[Dispute, ...] = ()
    curves: tuple[DepthCurve, ...] = ()
    notes: tuple[str, ...] = ()
    """What to know about this audit before trusting its verdicts."""
    theories: tuple[TheorySource, ...] = ()
    """The theories that were measured, and the packages they come from."""
    samples: tuple[ClaimSamples, ...] = ()
    """The values of every claim and layer, input by input."""
    manifest: Manifest | None = None
    """Everything that the numbers depend on."""
    baselines: dict[str, int] = field(default_factory=dict)
    """The baselines that were measured, and the number of models of each."""
    words: dict[str, PlainWords] = field(default_factory=dict)
    """Theories and their verdicts for readers of another field, by title."""
    positions: dict[str, tuple[Position, ...]] = field(default_factory=dict)
    """What publications say on the theories, by title."""
    shown: tuple[ShownInput, ...] = ()
    """Inputs whose attention the report shows."""
    texts: tuple[str, ...] = ()
    """The beginning of every input as text; "" for inputs that are not tokens, empty if no input is."""

    def __getitem__(self, key: str) -> FindingTable:
        """Return the findings of one theory: `record["kernel-pca"].layer(3).head(5)`."""
        titles = {source.key: source.title for source in self.theories}
        if key not in titles:
            raise InputError(f"the record has no theory {key!r}; it has {', '.join(titles) or 'none'}")
        return FindingTable(tuple(f for f in self.findings if f.claim.theory == titles[key]))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as findings.json has them."""
        values: dict[str, Any] = render(self, "values")
        return values

    def layer(self, number: int) -> FindingTable:
        """Return the findings of all theories for one layer: `record.layer(3).head(5)`."""
        return FindingTable(self.findings).layer(number)

    def to_pandas(self) -> Any:
        """Return the findings as a pandas DataFrame, one row each."""
        return FindingTable(self.findings).to_pandas()

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the findings to a Parquet file, one row each."""
        FindingTable(self.findings).to_parquet(path)

    def __repr__(self) -> str:
        theories = ", ".join(source.key for source in self.theories)
        counts = f"inputs={self.inputs}, findings={len(self.findings)}, theories={theories!r}"
        return f"AuditRecord(model={self.model!r}, data={self.data!r}, {counts})"

    def __str__(self) -> str:
        """Return what was audited and the verdicts."""
        return str(render(self, "text"))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return str(render(self, "html"))

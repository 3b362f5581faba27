"""Two audits on the same inputs: paired differences of every claim in every head, with intervals and tests."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead.audit.findings import Verdict
from clearhead.audit.manifest import Manifest
from clearhead.audit.record import AuditRecord
from clearhead.audit.samples import ClaimSamples, ClaimSummary
from clearhead.audit.stored import StoredAudit, VerdictTable, read_audit
from clearhead.errors import InputError
from clearhead.numerics.moments import Array, Interval, RunningMoments, false_discovery_rate
from clearhead.numerics.precision import machine_epsilon, resolution, tolerance
from clearhead.rendering import render
from clearhead.theories.theory import Unit

__all__ = ["EQUAL", "RATE", "Comparison", "Difference", "Origin", "Outcome", "compare"]

RATE = 0.05
"""False discovery rate over all claims and heads of a comparison."""


class Outcome(StrEnum):
    """The judgement of one difference."""

    CHANGED = "changed"
    """The mean difference over inputs is not 0: its adjusted p-value is at most 5%."""
    NO_EVIDENCE = "no evidence of a change"
    ROUNDING = "equal up to rounding"
    """No input differs by more than half of the digits of the models' dtype."""
    IDENTICAL = "identical"
    """Every value is the same to the last bit."""
    UNDECIDED = "undecided"
    """No spread to compare with: one input, one group of inputs, or the same difference on all."""
    NOT_MEASURED = "not measured"
    """No input has a value in both audits."""


EQUAL = (Outcome.ROUNDING, Outcome.IDENTICAL)
JUDGED = (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED, Verdict.NO_EVIDENCE, Verdict.CONTRADICTED)
"""The verdicts that controls give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One claim in one head of both models. Means are over the `inputs` that have a value in both.

    difference: b - a, and Student's 95 % interval of its mean over inputs
    p_value: of Student's paired test; adjusted over all claims and heads for the false discovery rate
    verdicts: of a and of b, where both audits judged the head by its controls
    """

    claim: ClaimSummary
    layer: int
    name: str
    head: int
    a: float
    b: float
    difference: float
    interval: Interval
    p_value: float
    adjusted_p_value: float
    inputs: int
    outcome: Outcome
    verdicts: tuple[Verdict, Verdict] | None = None

    @property
    def verdict_differs(self) -> bool:
        """True if both audits judged the head and came to different verdicts."""
        return self.verdicts is not None and self.verdicts[0] is not self.verdicts[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The first layer in which two models differ, and the heads that differ by themselves."""

    layer: int
    heads: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that one comparison reports.

    manifest: what the audits depend on and differs, one line each; tensors: the names of the tensors that differ
    """

    a: str
    b: str
    data: str
    inputs: int
    differences: tuple[Difference, ...]
    manifest: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[Difference, ...]:
        """The differences that are significant, in the order of the audits."""
        return tuple(d for d in self.differences if d.outcome is Outcome.CHANGED)

    @property
    def heads(self) -> dict[tuple[int, int], Outcome]:
        """The outcome of every head that was measured, by layer and head: the first of `Outcome` among its claims.

        Claims on the residual stream, which the heads of a layer share, count only if no other claim was measured.
        """
        return self._outcomes(shared=False) or self._outcomes(shared=True)

    @property
    def streams(self) -> dict[tuple[int, int], Outcome]:
        """The same for claims on the residual stream."""
        return self._outcomes(shared=True)

    def _outcomes(self, *, shared: bool) -> dict[tuple[int, int], Outcome]:
        order = list(Outcome)
        outcomes: dict[tuple[int, int], Outcome] = {}
        for d in self.differences:
            if d.claim.unit is Unit.HEAD and d.claim.shared is shared and d.outcome is not Outcome.NOT_MEASURED:
                key = (d.layer, d.head)
                outcomes[key] = min(d.outcome, outcomes.get(key, Outcome.NOT_MEASURED), key=order.index)
        return dict(sorted(outcomes.items()))

    @property
    def origin(self) -> Origin | None:
        """Where the models begin to differ; None if all values are equal.

        A head differs by itself if a claim on its own tensors differs. If only claims on the residual stream differ,
        there are no heads: the difference is behind the attention of that layer.
        """
        unequal = [d for d in self.differences if d.outcome not in (*EQUAL, Outcome.NOT_MEASURED)]
        if not unequal:
            return None
        layer = min(d.layer for d in unequal)
        heads = {d.head for d in unequal if d.layer == layer and d.claim.unit is Unit.HEAD and not d.claim.shared}
        return Origin(layer=layer, heads=tuple(sorted(heads)))

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many heads have each outcome."""
        return dict(Counter(self.heads.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, as comparison.json has them."""
        values: dict[str, Any] = render(self, "values")
        return values

    def to_pandas(self) -> Any:
        """Return the differences as a pandas DataFrame, one row each."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas needs pandas; install it with: pip install pandas") from None
        return pandas.DataFrame(self.to_dict()["differences"])

    def __repr__(self) -> str:
        counts = f"inputs={self.inputs}, differences={len(self.differences)}, changed={len(self.changed)}"
        return f"Comparison(a={self.a!r}, b={self.b!r}, data={self.data!r}, {counts})"

    def __str__(self) -> str:
        """Return what was compared and what differs."""
        return str(render(self, "text"))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return str(render(self, "html"))


Audited = AuditRecord | StoredAudit
"""An audit that can be compared: a record, or one read from a report."""


def compare(a: Audited | str | Path, b: Audited | str | Path) -> Comparison:
    """Compare two audits on the same inputs, head by head and input by input.

    a, b: records of `clearhead.audit`, or folders of reports

    The same claim in the same head of the same layer is compared; its values are paired by input. Raise InputError if
    the audits have other inputs or other numbers of heads.
    """
    a, b = (read_audit(each) if isinstance(each, str | Path) else each for each in (a, b))
    before, after = _manifest(a), _manifest(b)
    _require_same_inputs(before, after)
    theirs = {_key(samples): samples for samples in b.samples}
    pairs = [(samples, theirs[_key(samples)]) for samples in a.samples if _key(samples) in theirs]
    if not pairs:
        raise InputError("the audits share no claim and layer; audit both models with the same theories and layers")
    digits = _coarsest(before, after)
    verdicts = _verdicts(a), _verdicts(b)
    differences = [
        replace(d, verdicts=_both_judged(d, *verdicts))
        for d in _adjusted([d for pair in pairs for d in _differences(*pair, digits)])
    ]
    names = dict.fromkeys((*before.weights, *after.weights))
    return Comparison(
        a=a.model,
        b=b.model,
        data=a.data,
        inputs=a.inputs,
        differences=tuple(differences),
        manifest=tuple(before.differences(after)),
        tensors=tuple(name for name in names if before.weights.get(name) != after.weights.get(name)),
        notes=tuple(_notes(a, b, before, after)),
    )


def _verdicts(audited: Audited) -> VerdictTable:
    """Return the verdict of every claim, layer and head."""
    if isinstance(audited, StoredAudit):
        return audited.verdicts
    return {(f.claim.theory, f.claim.statistic, f.layer, f.head): f.verdict for f in audited.findings}


def _both_judged(d: Difference, a: VerdictTable, b: VerdictTable) -> tuple[Verdict, Verdict] | None:
    key = d.claim.theory, d.claim.statistic, d.layer, d.head
    first, second = a.get(key), b.get(key)
    return (first, second) if first in JUDGED and second in JUDGED else None


def _manifest(audited: Audited) -> Manifest:
    if audited.manifest is None or not audited.samples:
        raise InputError(f"the audit of {audited.model} has no values input by input; run the audit again")
    return audited.manifest


def _require_same_inputs(before: Manifest, after: Manifest) -> None:
    """Raise InputError unless both audits had the same batches, or batches of the same text."""
    if before.data != after.data and (before.text is None or before.text != after.text):
        raise InputError("the audits are on different inputs, so values cannot be paired; audit both on the same")


def _key(samples: ClaimSamples) -> tuple[str, str, int]:
    return samples.claim.theory, samples.claim.statistic, samples.layer


def _coarsest(*manifests: Manifest) -> torch.dtype:
    names = {name for manifest in manifests for name in manifest.dtype}
    dtypes = [dtype for name in names if isinstance(dtype := getattr(torch, name, None), torch.dtype)]
    return max((d for d in dtypes if d.is_floating_point), key=machine_epsilon, default=torch.float32)


def _differences(a: ClaimSamples, b: ClaimSamples, dtype: torch.dtype) -> Iterator[Difference]:
    if a.values.shape != b.values.shape:
        (inputs, heads), (other_inputs, other_heads) = a.values.shape, b.values.shape
        raise InputError(
            f"layer {a.layer} has {heads} heads and {inputs} samples in one audit and {other_heads} heads and "
            f"{other_inputs} samples in the other, so they cannot be paired; compare models of one shape on the same "
            "inputs"
        )
    step = b.values - a.values
    paired = np.isfinite(step)
    moments = RunningMoments((step.shape[1],))
    for row in step:
        moments.add(row)
    low, high = moments.interval()
    size = np.fmax(*(np.fmax.reduce(np.where(paired, np.abs(x), 0.0), axis=0) for x in (a.values, b.values)))
    p_values = moments.p_value(resolution(dtype, size))
    for head in range(step.shape[1]):
        known = paired[:, head]
        ours, theirs = a.values[known, head], b.values[known, head]
        yield Difference(
            claim=a.claim,
            layer=a.layer,
            name=a.name,
            head=head,
            a=_mean(ours),
            b=_mean(theirs),
            difference=float(moments.mean[head]) if known.any() else np.nan,
            interval=Interval(float(low[head]), float(high[head])),
            p_value=float(p_values[head]),
            adjusted_p_value=np.nan,
            inputs=int(known.sum()),
            outcome=_untested(a.values[:, head], b.values[:, head], dtype, tested=bool(np.isfinite(p_values[head]))),
        )


def _untested(a: Array, b: Array, dtype: torch.dtype, *, tested: bool) -> Outcome:
    """Return the outcome where no test is needed or possible, and otherwise NO_EVIDENCE.

    Two runs of a model may differ by more than the resolution of a statistic, as models amplify rounding.
    """
    known = np.isfinite(a) & np.isfinite(b)
    if not known.any():
        return Outcome.NOT_MEASURED
    if np.array_equal(a, b, equal_nan=True):
        return Outcome.IDENTICAL
    size = max(np.abs(a[known]).max(), np.abs(b[known]).max())
    if np.abs(b[known] - a[known]).max() <= max(machine_epsilon(dtype) ** 0.5 * size, tolerance(dtype)):
        return Outcome.ROUNDING
    return Outcome.NO_EVIDENCE if tested else Outcome.UNDECIDED


def _adjusted(differences: Sequence[Difference]) -> list[Difference]:
    """Adjust the p-values and call the changes. What is equal counts as a test with p-value 1."""
    p_values = [1.0 if d.outcome in EQUAL else d.p_value for d in differences]
    adjusted = false_discovery_rate(np.array(p_values, dtype=np.float64))
    return [
        replace(
            d,
            adjusted_p_value=float(p),
            outcome=Outcome.CHANGED if d.outcome is Outcome.NO_EVIDENCE and p <= RATE else d.outcome,
        )
        for d, p in zip(differences, adjusted, strict=True)
    ]


def _notes(a: Audited, b: Audited, before: Manifest, after: Manifest) -> Iterator[str]:
    for letter, manifest, audited in (("A", before, a), ("B", after, b)):
        for path, operator in manifest.swaps.items():
            yield f"{letter} ({audited.model}) has {operator} at {path}; theories of softmax attention skip that layer"
    if a.seed != b.seed:
        yield f"the controls of A were drawn with seed {a.seed} and those of B with seed {b.seed}"
    layers = [{samples.layer for samples in audited.samples} for audited in (a, b)]
    for letter, alone in (("A", layers[0] - layers[1]), ("B", layers[1] - layers[0])):
        if alone:
            yield f"only {letter} has values of layer {', '.join(str(layer) for layer in sorted(alone))}"


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else float("nan")

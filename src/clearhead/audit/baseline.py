"""The baseline: the same model before training, drawn once or several times and measured on the same inputs.

Each drawn model is measured twice: as it is, and with the normalisation of the trained model (`models.norms`).
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from clearhead._swap.notes import find_swaps
from clearhead.audit.findings import ControlResult, Finding, Verdict
from clearhead.audit.part import Pass
from clearhead.audit.record import DepthCurve
from clearhead.audit.results import curves_of, findings_of
from clearhead.audit.samples import ClaimSamples
from clearhead.errors import AuditError
from clearhead.interfaces.placement import full_weights
from clearhead.loading.model import baseline_draw
from clearhead.loading.norms import has_norms, norm_values, with_norms
from clearhead.loading.objects import LoadError
from clearhead.numerics.moments import (
    Array,
    Interval,
    difference_p_value,
    evenly_spaced,
    prediction_error,
    student_quantile,
)
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Need, Theory

__all__ = [
    "BASELINE",
    "BASELINE_DRAWS",
    "BASELINE_INPUTS",
    "TRAINED_NORMS",
    "Baseline",
    "baseline_models",
    "baseline_of",
    "baseline_seeds",
    "draw_baselines",
    "with_baseline",
]

BASELINE = "the same head before training"
TRAINED_NORMS = f"{BASELINE}, with the trained norms"
BASELINE_DRAWS = 5
"""Number of models with fresh random weights that form the baseline."""
BASELINE_INPUTS = 12
"""Number of inputs that each of these models is measured on: the first ones. Models differ more than inputs do."""
NO_BASELINE = Reason(
    ReasonKind.NO_BASELINE, "not compared with several draws of the model before training, which may do as well"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Findings and curves of the baseline models, one model after the other, and the number of models.

    with_norms: findings of the same models with the trained norms; empty if these are the norms of the baseline too
    """

    findings: list[Finding]
    with_norms: list[Finding]
    curves: list[DepthCurve]
    models: int

    @property
    def counts(self) -> dict[str, int]:
        """The number of models by the name of the control that they are."""
        counts = {BASELINE: self.models if self.findings else 0, TRAINED_NORMS: self.models if self.with_norms else 0}
        return {name.replace("head", "model"): count for name, count in counts.items() if count}

    def curves_like(self, curve: DepthCurve) -> list[DepthCurve]:
        """Return the same curve of every model."""
        return [other for other in self.curves if (other.theory, other.title) == (curve.theory, curve.title)]


def baseline_seeds(seed: int) -> list[int]:
    """Return the seeds of the baseline models of an audit."""
    return [seed + index for index in range(BASELINE_DRAWS)]


def draw_baselines(model: nn.Module, seed: int) -> Iterator[nn.Module] | None:
    """Return the model with fresh random weights, drawn several times, each when it is needed.

    Return None if Clearhead cannot draw them: for models that are neither of transformers nor its own, and for models
    with a swapped operator, which a fresh model would not have.
    """
    draw = None if find_swaps(model) else baseline_draw(model, type(model).__name__)
    if draw is None:
        return None
    first, *others = baseline_seeds(seed)
    try:
        model = draw(first)
    except LoadError:
        return None
    return itertools.chain([model], (draw(other) for other in others))


def baseline_models(
    trained: nn.Module, models: Iterable[nn.Module], theories: Sequence[Theory]
) -> Generator[tuple[nn.Module, Sequence[Theory], int, bool], None, None]:
    """Yield each baseline model with the theories to measure on it, its number and whether it has the trained norms.

    All theories are measured on the first model, and those that are judged by the baseline on the others too. These
    are measured again on each model with the norms of the `trained` one, unless it has them already: a trained gain
    alone can change a statistic, and an initial gain is 1. No model is copied, and its own norms are restored.
    """
    judged = [theory for theory in theories if Need.BASELINE in theory.needs]
    norms = _complete_norms(trained)
    for number, model in enumerate(models):
        compared = theories if number == 0 else judged
        if not compared:
            break
        yield model, compared, number, False
        if judged and not has_norms(model, norms):
            with with_norms(model, norms):
                yield model, judged, number, True


def _complete_norms(model: nn.Module) -> dict[str, Tensor]:
    """Return the norms of a model, also of one whose weights are offloaded or divided among processes."""
    own = norm_values(model)
    return own | {name: value for name, value in full_weights(model) if name in own}


def baseline_of(passes: Sequence[Pass], findings: Sequence[Finding], audited: Pass) -> Baseline:
    """Return the findings of the baseline models, which must match the `findings` and inputs of the audited model."""
    baseline = Baseline(findings=[], with_norms=[], curves=[], models=0)
    differ = any(each.norms for each in passes)
    normed = {each.baseline: each for each in passes if each.norms}
    for pass_ in passes:
        measured = _findings(pass_, pass_.theories)
        titles = [theory.title for theory in pass_.theories]
        _require_match(
            findings,
            measured,
            titles=titles,
            same_inputs=(pass_.inputs, pass_.tokens) == (audited.inputs, audited.tokens)
            if audited.inputs <= BASELINE_INPUTS
            else BASELINE_INPUTS <= pass_.inputs <= audited.inputs,
        )
        if pass_.norms:
            continue
        again = normed.get(pass_.baseline, pass_)
        judged = [theory for theory in pass_.theories if Need.BASELINE in theory.needs]
        baseline = Baseline(
            findings=baseline.findings + measured,
            with_norms=baseline.with_norms + _findings(again, judged),
            curves=baseline.curves + [curve for theory in pass_.theories for curve in curves_of(pass_, theory)],
            models=baseline.models + 1,
        )
    return baseline if differ else dataclasses.replace(baseline, with_norms=[])


def _findings(pass_: Pass, theories: Iterable[Theory]) -> list[Finding]:
    return [finding for theory in theories for finding in findings_of(pass_, theory)]


def _require_match(
    findings: Sequence[Finding], baseline: Sequence[Finding], *, titles: Sequence[str], same_inputs: bool
) -> None:
    """Raise AuditError if the baseline has another architecture, got other inputs, or has no values in a layer."""
    trained = {(f.claim, f.layer, f.head): f.inputs for f in findings if f.claim.theory in titles}
    untrained = {(f.claim, f.layer, f.head): f.inputs for f in baseline}
    if not same_inputs or trained.keys() != untrained.keys():
        raise AuditError(
            "the baseline did not get the same inputs with the same heads; give batches that can be iterated over "
            "twice, and a model of the same architecture"
        )
    measured, at_start = (
        {(claim.theory, layer) for (claim, layer, _), inputs in counts.items() if inputs}
        for counts in (trained, untrained)
    )
    # A single claim may be missing, as those of max margin on saturated heads alone are: it has no baseline then.
    silent = sorted(measured - at_start)
    if silent:
        theory, layer = silent[0]
        raise AuditError(
            f"the baseline gives no value for {theory} at layer {layer}, where the model does; are its weights "
            "finite? Leave the baseline out, or draw it again"
        )


def with_baseline(
    findings: Iterable[Finding],
    baseline: Iterable[Finding],
    with_norms: Iterable[Finding] = (),
    *,
    seed: int,
    decisive: Collection[str] = (),
    samples: Iterable[ClaimSamples] = (),
) -> list[Finding]:
    """Add the same head of the baseline models to every finding as one more control, where both were measured.

    `baseline` are the findings of one model or of several, one after the other; those `with_norms`, of the same models
    with the trained norms, are a second control. The head is compared on the inputs of the baseline alone, by its
    `samples`. A control is shown and not judged by, with Welch's test over inputs against the first model: its head has
    other keys, on which the same number may have another meaning. If the claim's theory is among the `decisive` and
    there are several models, the head must lie outside the spread of one more draw; a single model says nothing about
    that spread. A finding of such a theory without several models gets the reason `NO_BASELINE`, and cannot be decided.
    """
    by_head = {BASELINE: _by_head(baseline), TRAINED_NORMS: _by_head(with_norms)}
    values = {(s.claim.theory, s.claim.statistic, s.layer): s.values for s in samples}

    def compared(finding: Finding) -> Finding:
        if not finding.inputs or finding.verdict is Verdict.TRUE_BY_CONSTRUCTION:
            return finding
        key = (finding.claim, finding.layer, finding.head)
        judged = finding.claim.theory in decisive
        if judged and len(by_head[BASELINE][key]) < 2:
            finding = dataclasses.replace(finding, reasons=(*finding.reasons, NO_BASELINE))
        for name, starts in ((name, heads[key]) for name, heads in by_head.items() if heads[key]):
            several = judged and len(starts) > 1
            by_input = values.get((finding.claim.theory, finding.claim.statistic, finding.layer))
            head = _Head.of(finding, starts[0], by_input)
            test = _against_all(head, starts, seed) if several else _against_first(head, starts[0], seed)
            control = dataclasses.replace(test, name=name.replace("head", finding.claim.unit))
            finding = dataclasses.replace(finding, controls=(*finding.controls, control))
        return finding

    return [compared(finding) for finding in findings]


def _by_head(baseline: Iterable[Finding]) -> defaultdict[tuple[Claim, int, int], list[Finding]]:
    by_head = defaultdict(list)
    for finding in (finding for finding in baseline if finding.inputs):
        by_head[finding.claim, finding.layer, finding.head].append(finding)
    return by_head


@dataclass(frozen=True, slots=True)
class _Head:
    """The value of a head over the inputs of the baseline, its standard deviation over them, and their number."""

    value: float
    deviation: float
    inputs: int
    resolution: float

    @classmethod
    def of(cls, finding: Finding, start: Finding, by_input: Array | None) -> "_Head":
        """Return the head on the inputs of `start`; on all of its own if samples are missing."""
        count = start.inputs + start.skipped
        values = np.zeros(0) if by_input is None else by_input[:count, finding.head]
        values = values[np.isfinite(values)]
        if len(values) < 2 or len(values) == finding.inputs:
            return cls(finding.value, _deviation(finding), finding.inputs, finding.resolution)
        return cls(float(values.mean()), float(values.std(ddof=1)), len(values), finding.resolution)


def _against_first(head: _Head, start: Finding, seed: int) -> ControlResult:
    at_start = _deviation(start)
    a, b = head.deviation**2 / head.inputs, at_start**2 / start.inputs
    freedom = (a + b) ** 2 / (a**2 / max(head.inputs - 1, 1) + b**2 / max(start.inputs - 1, 1)) if a + b else 1.0
    difference, resolution = head.value - start.value, max(head.resolution, start.resolution)
    return ControlResult(
        name=BASELINE,
        value=start.value,
        range=start.interval,
        draws=1,
        seed=seed,
        p_value=float(difference_p_value(difference, math.sqrt(a + b), freedom, resolution)),
        decisive=False,
    )


def _against_all(head: _Head, starts: Sequence[Finding], seed: int) -> ControlResult:
    """Test by Student's prediction interval: draws differ as the head may differ from them, plus the head's error."""
    values = np.array([start.value for start in starts], dtype=np.float64)
    low, high = np.quantile(values, [0.025, 0.975])
    error = head.deviation / math.sqrt(head.inputs) if head.inputs > 1 else math.nan
    difference, error = head.value - float(values.mean()), prediction_error(values, error=error)
    resolution = max(head.resolution, *(start.resolution for start in starts))
    return ControlResult(
        name=BASELINE,
        value=float(values.mean()),
        range=Interval(float(low), float(high)),
        draws=len(values),
        seed=seed,
        p_value=float(difference_p_value(difference, error, len(values) - 1, resolution)),
        difference=difference,
        error=error,
        freedom=len(values) - 1,
        resolution=resolution,
        sample=evenly_spaced(values),
    )


def _deviation(finding: Finding) -> float:
    """Return the standard deviation over inputs, from Student's interval of the mean."""
    half = (finding.interval.high - finding.interval.low) / 2
    return half / float(student_quantile(0.975, max(finding.inputs - 1, 1))) * math.sqrt(finding.inputs)

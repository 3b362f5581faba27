"""From what the theories of a pass have summed to findings without verdicts, curves, samples and notes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from clearhead.audit.findings import ControlResult, Finding, Verdict
from clearhead.audit.part import Pass
from clearhead.audit.record import DepthCurve, DepthLine
from clearhead.audit.samples import ClaimSamples
from clearhead.numerics.moments import (
    Interval,
    RunningMoments,
    difference_p_value,
    evenly_spaced,
    prediction_error,
)
from clearhead.theories.accumulator import Accumulator
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.sums import Sums
from clearhead.theories.theory import Claim, Control, Role, Theory

__all__ = ["claim_findings", "curves_of", "findings_of", "notes_of", "samples_of"]

THIS_MODEL = "this model"
UNPREDICTED = Reason(ReasonKind.NO_PREDICTION, "the predicted value could not be computed")


def findings_of(pass_: Pass, theory: Theory) -> list[Finding]:
    """Return a finding for every claim of the theory, layer and head, without verdicts from controls."""
    by_layer = _sums_by_layer(pass_, theory)
    results = [
        finding
        for claim in theory.claims
        if claim.role is not Role.DEPTH
        for layer, sums in by_layer
        if claim in sums
        for finding in claim_findings(sums[claim], claim, layer.layer, layer.name, pass_.seed)
    ]
    return _with_requirements(results)


def curves_of(pass_: Pass, theory: Theory) -> list[DepthCurve]:
    """Return the theory's curves over depth."""
    by_layer = _sums_by_layer(pass_, theory)
    curves = (_curve(claim, by_layer) for claim in theory.claims if claim.role is Role.DEPTH)
    return [curve for curve in curves if curve is not None]


def samples_of(pass_: Pass, theory: Theory) -> list[ClaimSamples]:
    """Return the values of every claim of the theory and layer, input by input."""
    return [
        ClaimSamples.of(theory, claim, layer.layer, layer.name, sums[claim].by_example())
        for layer, sums in _sums_by_layer(pass_, theory)
        for claim in theory.claims
        if claim in sums and claim.role is not Role.DEPTH
    ]


def notes_of(pass_: Pass, theory: Theory) -> list[str]:
    """Return what to know of the inputs before trusting the theory's numbers."""
    counts: dict[str, dict[int, int]] = {}
    for layer, by_claim in _sums_by_layer(pass_, theory):
        for sums in by_claim.values():
            for caveat, count in sums.caveats.items():
                counts.setdefault(caveat.text, {})[layer.layer] = count
    return [
        f"{theory.title}: {text} in {max(by_layer.values())} inputs at "
        f"{'layer' if len(by_layer) == 1 else 'layers'} {', '.join(map(str, by_layer))}"
        for text, by_layer in counts.items()
    ]


def _sums_by_layer(pass_: Pass, theory: Theory) -> list[tuple[Accumulator, Mapping[Claim, Sums]]]:
    return [(layer, layer.finish()) for layer in pass_.layers_of(theory)]


def claim_findings(sums: Sums, claim: Claim, layer: int, name: str, seed: int) -> Iterator[Finding]:
    """Yield the finding of every head at one layer, without a verdict unless the claim holds by construction."""
    low, high = sums.value.interval()
    low_deviation, high_deviation = sums.deviation.interval()
    undefined = [Reason(ReasonKind.UNDEFINED, claim.undefined)] if sums.undefined else []
    uncovered = Reason(ReasonKind.NOT_COVERED, claim.uncovered)
    for head in range(len(sums.value.count)):
        count = int(sums.value.count[head])
        predicted = float(sums.predicted.mean[head]) if sums.predicted.count[head] else np.nan
        unpredicted = claim.predicted is None and claim.direction is None and count and np.isnan(predicted)
        yield Finding(
            claim=claim,
            layer=layer,
            name=name,
            head=head,
            value=float(sums.value.mean[head]) if count else np.nan,
            interval=Interval(float(low[head]), float(high[head])),
            predicted=predicted if claim.predicted is None else claim.predicted,
            controls=tuple(_control(sums, control, head, seed) for control in sums.controls),
            inputs=count,
            skipped=sums.examples - count,
            reasons=(
                *((*sums.reasons, *undefined) if sums.examples > count else ()),
                *(() if sums.covered[head] else (uncovered,)),
                *((UNPREDICTED,) if unpredicted else ()),
            ),
            applies=bool(sums.covered[head]),
            verdict=Verdict.TRUE_BY_CONSTRUCTION if sums.by_construction and count else Verdict.UNDECIDED,
            deviation=Interval(float(low_deviation[head]), float(high_deviation[head]))
            if sums.deviation.count[head]
            else None,
            shared=sums.shared,
            resolution=float(sums.resolution[head]),
        )


def _control(sums: Sums, control: Control, head: int, seed: int) -> ControlResult:
    """Return the test of one head against one control.

    Draws made for each input are compared with the head input by input. Fixed draws are a sample of what the head
    might have been: the head must lie outside their spread, widened by its own error over inputs. That error is the
    smaller of the value's and of the difference's, because head and draws often vary together.
    """
    null = sums.controls[control]
    draws = null.value.mean[:, head][null.value.count[:, head] > 0]
    draws = draws if draws.size else np.array([np.nan])
    low, high = np.quantile(draws, [0.025, 0.975])
    difference, error = float(null.difference.mean[head]), float(null.difference.standard_error()[head])
    freedom = int(null.difference.count[head]) - 1
    if control.fixed:
        compared, counted = int(null.difference.count[head]), int(sums.value.count[head])
        value, own_error = float(sums.value.mean[head]), float(sums.value.standard_error()[head])
        if compared < counted:
            # Some examples have no draws: the head is compared by its mean over the others.
            value = float(null.difference.mean[head] + draws.mean())
            own_error *= math.sqrt(counted / max(compared, 1))
        difference = difference and value - float(draws.mean())
        error, freedom = prediction_error(draws, error=min(error, own_error)), len(draws) - 1
    resolved = float(null.resolution[head])
    p = float(difference_p_value(difference, error, freedom, resolved))
    return ControlResult(
        name=control.name,
        value=float(draws.mean()),
        range=Interval(float(low), float(high)),
        draws=len(draws),
        seed=seed,
        p_value=p if sums.value.count[head] > 1 else np.nan,
        difference=difference,
        error=error,
        freedom=max(freedom, 0),
        resolution=resolved,
        largest=float(null.largest[head]),
        sample=evenly_spaced(draws),
    )


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


def _curve(claim: Claim, by_layer: Sequence[tuple[Accumulator, Mapping[Claim, Sums]]]) -> DepthCurve | None:
    """Return the curve over depth of a claim with role DEPTH, with its model's line first; None if nothing is known."""
    measured = [(layer, sums[claim]) for layer, sums in by_layer if claim in sums and sums[claim].value.count.any()]
    if not measured:
        return None
    sums = [of_layer for _, of_layer in measured]
    lines = {THIS_MODEL: [layer.value for layer in sums]}
    for control in sums[0].controls:
        lines[control.name] = [layer.controls[control].value for layer in sums]
    return DepthCurve(
        theory=claim.theory,
        title=claim.statistic,
        quantity=claim.formula,
        layers=tuple(layer.layer for layer, _ in measured),
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

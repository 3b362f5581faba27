"""From findings to verdicts, by one rule for every theory, and to what all heads say together."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.audit.findings import ControlResult, Finding, NoEvidence, Verdict
from clearhead.audit.rounding import ROUNDING, move_by_rounding
from clearhead.numerics.moments import Array, Interval, false_discovery_rate, median_interval, student_quantile
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Direction, Role

__all__ = ["HALF", "SMALL", "SUPPORT", "Summary", "judge", "summarise"]

SUPPORT = 0.9
"""Least agreement, over its whole interval, of a head that supports a theory."""
HALF = 0.5
"""Agreement that must be detectable for "no evidence" to mean that the head is equivalent to the controls."""
SMALL = 0.05
"""The same for claims that predict only a direction, as a difference: they are shares and relative changes."""
UNTESTED = Reason(ReasonKind.NO_CONTROL, "no control was measured")


def judge(findings: Iterable[Finding], *, rate: float = 0.05) -> list[Finding]:
    """Give every finding its verdict, with false discoveries held to `rate` among the heads of each claim.

    - not applicable: nothing could be measured, or the theory makes no statement about the head
    - not judged: the claim is a statistic as published
    - undecided: fewer than two inputs, a difference without spread, no control or predicted value, or no baseline
      where the theory is judged by it
    - no evidence: the head does not lie on one side of every decisive control with an adjusted p-value of at most
      `rate`; or the predicted value itself lies among the controls. `Finding.no_evidence` has the kind
    - contradicted: the head lies beyond every decisive control on the side away from the theory
    - supported: it lies on the theory's side, and the whole interval of its agreement is at least 0.9 (and at most 1.1
      where a value can exceed the predicted one). A claim with a direction only needs no more than that side.
    - partly supported: it lies on the theory's side, and the interval reaches outside of these limits

    A head that equals a decisive control within rounding has no evidence, whatever the other controls say. A finding is
    borderline if another verdict is within rounding: its claim is judged again with all differences a resolution larger
    or smaller, and all spreads half of one.

    Heads that share a number, as query heads that share keys and values do, are tested once.
    """
    findings = list(findings)
    families: dict[Claim, list[int]] = defaultdict(list)
    for i, finding in enumerate(findings):
        families[finding.claim].append(i)
    for members in families.values():
        family = [findings[i] for i in members]
        judged = _judge_claim(family, rate)
        moved = [_judge_claim([move_by_rounding(f, *signs) for f in family], rate) for signs in ROUNDING]
        for i, finding, others in zip(members, judged, zip(*moved, strict=True), strict=True):
            near = finding.borderline or any(other.verdict is not finding.verdict for other in others)
            findings[i] = dataclasses.replace(finding, borderline=near)
    return findings


def _judge_claim(family: Sequence[Finding], rate: float) -> list[Finding]:
    """Give the findings of one claim their verdicts."""
    keys = [(finding.layer, finding.head // finding.shared) for finding in family]
    p_values = {key: finding.p_value for key, finding in zip(keys, family, strict=True)}
    adjusted = false_discovery_rate(np.array([*p_values.values()], dtype=np.float64))
    by_key = dict(zip(p_values, adjusted, strict=True))
    return [
        _judged(finding, float(by_key[key]), rate, tests=len(p_values))
        for key, finding in zip(keys, family, strict=True)
    ]


def _judged(finding: Finding, p: float, rate: float, *, tests: int) -> Finding:
    verdict = _verdict(finding, p, rate)
    detectable = _detectable(finding, rate / tests) if math.isfinite(p) else math.nan
    kind = _no_evidence(finding, detectable, rate) if verdict is Verdict.NO_EVIDENCE else None
    untested = verdict is Verdict.UNDECIDED and not finding.controls and not finding.reasons
    return dataclasses.replace(
        finding,
        verdict=verdict,
        adjusted_p_value=p,
        detectable=detectable,
        no_evidence=kind,
        reasons=(UNTESTED,) if untested else finding.reasons,
    )


def _detectable(finding: Finding, rate: float) -> float:
    """Return the smallest agreement at which a head would lie beyond every decisive control at this rate.

    For a claim that predicts only a direction: the smallest difference from the closest control.
    """
    null = finding.closest_control.value
    if finding.claim.direction is None:
        span = finding.predicted - null
    else:
        span = -1.0 if finding.claim.direction is Direction.LOWER else 1.0
    if not math.isfinite(span) or abs(span) < 1e-9:
        return math.nan
    side = math.copysign(1.0, span)
    known = [control for control in finding.controls if control.decisive and math.isfinite(control.value)]
    needed = [
        (control.value - null - side * control.error * float(student_quantile(rate / 2, max(control.freedom, 1))))
        / span
        for control in known
    ]
    return max(needed, default=math.nan) if not any(map(math.isnan, needed)) else math.nan


def _no_evidence(finding: Finding, detectable: float, rate: float) -> NoEvidence:
    if any(control.decisive and control.equal for control in finding.controls):
        return NoEvidence.EQUAL
    significant = [c for c in finding.controls if c.decisive and math.isfinite(c.value) and c.p_value <= rate]
    if any(finding.value > c.value for c in significant) and any(finding.value < c.value for c in significant):
        return NoEvidence.BETWEEN
    enough = HALF if finding.claim.direction is None else SMALL
    return NoEvidence.EQUIVALENT if detectable <= enough else NoEvidence.TOO_LITTLE_POWER


def _verdict(finding: Finding, p: float, rate: float) -> Verdict:
    if finding.verdict is Verdict.TRUE_BY_CONSTRUCTION:
        return finding.verdict
    if not finding.applies or finding.inputs == 0 or not math.isfinite(finding.value):
        return Verdict.NOT_APPLICABLE
    if finding.claim.role is Role.PUBLISHED:
        return Verdict.NOT_JUDGED
    if any(control.decisive and control.equal for control in finding.controls):
        return Verdict.NO_EVIDENCE
    if not math.isfinite(p) or any(reason.kind is ReasonKind.NO_BASELINE for reason in finding.reasons):
        return Verdict.UNDECIDED
    if finding.claim.direction is None and not math.isfinite(finding.predicted):
        return Verdict.UNDECIDED
    if p > rate:
        return Verdict.NO_EVIDENCE
    if finding.claim.direction is not None:
        lower = finding.value < finding.closest_control.value
        return Verdict.SUPPORTED if lower is (finding.claim.direction is Direction.LOWER) else Verdict.CONTRADICTED
    known = [control.value for control in finding.controls if control.decisive and math.isfinite(control.value)]
    if min(known) <= finding.predicted <= max(known) and min(known) < max(known):
        return Verdict.NO_EVIDENCE
    toward_theory = (finding.value - finding.closest_control.value) * (
        finding.predicted - finding.closest_control.value
    ) > 0
    if not toward_theory:
        return Verdict.CONTRADICTED
    ends = (finding.agreement_interval.low, finding.agreement_interval.high)
    passed = max(ends) > 2 - SUPPORT and finding.claim.predicted is None
    return Verdict.SUPPORTED if min(ends) >= SUPPORT and not passed else Verdict.PARTLY_SUPPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One claim over all heads: medians over the heads that it applies to, and how many heads have each verdict.

    `controls` has the median of each control by name; `decisive` names the controls that are judged by; `no_evidence`
    counts the kinds of "no evidence", and `detectable` is the median over these heads; `deciding` is the control that
    decides in most heads; `borderline` counts the heads whose verdict rounding could change.
    """

    claim: Claim
    heads: int
    median: float
    interval: Interval
    predicted: float
    controls: dict[str, float]
    decisive: tuple[str, ...]
    verdicts: dict[Verdict, int]
    no_evidence: dict[NoEvidence, int] = dataclasses.field(default_factory=dict)
    detectable: float = math.nan
    deciding: str = ""
    borderline: int = 0

    @property
    def measured(self) -> int:
        """Number of heads on which the claim was measured."""
        return self.heads - self.verdicts.get(Verdict.NOT_APPLICABLE, 0)

    @property
    def verdict(self) -> str:
        """One sentence on all heads: the verdict that most of the measured heads share, and how many do."""
        counts = {v: c for v, c in self.verdicts.items() if v is not Verdict.NOT_APPLICABLE and c}
        if not counts:
            return str(Verdict.NOT_APPLICABLE)
        verdict, count = max(counts.items(), key=lambda item: item[1])
        if count < self.measured:
            return f"{verdict} in {count} of {self.measured} {self.claim.unit}s"
        return str(verdict) if count == self.heads or count > 1 else f"{verdict} in the only {self.claim.unit} judged"


def summarise(findings: Iterable[Finding]) -> list[Summary]:
    """One summary per claim, in the order in which the claims appear."""
    families: dict[Claim, list[Finding]] = defaultdict(list)
    for finding in findings:
        families[finding.claim].append(finding)
    return [_summary(claim, family) for claim, family in families.items()]


def _summary(claim: Claim, family: Sequence[Finding]) -> Summary:
    measured = [f for f in family if f.verdict is not Verdict.NOT_APPLICABLE and math.isfinite(f.value)]
    values = np.array([f.value for f in measured])
    by_control: dict[str, list[ControlResult]] = defaultdict(list)
    for control in (control for f in measured for control in f.controls):
        by_control[control.name].append(control)
    return Summary(
        claim=claim,
        heads=len(family),
        median=_median(values),
        interval=median_interval(values),
        predicted=_median([f.predicted for f in measured]),
        controls={name: _median([c.value for c in results]) for name, results in by_control.items()},
        decisive=tuple(dict.fromkeys(control.name for f in measured for control in f.controls if control.decisive)),
        verdicts=dict(Counter(f.verdict for f in family)),
        no_evidence=dict(Counter(f.no_evidence for f in family if f.no_evidence is not None)),
        detectable=_median([f.detectable for f in family if f.no_evidence is not None]),
        borderline=sum(f.borderline for f in family),
        deciding=_most_common(f.deciding_control.name for f in measured if f.deciding_control.draws),
    )


def _most_common(names: Iterable[str]) -> str:
    counts = Counter(names)
    return max(counts, key=lambda name: counts[name], default="")


def _median(values: Sequence[float] | Array) -> float:
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.median(known)) if known.size else math.nan

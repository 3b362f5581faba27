"""From findings to verdicts, by one rule for every theory, and to what all heads say together."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from clearhead.audit.findings import Chance, Finding, Verdict
from clearhead.numerics.moments import Array, Interval, false_discovery_rate, median_interval, prediction_p_value
from clearhead.theories.theory import Claim, Direction, Unit

__all__ = ["UNTRAINED", "Summary", "beside_untrained", "judge", "summarise"]

UNTRAINED = "the same head before training"
SUPPORT = 0.9
"""A head agrees with a theory when the whole interval of its agreement is within so much of 1."""


def judge(findings: Iterable[Finding], *, rate: float = 0.05) -> list[Finding]:
    """Give every finding its verdict, with false discoveries held to `rate` among the heads of each claim.

    - not applicable: nothing could be measured, or the theory makes no statement about the head
    - undecided: fewer than two inputs
    - no evidence: the head does not lie on one side of every decisive control with an adjusted p-value of at most
      `rate`; or the predicted value itself lies among the controls
    - contradicted: the head lies beyond every decisive control on the side away from the theory
    - supported: it lies on the theory's side, and the whole interval of its agreement is at least 0.9 (and at most 1.1
      where a value can exceed the predicted one). A claim with a direction only needs no more than that side.
    - partly supported: it lies on the theory's side, and the interval reaches outside of these limits
    """
    findings = list(findings)
    families: dict[Claim, list[int]] = defaultdict(list)
    for i, finding in enumerate(findings):
        families[finding.claim].append(i)
    for members in families.values():
        adjusted = false_discovery_rate(np.array([findings[i].p_value for i in members], dtype=np.float64))
        for i, p in zip(members, adjusted, strict=True):
            findings[i] = dataclasses.replace(findings[i], verdict=_verdict(findings[i], float(p), rate))
    return findings


def _verdict(finding: Finding, p: float, rate: float) -> Verdict:
    if finding.verdict is Verdict.TRUE_BY_CONSTRUCTION:
        return finding.verdict
    if not finding.applies or finding.inputs == 0 or not math.isfinite(finding.value):
        return Verdict.NOT_APPLICABLE
    if not math.isfinite(p):
        return Verdict.UNDECIDED
    if p > rate:
        return Verdict.NO_EVIDENCE
    if finding.claim.direction is not None:
        lower = finding.value < finding.chance.value
        return Verdict.SUPPORTED if lower is (finding.claim.direction is Direction.LOWER) else Verdict.CONTRADICTED
    if not math.isfinite(finding.exact):
        return Verdict.NOT_APPLICABLE
    known = [chance.value for chance in finding.controls if chance.decisive and math.isfinite(chance.value)]
    if min(known) <= finding.exact <= max(known) and min(known) < max(known):
        return Verdict.NO_EVIDENCE
    toward_theory = (finding.value - finding.chance.value) * (finding.exact - finding.chance.value) > 0
    if not toward_theory:
        return Verdict.CONTRADICTED
    ends = (finding.agreement_interval.low, finding.agreement_interval.high)
    passed = max(ends) > 2 - SUPPORT and finding.claim.exact is None
    return Verdict.SUPPORTED if min(ends) >= SUPPORT and not passed else Verdict.PARTLY_SUPPORTED


def beside_untrained(
    findings: Iterable[Finding], untrained: Iterable[Finding], *, seed: int, decisive: Collection[str] = ()
) -> list[Finding]:
    """Add to every finding the same head of untrained models as one more control, where both were measured.

    `untrained` are the findings of one such model or of several, one after the other. It is shown and not judged by, by
    Welch's test over inputs with the first: that head has other keys, and what any values capture of them is another
    number. Where the claim's theory is among the `decisive` and there are several models, the head must lie outside of
    what one more of them would give; how much models differ from draw to draw cannot be told from one.
    """
    at_start: dict[tuple[Claim, int, int], list[Finding]] = defaultdict(list)
    for start in (start for start in untrained if start.inputs):
        at_start[start.claim, start.layer, start.head].append(start)

    def beside(finding: Finding) -> Finding:
        starts = at_start.get((finding.claim, finding.layer, finding.head), [])
        if not starts or not finding.inputs or finding.verdict is Verdict.TRUE_BY_CONSTRUCTION:
            return finding
        judged = finding.claim.theory in decisive and len(starts) > 1
        chance = _among_untrained(finding, starts, seed) if judged else _beside_first(finding, starts[0], seed)
        return dataclasses.replace(finding, controls=(*finding.controls, chance))

    return [beside(finding) for finding in findings]


def _untrained_name(finding: Finding) -> str:
    return UNTRAINED if finding.claim.unit is Unit.HEAD else UNTRAINED.replace("head", finding.claim.unit)


def _beside_first(finding: Finding, untrained: Finding, seed: int) -> Chance:
    spread, spread_at_start = _deviation(finding), _deviation(untrained)
    test = stats.ttest_ind_from_stats(
        finding.value, spread, finding.inputs, untrained.value, spread_at_start, untrained.inputs, equal_var=False
    )
    # Numbers without spread decide at once, as they do in RunningMoments.
    p = float(test.pvalue) if spread or spread_at_start else float(finding.value == untrained.value)
    return Chance(
        control=_untrained_name(finding),
        value=untrained.value,
        range=untrained.interval,
        draws=1,
        seed=seed,
        p_value=p,
        decisive=False,
    )


def _among_untrained(finding: Finding, starts: Sequence[Finding], seed: int) -> Chance:
    """Student's prediction test: draws differ from one another as the head may from them, beside its own error."""
    values = np.array([start.value for start in starts], dtype=np.float64)
    low, high = np.quantile(values, [0.025, 0.975])
    error = _deviation(finding) / math.sqrt(finding.inputs) if finding.inputs > 1 else math.nan
    return Chance(
        control=_untrained_name(finding),
        value=float(values.mean()),
        range=Interval(float(low), float(high)),
        draws=len(values),
        seed=seed,
        p_value=prediction_p_value(finding.value, values, error=error),
    )


def _deviation(finding: Finding) -> float:
    """Standard deviation over inputs, read back from Student's interval of the mean."""
    half = (finding.interval.high - finding.interval.low) / 2
    return half / float(stats.t.ppf(0.975, max(finding.inputs - 1, 1))) * math.sqrt(finding.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One claim over all heads: medians over the measured heads, and how many heads have each verdict.

    `chance` is of every head's hardest control, `controls` of each control by its name, with half the width of the
    middle 95 % of its draws in `spreads`; `decisive` names those that are judged by.
    """

    claim: Claim
    heads: int
    median: float
    interval: Interval
    exact: float
    chance: float
    chance_range: Interval
    controls: dict[str, float]
    spreads: dict[str, float]
    decisive: tuple[str, ...]
    verdicts: dict[Verdict, int]

    @property
    def measured(self) -> int:
        """How many heads the claim could be measured on."""
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
    measured = [f for f in family if f.inputs > 0 and math.isfinite(f.value)]
    values = np.sort(np.array([f.value for f in measured]))
    by_control: dict[str, list[Chance]] = defaultdict(list)
    for chance in (chance for f in measured for chance in f.controls):
        by_control[chance.control].append(chance)
    return Summary(
        claim=claim,
        heads=len(family),
        median=_median(values),
        interval=median_interval(values),
        exact=_median(np.array([f.exact for f in measured])),
        chance=_median(np.array([f.chance.value for f in measured])),
        chance_range=Interval(
            _median(np.array([f.chance.range.low for f in measured])),
            _median(np.array([f.chance.range.high for f in measured])),
        ),
        controls={name: _median(np.array([c.value for c in found])) for name, found in by_control.items()},
        spreads={
            name: _median(np.array([(c.range.high - c.range.low) / 2 for c in found]))
            for name, found in by_control.items()
        },
        decisive=tuple(dict.fromkeys(chance.control for f in measured for chance in f.controls if chance.decisive)),
        verdicts=dict(Counter(f.verdict for f in family)),
    )


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan

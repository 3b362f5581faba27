"""Door 2: a claim, its value, its controls, its uncertainty, its verdict. The unit of truth of every report."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from clearhead.numerics.moments import Array, Interval, false_discovery_rate

__all__ = ["Chance", "Claim", "Finding", "Summary", "Theorem", "Verdict", "judge", "summarise"]

SUPPORT = 0.9
"""A head agrees with a theory when the whole interval of its agreement lies at or above this."""


class Verdict(StrEnum):
    """What a finding says, in the words that people read."""

    SUPPORTED = "agrees with the theory"
    ABOVE = "above chance, short of the claim"
    CHANCE = "not distinguishable from chance"
    BELOW = "below chance"
    NOT_APPLICABLE = "not applicable"
    UNDECIDED = "undecided: too few inputs"
    BY_CONSTRUCTION = "holds by construction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a theory says, as something that can be measured."""

    theory: str
    statistic: str
    statement: str
    formula: str
    citation: str
    exact: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """The same statistic where the theory has nothing to say: `draws` draws of a control, by `seed`."""

    value: float
    range: Interval
    control: str
    draws: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim measured on one head.

    `value`, `interval` and `p_value` are over inputs: the mean, Student's 95 % interval of that mean, and the test
    that value and chance do not differ on the same inputs. `inputs` were used and `skipped` could not be, for `reason`.
    """

    claim: Claim
    layer: int
    name: str
    head: int
    value: float
    interval: Interval
    chance: Chance
    p_value: float
    inputs: int
    skipped: int = 0
    reason: str = ""
    verdict: Verdict = Verdict.UNDECIDED

    @property
    def agreement(self) -> float:
        """0 is chance, 1 is the theory, on one scale for every theory; NaN where chance already reaches the theory."""
        return self._on_scale(self.value)

    @property
    def agreement_interval(self) -> Interval:
        """The interval of the value on the scale of `agreement`."""
        return Interval(self._on_scale(self.interval.low), self._on_scale(self.interval.high))

    def _on_scale(self, value: float) -> float:
        span = self.claim.exact - self.chance.value
        return (value - self.chance.value) / span if abs(span) > 1e-9 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """One proved statement, checked now: its residual, what that may be, and a control that must exceed it."""

    source: str
    id: str = ""
    """Short name by which documents cite the statement."""
    statement: str
    residual: float
    residual_single: float
    tolerance: float
    tolerance_single: float
    control: str
    control_residual: float
    citation: str

    @property
    def holds(self) -> bool:
        """Whether the residuals are within tolerance in both precisions and the control is not, by a wide margin."""
        return (
            self.residual <= self.tolerance
            and self.residual_single <= self.tolerance_single
            and self.control_residual > 100 * self.tolerance_single
        )


def judge(findings: Iterable[Finding], *, rate: float = 0.05) -> list[Finding]:
    """Give every finding its verdict, with false discoveries held to `rate` among the heads of each claim.

    Not applicable where nothing could be measured; undecided with fewer than two inputs; not distinguishable from
    chance unless the adjusted p-value is at most `rate`; otherwise above or below, or in agreement with the theory
    where the whole interval of the agreement is at least 0.9.
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
    if finding.verdict is Verdict.BY_CONSTRUCTION:
        return finding.verdict
    if finding.inputs == 0 or not math.isfinite(finding.value):
        return Verdict.NOT_APPLICABLE
    if not math.isfinite(p):
        return Verdict.UNDECIDED
    if p > rate:
        return Verdict.CHANCE
    toward_theory = (finding.value - finding.chance.value) * (finding.claim.exact - finding.chance.value) > 0
    if not toward_theory:
        return Verdict.BELOW
    return Verdict.SUPPORTED if _least(finding.agreement_interval) >= SUPPORT else Verdict.ABOVE


def _least(interval: Interval) -> float:
    return min(interval.low, interval.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One claim over all heads: medians over the measured heads, and how many heads have each verdict."""

    claim: Claim
    heads: int
    median: float
    interval: Interval
    chance: float
    chance_range: Interval
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
        return str(verdict) if count == self.measured else f"{verdict} in {count} of {self.measured} heads"


def summarise(findings: Iterable[Finding]) -> list[Summary]:
    """One summary per claim, in the order in which the claims appear."""
    families: dict[Claim, list[Finding]] = defaultdict(list)
    for finding in findings:
        families[finding.claim].append(finding)
    return [_summary(claim, family) for claim, family in families.items()]


def _summary(claim: Claim, family: Sequence[Finding]) -> Summary:
    measured = [f for f in family if f.inputs > 0 and math.isfinite(f.value)]
    values = np.sort(np.array([f.value for f in measured]))
    return Summary(
        claim=claim,
        heads=len(family),
        median=_median(values),
        interval=_interval_of_median(values),
        chance=_median(np.array([f.chance.value for f in measured])),
        chance_range=Interval(
            _median(np.array([f.chance.range.low for f in measured])),
            _median(np.array([f.chance.range.high for f in measured])),
        ),
        verdicts=dict(Counter(f.verdict for f in family)),
    )


def _median(values: Array) -> float:
    return float(np.median(values)) if values.size else math.nan


def _interval_of_median(ordered: Array) -> Interval:
    """Distribution-free 95 % interval: the order statistics whose ranks bound the median by the binomial law.

    NaN for fewer than six values, of which even the least and the largest miss the median more often.
    """
    below = int(stats.binom.ppf(0.025, ordered.size, 0.5)) if ordered.size else 0
    if below == 0:
        return Interval(math.nan, math.nan)
    return Interval(float(ordered[below - 1]), float(ordered[ordered.size - below]))

"""A finding: one claim measured on one head, with its interval, its controls and its verdict."""

import math
from dataclasses import dataclass
from enum import StrEnum

from clearhead.numerics.moments import Interval, no_spread
from clearhead.theories.reason import Reason
from clearhead.theories.theory import Claim, Direction

__all__ = ["NO_CONTROL", "ControlResult", "Finding", "NoEvidence", "Verdict"]


class Verdict(StrEnum):
    """The judgement of one finding; `clearhead.audit.judging.judge` holds the rule."""

    SUPPORTED = "supported"
    PARTLY_SUPPORTED = "partly supported"
    """Beyond every control on the theory's side, but short of the predicted value."""
    NO_EVIDENCE = "no evidence"
    """Not distinguishable from at least one control."""
    CONTRADICTED = "contradicted"
    """Beyond every control on the side away from the theory."""
    NOT_APPLICABLE = "not applicable"
    UNDECIDED = "undecided"
    """No test: too few inputs, no spread, no predicted value, or no baseline where the theory needs one."""
    TRUE_BY_CONSTRUCTION = "true by construction"
    NOT_JUDGED = "not judged"
    """A statistic as published, shown with its value on random models."""


class NoEvidence(StrEnum):
    """The kind of "no evidence"."""

    EQUAL = "equal to a control within rounding"
    """Arithmetic resolves no difference from one of the controls on any input."""
    EQUIVALENT = "equivalent to the controls"
    """A head that follows the theory by half would have been detected."""
    BETWEEN = "between controls"
    """Significantly above one control and below another."""
    TOO_LITTLE_POWER = "too little power"
    """A head that follows the theory by half would not have been detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """The statistic under one control, from `draws` draws by `seed`.

    `value` and `range` are the mean and the middle 95 % of the draws, each averaged over inputs. `p_value` is that of
    the two-sided test that head and control do not differ. A control that is not `decisive` is shown and not judged by:
    it was measured on other keys, where the same number may have another meaning.

    difference: between head and control, on the inputs that both were measured on
    error: its standard error, with `freedom` degrees of freedom
    resolution: the smallest difference on one input that arithmetic resolves
    largest: the largest difference on one input, as a multiple of the resolution
    sample: the draws, each averaged over inputs; of many, evenly spaced quantiles
    """

    name: str
    value: float
    range: Interval
    draws: int
    seed: int
    p_value: float
    decisive: bool = True
    difference: float = math.nan
    error: float = math.nan
    freedom: int = 0
    resolution: float = 0.0
    largest: float = math.inf
    sample: tuple[float, ...] = ()

    @property
    def equal(self) -> bool:
        """True if arithmetic resolves no difference from the head."""
        return abs(self.difference) <= self.resolution and bool(no_spread(self.error, self.freedom, self.resolution))


NO_CONTROL = ControlResult(
    name="none", value=math.nan, range=Interval(math.nan, math.nan), draws=0, seed=0, p_value=math.nan
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim measured on one head, with its controls.

    `value` and `interval` are over inputs: the mean, and Student's 95 % interval of it. `predicted` is the value if the
    theory held exactly. `inputs` counts the samples, which are inputs or groups of inputs; `skipped` those that could
    not be measured, for the `reasons`.

    applies: whether the theory covers this head; if not, the value is shown and not tested, for the `reasons`
    deviation: Student's 95 % interval of value minus prediction, input by input; None where one number is predicted
    shared: how many neighbouring heads share this number, as query heads that share keys and values do; they are
        tested once
    no_evidence: the kind, if the verdict is "no evidence"
    resolution: the smallest difference from the value that arithmetic resolves
    borderline: whether rounding could make another verdict of it, on another processor
    detectable: smallest agreement that would have been called, or smallest difference from the closest control where
        the theory predicts only a direction; NaN until judged
    adjusted_p_value: `p_value`, adjusted among the heads of the claim for the false discovery rate; NaN until judged
    """

    claim: Claim
    layer: int
    name: str
    head: int
    value: float
    interval: Interval
    predicted: float
    controls: tuple[ControlResult, ...]
    inputs: int
    skipped: int = 0
    reasons: tuple[Reason, ...] = ()
    verdict: Verdict = Verdict.UNDECIDED
    applies: bool = True
    adjusted_p_value: float = math.nan
    deviation: Interval | None = None
    shared: int = 1
    no_evidence: NoEvidence | None = None
    detectable: float = math.nan
    resolution: float = 0.0
    borderline: bool = False

    def __repr__(self) -> str:
        what = f"{self.claim.theory!r}, {self.claim.statistic!r}, layer={self.layer}, head={self.head}"
        interval = f"[{self.interval.low:.3g}, {self.interval.high:.3g}]"
        return f"Finding({what}, value={self.value:.3g}, interval={interval}, verdict={str(self.verdict)!r})"

    @property
    def reason(self) -> str:
        """All reasons in words; "" without."""
        return "; ".join(reason.text for reason in self.reasons)

    @property
    def closest_control(self) -> ControlResult:
        """The decisive control nearest to the theory's prediction: the null of `agreement`."""
        decisive = {control.name: control for control in self.controls if control.decisive}
        name = self.claim.closest({name: control.value for name, control in decisive.items()}, self.predicted)
        return decisive.get(name) or next(iter(decisive.values()), NO_CONTROL)

    @property
    def deciding_control(self) -> ControlResult:
        """The control that is hardest to exceed in the theory's direction: the one with the largest p-value there.

        A head that is contradicted lies beyond all controls in the other direction, and that one counts.
        `closest_control` where there is no test.
        """
        closest = self.closest_control
        tested = [c for c in self.controls if c.decisive and not math.isnan(c.value) and not math.isnan(c.p_value)]
        if self.claim.direction is not None:
            side = 1.0 if self.claim.direction is Direction.HIGHER else -1.0
        else:
            side = math.copysign(1.0, self.predicted - closest.value)
        if not self.applies or not tested or math.isnan(side):
            return closest
        if self.verdict is Verdict.CONTRADICTED:
            side = -side
        return max(tested, key=lambda c: (_one_sided(c, (self.value - c.value) * side > 0), side * c.value))

    @property
    def p_value(self) -> float:
        """Two-sided p-value that the head lies beyond all decisive controls (intersection-union test).

        1 if the head equals one of them within rounding. Otherwise NaN if a control has no p-value or the theory does
        not cover the head. Lying beyond all of them is an
        intersection of claims, so the largest of the one-sided p-values needs no correction (Berger 1982); twice the
        smaller of the two sides' is two-sided. With one control it is that control's.
        """
        known = [control for control in self.controls if control.decisive and not math.isnan(control.value)]
        if not self.applies or not known:
            return math.nan
        if any(control.equal for control in known):
            return 1.0
        if any(math.isnan(control.p_value) for control in known):
            return math.nan
        above = max(_one_sided(control, self.value > control.value) for control in known)
        below = max(_one_sided(control, self.value < control.value) for control in known)
        return min(1.0, 2 * min(above, below))

    @property
    def agreement(self) -> float:
        """(value - null) / (predicted - null): 0 is the null, 1 the theory.

        NaN where the null equals the prediction, or the theory predicts only a direction.
        """
        return self._on_scale(self.value)

    @property
    def agreement_interval(self) -> Interval:
        """The interval of value minus prediction on the scale of `agreement`."""
        deviation = self.deviation or Interval(self.interval.low - self.predicted, self.interval.high - self.predicted)
        ends = [self._on_scale(self.predicted + end) for end in (deviation.low, deviation.high)]
        return Interval(*sorted(ends)) if not any(map(math.isnan, ends)) else Interval(*ends)

    def _on_scale(self, value: float) -> float:
        null = self.closest_control.value
        span = self.predicted - null
        return (value - null) / span if abs(span) > 1e-9 else math.nan


def _one_sided(control: ControlResult, observed: bool) -> float:
    return control.p_value / 2 if observed else 1 - control.p_value / 2

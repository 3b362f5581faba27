"""A finding: one claim measured on one head, with its interval, its controls and its verdict."""

import math
from dataclasses import dataclass
from enum import StrEnum

from clearhead.numerics.moments import Interval
from clearhead.theories.theory import Claim

__all__ = ["Chance", "Finding", "Verdict"]


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
    """Too few inputs for a test."""
    TRUE_BY_CONSTRUCTION = "true by construction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """The same statistic where the theory has nothing to say: `draws` draws of a control, by `seed`.

    `value` and `range` are the mean and the middle 95 % of the draws, each averaged over inputs; `p_value` is of the
    two-sided test that the head and this control do not differ. One that is not `decisive` is shown and not judged by:
    it was measured on other keys, where the same number may mean another thing.
    """

    control: str
    value: float
    range: Interval
    draws: int
    seed: int
    p_value: float
    decisive: bool = True


NO_CHANCE = Chance(
    control="none", value=math.nan, range=Interval(math.nan, math.nan), draws=0, seed=0, p_value=math.nan
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim measured on one head, beside its controls.

    `value` and `interval` are over inputs: the mean, and Student's 95 % interval of that mean; `exact` is what the
    value would be if the theory were exact. `inputs` were used and `skipped` could not be, for `reason`; one may be a
    group of inputs, where the claim is one on several.

    applies: whether the theory speaks of this head at all; if not, the value stands and is not tested, for `reason`
    """

    claim: Claim
    layer: int
    name: str
    head: int
    value: float
    interval: Interval
    exact: float
    controls: tuple[Chance, ...]
    inputs: int
    skipped: int = 0
    reason: str = ""
    verdict: Verdict = Verdict.UNDECIDED
    applies: bool = True

    @property
    def chance(self) -> Chance:
        """The hardest control that is decisive: the one that comes nearest to what the theory says."""
        decisive = {chance.control: chance for chance in self.controls if chance.decisive}
        name = self.claim.hardest({name: chance.value for name, chance in decisive.items()}, self.exact)
        return decisive.get(name) or next(iter(decisive.values()), NO_CHANCE)

    @property
    def p_value(self) -> float:
        """Of the test that the head lies on one side of every decisive control; NaN if one of them cannot be tested, or
        the theory does not speak of the head.

        Lying beyond all of them is an intersection of claims, so the largest of the one-sided p-values needs no
        correction (Berger 1982); twice the smaller of the two sides' is two-sided. With one control it is that one's.
        """
        known = [chance for chance in self.controls if chance.decisive and not math.isnan(chance.value)]
        if not self.applies or not known or any(math.isnan(chance.p_value) for chance in known):
            return math.nan
        above = max(_one_sided(chance, self.value > chance.value) for chance in known)
        below = max(_one_sided(chance, self.value < chance.value) for chance in known)
        return min(1.0, 2 * min(above, below))

    @property
    def agreement(self) -> float:
        """0 is chance, 1 is the theory, on one scale for every theory; NaN where chance already reaches the theory, or
        the theory tells a direction only."""
        return self._on_scale(self.value)

    @property
    def agreement_interval(self) -> Interval:
        """The interval of the value on the scale of `agreement`."""
        return Interval(self._on_scale(self.interval.low), self._on_scale(self.interval.high))

    def _on_scale(self, value: float) -> float:
        span = self.exact - self.chance.value
        return (value - self.chance.value) / span if abs(span) > 1e-9 else math.nan


def _one_sided(chance: Chance, observed: bool) -> float:
    return chance.p_value / 2 if observed else 1 - chance.p_value / 2

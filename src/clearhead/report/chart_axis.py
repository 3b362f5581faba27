"""An axis of a chart: what it reaches over, where its ticks stand, and what they say."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from clearhead.report.wording import number

__all__ = ["Axis", "Number", "axis_over"]

Number = float | int

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
WHOLE_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From `low` to `high`, in equal steps, of `whole` numbers where these count things, or by powers of ten."""

    low: Number
    high: Number
    logarithmic: bool = False
    whole: bool = False

    def share(self, value: Number) -> float:
        """How far along the axis a value stands: 0 at its low end, 1 at its high end."""
        low, high, value = (self._scaled(x) for x in (self.low, self.high, value))
        return (value - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the axis, at most so many."""
        return self._powers(most) if self.logarithmic else self._steps(most)

    def labels(self, most: int = 6) -> list[tuple[float, str]]:
        """The ticks and what they say, all with as many decimals as the finest needs."""
        ticks = self.ticks(most)
        if self.logarithmic:
            return [(tick, _power(tick)) for tick in ticks]
        step = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
        largest = max(abs(self.low), abs(self.high))
        if largest >= 1e5 or step < 1e-4:
            digits = max(math.ceil(math.log10(largest / step)) + 2, 2)
            return [(tick, number(tick, digits=digits)) for tick in ticks]
        decimals = next(k for k in range(7) if math.isclose(step, round(step, k), rel_tol=1e-9))
        return [(tick, f"{tick:,.{decimals}f}") for tick in ticks]

    def _scaled(self, value: Number) -> float:
        return math.log10(value) if self.logarithmic else float(value)

    def _steps(self, most: int) -> list[float]:
        rough = (self.high - self.low) / max(most - 1, 1)
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * k for k in (WHOLE_STEPS if self.whole else STEPS) if size * k >= rough * (1 - 1e-9))
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]

    def _powers(self, most: int) -> list[float]:
        """1, 2 and 5 times powers of ten where there is room for them, else the powers alone, or some of them."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        each = [10.0**k * part for k in range(first, last + 1) for part in (1, 2, 5)]
        within = [tick for tick in each if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
        if len(within) <= most:
            return within
        powers = [tick for tick in within if math.isclose(math.log10(tick), round(math.log10(tick)), abs_tol=1e-9)]
        return powers[:: math.ceil(len(powers) / most)]


def axis_over(values: Iterable[Number], *, logarithmic: bool = False, whole: bool = False, room: float = 0.04) -> Axis:
    """An axis on which all finite values (positive ones, by powers) have their place, with a little room beyond."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not logarithmic)]
    low, high = min(known, default=1.0), max(known, default=1.0)
    if logarithmic:
        factor = (high / low) ** room if high > low else 2.0
        return Axis(low=low / factor, high=high * factor, logarithmic=True)
    beyond = (high - low) * room or abs(high) * 0.1 or 1.0
    return Axis(low=low - beyond, high=high + beyond, whole=whole)


def _power(tick: float) -> str:
    """1000 as 1,000 and a tenth as 0.1; farther off as a power."""
    if 1 <= tick < 1e5:
        return f"{tick:,.0f}"
    return f"{tick:g}" if 1e-4 < tick < 1 else number(tick, digits=2)

"""The interval of a share that was counted (Wilson 1927)."""

import math

from scipy import stats

from clearhead.errors import InputError
from clearhead.numerics.moments import Interval

__all__ = ["wilson_interval"]


def wilson_interval(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    r"""The shares p that a count does not refute: those with \|\hat p - p\| <= z sqrt(p (1 - p) / n).

    .. math:: \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4 n^2}}{1 + z^2 / n}

    It lies within 0 and 1 and does not shrink to a point at either.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"expected 0 <= successes <= trials and a trial; got {successes} of {trials}")
    z = float(stats.norm.ppf(0.5 + level / 2))
    share = successes / trials
    centre = share + z**2 / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    total = 1 + z**2 / trials
    # At the ends the formula gives 0 and 1 up to rounding.
    low = 0.0 if successes == 0 else (centre - half) / total
    high = 1.0 if successes == trials else (centre + half) / total
    return Interval(low, high)

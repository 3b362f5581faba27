"""The parts of an evaluation's record: estimates with intervals, results of attacks, examples and sanity lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.moments import Interval, wilson_interval
from clearhead.shapes import Float, Int

__all__ = [
    "AttackResult",
    "CorruptionComparison",
    "Detection",
    "Difference",
    "Estimate",
    "Example",
    "SanityLine",
    "bootstrap_mean",
    "budget_text",
]

DRAWS = 2000
"""Bootstrap samples."""

Status = Literal["PASS", "FLAG", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over images with its 95% bootstrap interval, and the number of images."""

    value: float
    interval: Interval
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """The predictions for the first images after an attack; -1 for an image that was misclassified without it.

    largest_change: of a pixel
    """

    attack: str
    title: str
    eps: float
    predicted: tuple[int, ...]
    largest_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SanityLine:
    """A check of the evaluation itself: PASS, FLAG if the numbers overstate the robustness, or "not run"."""

    name: str
    status: Status
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An image, the same after an attack, its label and both predictions. Pixels (c, y, x) are from 0 to 1."""

    image: Float[Tensor, "c y x"]
    attacked: Float[Tensor, "c y x"]
    label: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The accuracy of one model minus that of another on the same images, with its paired bootstrap interval."""

    measure: str
    eps: float
    estimate: Estimate

    @property
    def differs(self) -> bool:
        """True if the interval does not contain zero."""
        return not self.estimate.interval.low <= 0 <= self.estimate.interval.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """How well low confidence detects images of other classes: the area under the precision-recall curve.

    data, images: the name and the number of these images
    chance: the area for random scores, their share of all images
    """

    data: str
    images: int
    area: float
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionComparison:
    """The mean corruption error in percent of a baseline's errors (mCE), or the reason why there is none.

    by_corruption: the same for each corruption
    """

    baseline: str
    mean: float | None = None
    by_corruption: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def bootstrap_mean(values: Int[Tensor, "n"], *, limits: tuple[float, float] = (0.0, 1.0), seed: int = 0) -> Estimate:
    """Return the mean of a number for each image, with the interval of means over images drawn with replacement.

    limits: the lowest and the highest number that an image can have

    If all images have the same number, every draw has it too. The interval then has the width of Wilson's for a share
    of zero.
    """
    count = len(values)
    if not count:
        raise InputError("there are no images to average over")
    numbers = values.double().numpy()
    mean = float(numbers.mean())
    if numbers.min() == numbers.max():
        width = wilson_interval(0, count).high
        low, high = max(mean - width, limits[0]), min(mean + width, limits[1])
    else:
        levels, counts = np.unique(numbers, return_counts=True)
        drawn = np.random.default_rng(seed).multinomial(count, counts / count, size=DRAWS) @ levels / count
        low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value=mean, interval=Interval(low=float(low), high=float(high)), images=count)


def budget_text(eps: float) -> str:
    """Return a budget as people write it: 8/255, 0.5/255, or a decimal number that is no such fraction."""
    levels = Fraction(eps * 255).limit_denominator(4)
    if abs(float(levels) / 255 - eps) > 1e-9 or levels == 0 or (levels.denominator > 1 and levels > 8):
        return f"{eps:.4g}"
    return f"{float(levels):g}/255"

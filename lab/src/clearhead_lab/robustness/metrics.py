"""Metrics of robustness: mean corruption error, out-of-distribution detection, calibration.

==================  ===============================================================================================
metric              source
==================  ===============================================================================================
mCE                 Hendrycks and Dietterich 2019, arXiv 1903.12261, section 4, on ImageNet-C
AUPR                Hendrycks et al. 2021, arXiv 1907.07174, on ImageNet-O; score of Hendrycks and Gimpel 2017
calibration error   Guo et al. 2017, arXiv 1706.04599, equation 3
==================  ===============================================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Bool, Float, ShapeError
from clearhead_lab.robustness.corruptions import SEVERITIES

__all__ = [
    "ALEXNET_ERRORS",
    "CALIBRATION_BINS",
    "CorruptionErrors",
    "ErrorRates",
    "area_under_precision_recall",
    "calibration_error",
    "max_softmax_score",
    "mean_corruption_error",
]

CALIBRATION_BINS = 15

ErrorRates = Mapping[str, float | Sequence[float]]
"""By corruption, the error rates from 0 to 1 at severities 1 to 5, or their mean."""

ALEXNET_ERRORS: ErrorRates = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's error rates on ImageNet-C at 224 pixels, means over severities, as published with the benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionErrors:
    """Error rates in percent of a baseline's: the mean (mCE), and each corruption's."""

    mean: float
    by_corruption: Mapping[str, float]


def mean_corruption_error(errors: ErrorRates, baseline_errors: ErrorRates) -> CorruptionErrors:
    r"""Return the mean corruption error in percent of a baseline: 100 for a model that errs as often as the baseline.

    .. math:: CE_c = 100 \, \frac{\sum_s E_{s,c}}{\sum_s E^{base}_{s,c}}, \qquad mCE = \operatorname{mean}_c CE_c

    E_{s,c} is the error rate under corruption c at severity s. Published numbers use all 15 corruptions of ImageNet-C
    and `ALEXNET_ERRORS`. Corruptions of the baseline that `errors` does not have are left out.
    """
    if not errors:
        raise InputError("expected error rates of at least one corruption; got none")
    if missing := [name for name in errors if name not in baseline_errors]:
        raise InputError(f"the baseline has no error rates for {', '.join(missing)}; measure them, or leave them out")
    ratios = {}
    for name, rates in errors.items():
        baseline = _mean_rate(baseline_errors[name], f"the baseline under {name}")
        if baseline == 0:
            raise InputError(f"the baseline makes no errors under {name}, so no ratio exists; use another baseline")
        ratios[name] = 100 * _mean_rate(rates, name) / baseline
    return CorruptionErrors(mean=sum(ratios.values()) / len(ratios), by_corruption=ratios)


def max_softmax_score(logits: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Return the highest softmax probability of each row, in double precision: the confidence of a prediction."""
    _check_scores(logits)
    return logits.double().softmax(dim=1).amax(dim=1)


def area_under_precision_recall(scores_in: Float[Tensor, "n"], scores_out: Float[Tensor, "m"]) -> float:
    r"""Return how well low confidence detects out-of-distribution examples, as average precision from 0 to 1.

    .. math:: AUPR = \sum_t (R_t - R_{t-1}) P_t

    Out-of-distribution examples are the positive class, and an example's score is its negative confidence. P_t and R_t
    are precision and recall if the examples of confidence t or less are called positive; t ascends over the distinct
    confidences. Random scores give about m / (n + m).

    scores_in, scores_out: confidences of n in-distribution and m out-of-distribution examples, as `max_softmax_score`
    """
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        if scores.ndim != 1 or len(scores) == 0:
            raise ShapeError(f"expected {name} of shape (examples,), at least one; got {tuple(scores.shape)}")
        if not bool(scores.isfinite().all()):
            raise InputError(f"expected finite {name}; got {int((~scores.isfinite()).sum())} that are not")
    confidences = torch.cat([scores_in.double().cpu(), scores_out.double().cpu()])
    order = confidences.argsort()
    positives = (order >= len(scores_in)).double().cumsum(dim=0)
    # Equal confidences are called positive together, so only the last of them is a threshold.
    last = confidences[order].diff(append=torch.tensor([torch.inf], dtype=torch.float64)) > 0
    precision = (positives / torch.arange(1, len(order) + 1))[last]
    recall = positives[last] / len(scores_out)
    return float((recall.diff(prepend=torch.zeros(1, dtype=torch.float64)) * precision).sum())


def calibration_error(
    confidence: Float[Tensor, "n"], right: Bool[Tensor, "n"], *, bins: int = CALIBRATION_BINS
) -> float:
    r"""Return the expected calibration error, from 0 to 1, with bins of equal width.

    .. math:: ECE = \sum_b \frac{|B_b|}{n} \, |\operatorname{acc}(B_b) - \operatorname{conf}(B_b)|

    B_b holds the examples whose confidence is above (b - 1) / bins and at most b / bins; acc is the proportion of
    correct predictions among them and conf the mean of their confidences.

    confidence: as `max_softmax_score`; right: whether the prediction is right
    """
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, torch.bucketize(confidence.double(), edges), right.double() - confidence.double())
    return float(gaps.abs().sum()) / len(right)


def _mean_rate(rates: float | Sequence[float], name: str) -> float:
    """Return the mean error rate over severities."""
    values = np.asarray(rates, dtype=np.float64)
    if values.shape not in ((), (len(SEVERITIES),)):
        raise InputError(f"expected error rates of {name} at severities 1 to 5, or their mean; got {values.size}")
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"expected error rates from 0 to 1; got {values.tolist()} for {name}")
    return float(values.mean())


def _check_scores(scores: Tensor) -> None:
    if scores.ndim != 2 or 0 in scores.shape or not scores.is_floating_point():
        raise ShapeError(
            f"expected logits (examples, classes) of floats, at least one of each; got {tuple(scores.shape)} of "
            f"{scores.dtype}"
        )
    if not bool(scores.isfinite().all()):
        raise InputError(f"expected finite logits; {int((~scores.isfinite()).any(dim=1).sum())} examples have others")

"""Metrics of robustness: mean corruption error, accuracy on some classes, out-of-distribution detection, calibration.

==================  ===============================================================================================
metric              source
==================  ===============================================================================================
mCE                 Hendrycks and Dietterich 2019, arXiv 1903.12261, section 4, on ImageNet-C
masked accuracy     Hendrycks et al. 2021, arXiv 1907.07174 and 2006.16241, on 200 classes in ImageNet-A and -R
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
from clearhead.numerics.moments import Interval, wilson_interval
from clearhead.numerics.precision import tolerance
from clearhead.shapes import Bool, Float, Int, ShapeError
from clearhead_lab.robustness.corruptions import SEVERITIES

__all__ = [
    "ALEXNET_ERRORS",
    "CALIBRATION_BINS",
    "CorruptionErrors",
    "ErrorRates",
    "MaskedAccuracy",
    "area_under_precision_recall",
    "calibration_error",
    "calibration_of_confidences",
    "masked_accuracy",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedAccuracy:
    """The number of correct predictions among `images`, and the proportion with its 95% interval."""

    right: int
    images: int

    @property
    def value(self) -> float:
        """Return the proportion of correct predictions."""
        return self.right / self.images

    @property
    def interval(self) -> Interval:
        """Return Wilson's 95% interval of the proportion."""
        return wilson_interval(self.right, self.images)


def masked_accuracy(
    logits: Float[Tensor, "n k"], labels: Int[Tensor, "n"], classes: Sequence[int] | Sequence[bool] | Tensor
) -> MaskedAccuracy:
    """Return the accuracy of the highest logit among some of the k classes.

    labels: numbers of the k classes, each one of `classes`
    classes: their numbers, or for each of the k classes whether it counts
    """
    _check_scores(logits, "logits")
    count = logits.shape[1]
    _check_labels(labels, logits)
    counted = torch.as_tensor(classes, device=logits.device)
    if counted.dtype == torch.bool:
        if counted.shape != (count,):
            raise ShapeError(f"expected a mask of {count} classes; got shape {tuple(counted.shape)}")
        counted = counted.nonzero().squeeze(1)
    if counted.ndim != 1 or len(counted) == 0 or counted.is_floating_point():
        raise InputError(f"expected numbers of classes, at least one; got {tuple(counted.shape)} of {counted.dtype}")
    if counted.amin() < 0 or counted.amax() >= count:
        raise InputError(f"expected classes from 0 to {count - 1}; got {int(counted.amin())} to {int(counted.amax())}")
    labels = labels.to(logits.device)
    outside = ~torch.isin(labels, counted)
    if outside.any():
        raise InputError(
            f"label {int(labels[outside][0])} is not among the {len(counted)} classes; number labels as the columns "
            "of the logits"
        )
    predicted = counted[logits[:, counted].argmax(dim=1)]
    return MaskedAccuracy(right=int((predicted == labels).sum()), images=len(labels))


def max_softmax_score(logits: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Return the highest softmax probability of each row, in double precision: the confidence of a prediction."""
    _check_scores(logits, "logits")
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
    probabilities: Float[Tensor, "n k"], labels: Int[Tensor, "n"], *, bins: int = CALIBRATION_BINS
) -> float:
    r"""Return the expected calibration error, from 0 to 1, with bins of equal width.

    .. math:: ECE = \sum_b \frac{|B_b|}{n} \, |\operatorname{acc}(B_b) - \operatorname{conf}(B_b)|

    B_b holds the examples whose highest probability is above (b - 1) / bins and at most b / bins; acc is the proportion
    of correct predictions among them and conf the mean of their highest probabilities.

    probabilities: rows that sum to one, such as `logits.softmax(dim=1)`
    """
    if bins < 1:
        raise InputError(f"expected at least one bin; got {bins}")
    _check_scores(probabilities, "probabilities")
    _check_labels(labels, probabilities)
    exact = probabilities.double()
    error = float((exact.sum(dim=1) - 1).abs().amax())
    if exact.amin() < 0 or error > tolerance(probabilities.dtype, terms=exact.shape[1]):
        raise InputError("expected probabilities: rows of at least 0 that sum to 1; pass logits.softmax(dim=1)")
    confidence, predicted = exact.max(dim=1)
    return calibration_of_confidences(confidence, predicted == labels.to(exact.device), bins=bins)


def calibration_of_confidences(
    confidence: Float[Tensor, "n"], right: Bool[Tensor, "n"], *, bins: int = CALIBRATION_BINS
) -> float:
    """Return `calibration_error` from the highest probability of each example and whether its prediction is right."""
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


def _check_scores(scores: Tensor, name: str) -> None:
    if scores.ndim != 2 or 0 in scores.shape or not scores.is_floating_point():
        raise ShapeError(
            f"expected {name} (examples, classes) of floats, at least one of each; got {tuple(scores.shape)} of "
            f"{scores.dtype}"
        )
    if not bool(scores.isfinite().all()):
        raise InputError(f"expected finite {name}; {int((~scores.isfinite()).any(dim=1).sum())} examples have others")


def _check_labels(labels: Tensor, scores: Tensor) -> None:
    examples, classes = scores.shape
    if labels.shape != (examples,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ShapeError(
            f"expected a whole number as label of each of {examples} examples; got {tuple(labels.shape)} of "
            f"{labels.dtype}"
        )
    if labels.amin() < 0 or labels.amax() >= classes:
        raise InputError(f"expected labels from 0 to {classes - 1}; got {int(labels.amin())} to {int(labels.amax())}")

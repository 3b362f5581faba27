"""Metrics equal hand-computed cases and scikit-learn's, and refuse input without an answer."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.precision import tolerance
from clearhead_lab.robustness.imagenet_c import IMAGENET_C
from clearhead_lab.robustness.metrics import (
    ALEXNET_ERRORS,
    area_under_precision_recall,
    calibration_error,
    max_softmax_score,
    mean_corruption_error,
)

ROUNDING = tolerance(torch.float64)
EXAMPLES, CLASSES = 211, 13


def _logits(n: int = EXAMPLES, k: int = CLASSES, seed: int = 0) -> Tensor:
    return 3 * torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _labels(n: int = EXAMPLES, k: int = CLASSES, seed: int = 1) -> Tensor:
    return torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))


# Mean corruption error

MODEL = {"snow": (0.1, 0.1, 0.2, 0.2, 0.4), "fog": (0.0, 0.1, 0.1, 0.1, 0.2)}
BASELINE = {"snow": (0.2, 0.3, 0.4, 0.5, 0.6), "fog": (0.1, 0.1, 0.2, 0.3, 0.3)}


def test_mce_is_the_mean_of_ratios_of_sums() -> None:
    result = mean_corruption_error(MODEL, BASELINE)
    assert result.by_corruption == pytest.approx({"snow": 100 * 1.0 / 2.0, "fog": 100 * 0.5 / 1.0})
    assert result.mean == pytest.approx(50)
    harder = mean_corruption_error({**MODEL, "fog": (0.2,) * 5}, BASELINE)
    assert harder.by_corruption["fog"] == pytest.approx(100)
    assert harder.mean == pytest.approx(75)
    # Controls: neither the ratio of all sums nor the mean ratio of single severities is the mCE.
    ratio_of_sums = 100 * (1.0 + 1.0) / (2.0 + 1.0)
    assert abs(harder.mean - ratio_of_sums) > 1
    pairs = zip(MODEL["snow"], BASELINE["snow"], strict=True)
    assert abs(result.by_corruption["snow"] - 100 * sum(own / other for own, other in pairs) / 5) > 1


def test_the_baseline_scores_a_hundred_and_half_of_its_errors_fifty() -> None:
    assert mean_corruption_error(BASELINE, BASELINE).mean == pytest.approx(100)
    half = {name: tuple(rate / 2 for rate in rates) for name, rates in BASELINE.items()}
    assert mean_corruption_error(half, BASELINE).mean == pytest.approx(50)


def test_corruptions_of_the_baseline_alone_are_left_out() -> None:
    assert mean_corruption_error(MODEL, {**BASELINE, "frost": 0.7}) == mean_corruption_error(MODEL, BASELINE)
    assert mean_corruption_error({**MODEL, "frost": 0.7}, {**BASELINE, "frost": 0.7}).mean == pytest.approx(200 / 3)


def test_a_mean_over_severities_stands_for_the_five() -> None:
    means = {name: sum(rates) / 5 for name, rates in BASELINE.items()}
    assert mean_corruption_error(MODEL, means) == pytest.approx(mean_corruption_error(MODEL, BASELINE))
    assert mean_corruption_error(means, BASELINE).mean == pytest.approx(100)


def test_alexnet_has_an_error_rate_for_each_corruption_of_the_benchmark() -> None:
    assert list(ALEXNET_ERRORS) == [corruption.name for corruption in IMAGENET_C]
    # A model that always errs: the mean of the 15 inverse rates.
    always = mean_corruption_error(dict.fromkeys(ALEXNET_ERRORS, 1.0), ALEXNET_ERRORS)
    assert always.mean == pytest.approx(100 * np.mean([1 / rate for rate in ALEXNET_ERRORS.values()]))
    percent = [89, 89, 92, 82, 83, 79, 80, 87, 83, 82, 56, 85, 65, 72, 61]  # in the order of the names above
    assert [100 * rate for rate in ALEXNET_ERRORS.values()] == pytest.approx(percent, abs=0.5)


@pytest.mark.parametrize(
    ("errors", "baseline", "message"),
    [
        ({}, BASELINE, "at least one corruption; got none"),
        ({**MODEL, "rain": (0.1,) * 5, "hail": 0.1}, BASELINE, "no error rates for rain, hail; measure them"),
        (MODEL, {**BASELINE, "fog": (0.0,) * 5}, "makes no errors under fog"),
        (MODEL, {**BASELINE, "fog": 0.0}, "makes no errors under fog"),
        ({"fog": (0.1, 0.2, 0.3)}, BASELINE, "rates of fog at severities 1 to 5, or their mean; got 3"),
        (MODEL, {**BASELINE, "fog": (0.1,)}, "rates of the baseline under fog at severities 1 to 5"),
        (
            {"fog": (10.0, 20.0, 30.0, 40.0, 50.0)},
            BASELINE,
            r"from 0 to 1; got \[10.0, 20.0, 30.0, 40.0, 50.0\] for fog",
        ),
        ({"fog": math.nan}, BASELINE, r"from 0 to 1; got nan for fog"),
        ({"fog": -0.1}, BASELINE, r"from 0 to 1; got -0.1 for fog"),
    ],
)
def test_error_rates_without_an_mce_are_refused(errors: Any, baseline: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        mean_corruption_error(errors, baseline)
    assert "\n" not in str(raised.value)


# Detection of out-of-distribution examples


def test_the_score_is_the_highest_probability() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [math.log(4.0), 0.0]])
    assert max_softmax_score(logits).tolist() == pytest.approx([0.75, 0.8], abs=tolerance(torch.float32))
    shifted = max_softmax_score(_logits() + 1000)
    assert (shifted - max_softmax_score(_logits())).abs().max() <= 1000 * ROUNDING
    close = torch.tensor([[0.0, 18.0], [0.0, 19.0]])  # both are 1 in single precision
    first, second = max_softmax_score(close).tolist()
    assert first < second < 1
    assert close.softmax(dim=1)[:, 1].unique().numel() == 1  # control


def test_average_precision_of_small_cases() -> None:
    def area(inside: list[float], outside: list[float]) -> float:
        return area_under_precision_recall(torch.tensor(inside), torch.tensor(outside))

    assert area([0.8, 0.9], [0.1, 0.2, 0.3]) == pytest.approx(1)
    # Ascending confidence: in, in, out, out. Precision is 1/3 and 2/4 at the positives.
    assert area([0.1, 0.2], [0.8, 0.9]) == pytest.approx((1 / 3 + 2 / 4) / 2)
    # out, in, out: precision is 1 and 2/3 at the positives.
    assert area([0.5], [0.4, 0.6]) == pytest.approx((1 + 2 / 3) / 2)
    # Equal confidences: one threshold, at which everything is called positive.
    assert area([0.5, 0.5, 0.5], [0.5, 0.5]) == pytest.approx(2 / 5)


@pytest.mark.parametrize("levels", [None, 7])
def test_area_equals_scikit_learns_average_precision(levels: int | None) -> None:
    inside, outside = max_softmax_score(_logits(seed=2)), max_softmax_score(0.7 * _logits(n=89, seed=3))
    if levels is not None:  # ties
        inside, outside = ((levels * scores).round() / levels for scores in (inside, outside))
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    expected = average_precision_score(truth, -torch.cat([inside, outside]).numpy())
    assert area_under_precision_recall(inside, outside) == pytest.approx(expected, abs=ROUNDING)
    # Controls: the confidence itself as score, and the other positive class.
    assert abs(expected - average_precision_score(truth, torch.cat([inside, outside]).numpy())) > 0.01
    assert abs(expected - average_precision_score(1 - truth, -torch.cat([inside, outside]).numpy())) > 0.01


def test_area_depends_on_the_order_of_scores_only() -> None:
    inside, outside = max_softmax_score(_logits(seed=4)), max_softmax_score(_logits(n=53, seed=5))
    area = area_under_precision_recall(inside, outside)
    assert area_under_precision_recall(inside.log(), outside.log()) == pytest.approx(area, abs=ROUNDING)
    assert area_under_precision_recall(inside.flip(0), outside.flip(0)) == pytest.approx(area, abs=ROUNDING)
    assert area_under_precision_recall(-inside, -outside) != pytest.approx(area, abs=1e-3)  # control


# Calibration


def _error(probabilities: Tensor, labels: Tensor, **options: int) -> float:
    confidence, predicted = probabilities.max(dim=1)
    return calibration_error(confidence, predicted == labels, **options)


def test_calibration_error_of_a_small_case() -> None:
    # Two bins. Below one half: confidences .4 and .5, one correct; above: .6, .8 and 1, all correct.
    probabilities = torch.tensor(
        [[0.4, 0.3, 0.3], [0.25, 0.5, 0.25], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]], dtype=torch.float64
    )
    labels = torch.tensor([0, 0, 0, 2, 0])
    expected = 2 / 5 * abs(1 / 2 - 0.45) + 3 / 5 * abs(1 - 0.8)
    assert _error(probabilities, labels, bins=2) == pytest.approx(expected, abs=ROUNDING)
    # Ten bins separate all five.
    each = (0.6 + 0.5 + 0.4 + 0.2 + 0.0) / 5
    assert _error(probabilities, labels, bins=10) == pytest.approx(each, abs=ROUNDING)
    # One bin: the difference between accuracy and mean confidence.
    assert _error(probabilities, labels, bins=1) == pytest.approx(abs(4 / 5 - 3.3 / 5), abs=ROUNDING)


def _calibration_by_loop(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    total = 0.0
    for index in range(bins):
        inside = (confidence > index / bins) & (confidence <= (index + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return float(total)


def _calibrated(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return probabilities and labels drawn from them. Bins err to both sides, so the result depends on the bins."""
    probabilities = (_logits(n=n, k=3, seed=seed) / 2).softmax(dim=1)
    labels = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed + 1)).squeeze(1)
    return probabilities, labels


def test_calibration_error_equals_its_definition() -> None:
    probabilities, labels = _calibrated(EXAMPLES, seed=8)
    expected = {bins: _calibration_by_loop(probabilities.numpy(), labels.numpy(), bins) for bins in (1, 3, 10, 15, 101)}
    for bins, error in expected.items():
        assert _error(probabilities, labels, bins=bins) == pytest.approx(error, abs=ROUNDING)
    assert _error(probabilities, labels) == pytest.approx(expected[15], abs=ROUNDING)
    others = [error for bins, error in expected.items() if bins != 15]
    assert min(abs(error - expected[15]) for error in others) > 1e-3  # control: another number of bins is detected


def test_a_calibrated_model_has_no_error_and_an_overconfident_one_has() -> None:
    n = 40_009
    probabilities, labels = _calibrated(n, seed=6)
    # A bin's gap has a standard deviation of at most sqrt(.25 / count), so the sum over bins at most sqrt(bins / 4n).
    bound = 2 * math.sqrt(15 / (4 * n))
    assert _error(probabilities, labels) <= bound
    sharper = (probabilities.log() * 3).softmax(dim=1)
    assert _error(sharper, labels) > 5 * bound


def test_upper_edges_belong_to_their_bin() -> None:
    # A confidence of exactly 1/2 shares the lower of two bins with .4, where the gaps cancel.
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.4, 0.3, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    together = abs(2 * (1 - 0.5) - 0.4) / 3
    assert _error(probabilities, labels, bins=2) == pytest.approx(together, abs=ROUNDING)
    apart = (2 * (1 - 0.5) + 0.4) / 3
    assert _error(probabilities + torch.tensor([1e-3, -1e-3, 0.0]), labels, bins=2) == pytest.approx(apart, abs=2e-3)


# Input


def test_bad_logits_are_refused(typechecked: bool) -> None:
    logits = _logits(n=5)
    for value in (math.nan, math.inf, -math.inf):
        bad = logits.clone()
        bad[3] = value
        with pytest.raises(InputError, match="expected finite logits; 1 examples have others"):
            max_softmax_score(bad)
        with pytest.raises(InputError, match="expected finite scores_out; got 13 that are not"):
            area_under_precision_recall(logits[0], bad[3])
    with pytest.raises(InputError, match=r"at least one of each; got \(0, 13\)"):
        max_softmax_score(logits[:0])
    with pytest.raises(InputError, match=r"expected scores_in of shape \(examples,\), at least one; got \(0,\)"):
        area_under_precision_recall(logits[0, :0], logits[0])
    if not typechecked:  # the annotations refuse it first
        with pytest.raises(InputError, match=r"logits \(examples, classes\) of floats"):
            max_softmax_score(logits[0])


def test_confidences_of_lower_precision_are_accepted() -> None:
    probabilities, labels = (_logits() / 2).softmax(dim=1), _labels()
    rounded = _error(probabilities.to(torch.bfloat16), labels, bins=1)
    assert rounded == pytest.approx(_error(probabilities, labels, bins=1), abs=tolerance(torch.bfloat16))

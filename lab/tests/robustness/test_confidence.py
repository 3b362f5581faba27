"""Calibration, detection of other classes and the mean corruption error in the record of an evaluation."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead_lab.robustness.classifier import PixelClassifier
from clearhead_lab.robustness.evaluation import attack
from clearhead_lab.robustness.metrics import (
    area_under_precision_recall,
    calibration_error,
    max_softmax_score,
)
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import CorruptionComparison
from lab.tests.robustness.test_batches import Counted
from tests.once import once

EPS = 0.1
FAST: dict[str, Any] = {"eps": EPS, "attacks": ["fgsm"], "batch_size": 13}


class Sharper(nn.Module):
    """A model with larger scores: the same predictions, more confidence."""

    def __init__(self, model: nn.Module, factor: float = 10.0) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, pixels: Tensor) -> Tensor:
        return self.factor * self.model(pixels)


@pytest.fixture(scope="module")
def noise() -> Tensor:
    return torch.rand(31, 1, 8, 8, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_the_calibration_error_is_that_of_the_clean_predictions(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = test_digits
    found = [attack(model, images, labels, **FAST) for model in (undefended, Sharper(undefended))]
    for record, scores in zip(found, (undefended(images), 10 * undefended(images)), strict=True):
        confidence, predicted = scores.double().softmax(dim=-1).max(dim=-1)
        expected = calibration_error(confidence, predicted == labels)
        assert record.calibration_error == pytest.approx(expected, abs=1e-6)
        assert record.to_dict()["calibration_error"] == record.calibration_error
        assert float(record.settings["scores"]) == pytest.approx(float(scores.abs().mean()), rel=1e-3)
    assert found[0].clean == found[1].clean
    assert abs(found[0].calibration_error - found[1].calibration_error) > 1e-2


@torch.no_grad()
def test_other_classes_are_detected_by_the_normalised_confidence(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], noise: Tensor
) -> None:
    images, labels = test_digits
    model = Counted(undefended)
    normalised = PixelClassifier(model, mean=[0.2], std=[0.4])
    record = attack(normalised, images, labels, ood=noise, ood_data="noise", **FAST)
    expected = area_under_precision_recall(*(max_softmax_score(undefended((x - 0.2) / 0.4)) for x in (images, noise)))
    assert record.detection.area == pytest.approx(expected, abs=1e-6)
    assert (record.detection.data, record.detection.images) == ("noise", 31)
    assert record.detection.chance == 31 / 128
    assert max(model.sizes) == 13
    raw = area_under_precision_recall(*(max_softmax_score(undefended(x)) for x in (images, noise)))
    assert abs(raw - expected) > 1e-3
    own = attack(undefended, images, labels, ood=images, **FAST).detection
    assert own.area == pytest.approx(own.chance, abs=0.05)  # control: the same images are not told apart


@once  # annotations refuse some of these before the function does
@pytest.mark.parametrize(
    ("ood", "message"),
    [
        (torch.rand(7, 1, 8, 5), r"out-of-distribution images \(m, 1, 8, 8\).*got \(7, 1, 8, 5\)"),
        (torch.rand(7, 3, 8, 8), r"got \(7, 3, 8, 8\)"),
        (torch.rand(0, 1, 8, 8), r"at least one; got \(0, 1, 8, 8\)"),
        (torch.zeros(7, 1, 8, 8, dtype=torch.uint8), "of floats.*uint8"),
        (torch.rand(7, 1, 8, 8) - 0.5, "out-of-distribution pixels from 0 to 1, not normalised"),
        (torch.full((7, 1, 8, 8), math.nan), "out-of-distribution pixels from 0 to 1"),
    ],
)
def test_bad_images_of_other_classes_are_refused_in_one_line(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], ood: Tensor, message: str
) -> None:
    model = Counted(undefended)
    with pytest.raises(InputError, match=message) as error:
        attack(model, *test_digits, ood=ood, **FAST)
    assert "\n" not in str(error.value)
    assert not model.sizes  # refused before anything is computed


def test_scores_of_other_classes_that_are_not_finite_are_refused(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    class Overflowing(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            white = (pixels == 1).flatten(1).all(dim=1, keepdim=True)
            return torch.where(white, torch.inf, undefended(pixels))

    with pytest.raises(InputError, match="not finite for some out-of-distribution images"):
        attack(Overflowing(), *test_digits, ood=torch.ones(3, 1, 8, 8), **FAST)


@pytest.fixture(scope="module")
def pair(undefended: nn.Module, twin: nn.Module, test_digits: tuple[Tensor, Tensor]) -> tuple[Robustness, Robustness]:
    """Two models under corruptions of the same images."""
    images, labels = (x[:37] for x in test_digits)
    first, second = (
        attack(model, images, labels, suite="standard", name=name, **FAST)
        for model, name in ((undefended, "one"), (twin, "other"))
    )
    return first, second


def test_the_corruption_error_is_relative_to_the_other_model(pair: tuple[Robustness, Robustness]) -> None:
    one, other = pair
    ratios = {
        name: 100 * (5 - sum(one.corruptions[name])) / (5 - sum(other.corruptions[name])) for name in one.corruptions
    }
    compared = one.with_baseline(other).corruption_comparison
    assert compared.baseline == "other"
    assert compared.by_corruption == pytest.approx(ratios)
    assert compared.mean == pytest.approx(sum(ratios.values()) / 8)
    assert one.corruption_errors(one).mean == 100
    assert abs(compared.mean - other.with_baseline(one).corruption_comparison.mean) > 1e-3


def test_records_without_a_corruption_error_have_its_reason(pair: tuple[Robustness, Robustness]) -> None:
    one, other = pair
    fewer = dataclasses.replace(other, corruptions=dict(list(other.corruptions.items())[1:]), suite="full")
    none = dataclasses.replace(other, corruptions={})
    perfect = dataclasses.replace(other, corruptions=dict.fromkeys(other.corruptions, (1.0,) * 5))
    for baseline, message in (
        (fewer, "the corruptions differ, those of the suite standard and, for other, full: attack both with the same"),
        (none, "other has no corruptions: attack it with the suite standard or full"),
        (perfect, "the baseline makes no errors under gaussian noise"),
    ):
        for first, second in ((one, baseline),) if baseline is perfect else ((one, baseline), (baseline, one)):
            compared = first.with_baseline(second).corruption_comparison
            assert compared.mean is None
            assert not compared.by_corruption
            assert compared.reason
        reason = one.with_baseline(baseline).corruption_comparison.reason
        assert message in reason
        with pytest.raises(InputError, match=r"corruption|makes no errors"):
            one.corruption_errors(baseline)
    assert none.with_baseline(none) is none
    elsewhere = dataclasses.replace(other, settings={**other.settings, "images": "others"})
    for method in (one.with_baseline, one.corruption_errors):
        with pytest.raises(InputError, match="different images"):
            method(elsewhere)


def test_records_keep_the_measures_in_files(
    pair: tuple[Robustness, Robustness], undefended: nn.Module, test_digits: tuple[Tensor, Tensor], noise: Tensor
) -> None:
    measured = attack(undefended, *test_digits, ood=noise, ood_data="noise", **FAST)
    for record in (measured, pair[0].with_baseline(pair[1])):
        stored = json.loads(json.dumps(record.to_dict()))
        again = Robustness.from_dict(stored)
        assert again.calibration_error == record.calibration_error is not None
        assert again.detection == record.detection
        assert again.corruption_comparison == record.corruption_comparison
        assert stored["definitions"]["calibration_error"].startswith("expected calibration error of the clean")
        for name in ("calibration_error", "detection", "mean_corruption_error", "definitions"):
            del stored[name]  # as in records of earlier versions
        earlier = Robustness.from_dict(stored)
        assert (earlier.calibration_error, earlier.detection, earlier.corruption_comparison) == (None, None, None)
    reason = CorruptionComparison(baseline="other", reason="differ")
    kept = Robustness.from_dict(dataclasses.replace(measured, corruption_comparison=reason).to_dict())
    assert kept.corruption_comparison == reason
    with pytest.raises(InputError, match="the record of an attack cannot be read"):
        Robustness.from_dict({**measured.to_dict(), "detection": {"area": 1}})

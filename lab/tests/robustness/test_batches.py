"""The batch size bounds what a model gets at once, and with it the memory of an evaluation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.numerics.precision import tolerance
from clearhead_lab.robustness import attacks, sanity, task
from clearhead_lab.robustness.binarisation import binarisation_test
from clearhead_lab.robustness.classifier import PixelClassifier
from clearhead_lab.robustness.evaluation import attack
from tests.once import once

EPS, MOST = 0.1, 5


class Counted(nn.Module):
    """A model that notes how many images it gets in each call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.sizes = model, []

    def forward(self, pixels: Tensor) -> Tensor:
        self.sizes.append(len(pixels))
        return self.model(pixels)


@pytest.mark.parametrize(
    ("options", "images"),
    [
        ({}, 23),
        pytest.param({"suite": "standard", "attacks": ["apgd-ce", "square"]}, 13, marks=once),
        pytest.param({"suite": "full", "attacks": ["cw", "hopskipjump"]}, 7, marks=once),
        ({"protocol": "paper", "attacks": ["fgsm", "spsa"]}, 13),
    ],
    ids=["fast", "corruptions", "libraries", "paper"],
)
def test_no_call_has_more_images_than_the_batch_size(
    undefended: nn.Module,
    twin: nn.Module,
    test_digits: tuple[Tensor, Tensor],
    options: dict[str, Any],
    images: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attacks, clean predictions, corruptions, examples and sanity checks, of the model and its twin."""
    monkeypatch.setattr(task, "CORRUPTED_AT_ONCE", 11)
    if options.get("suite") == "full":
        monkeypatch.setattr("clearhead_lab.robustness.imagenet_c.IMAGENET_C", task.CORRUPTIONS[:1])
    model, other = Counted(undefended), Counted(twin)
    pixels, labels = (x[:images] for x in test_digits)
    found = attack(model, pixels, labels, eps=EPS, twin=other, batch_size=MOST, **options)
    assert max(model.sizes) == MOST
    if found.protocol == "pixels":
        assert len(found.examples) == 6
        assert max(other.sizes) == MOST
        assert {line.name: line.status for line in found.sanity}["binarisation test"] != "not run"


def test_a_divided_classifier_is_the_classifier(undefended: nn.Module, test_digits: tuple[Tensor, Tensor]) -> None:
    images, _ = test_digits
    whole = PixelClassifier(undefended, mean=[0.3], std=[0.5])
    divided = whole.in_batches(MOST)
    assert [len(part) for part in divided.split(images)] == [MOST] * 19 + [2]
    with torch.no_grad():
        assert float((whole(images) - divided(images)).abs().max()) <= 64 * tolerance(torch.float32)
        assert torch.equal(divided(images[:0]), whole(images[:0]))
    assert divided.normalisation == whole.normalisation
    assert (divided.with_model(nn.Flatten()).batch_size, whole.batch_size) == (MOST, None)


def test_the_binarisation_test_does_not_depend_on_the_batch_size(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    results = [
        binarisation_test(
            PixelClassifier(undefended, batch_size=batch_size), test_digits[0][:16], eps=EPS, steps=20,
            generator=torch.Generator().manual_seed(0),
        )
        for batch_size in (None, 3, 7)
    ]  # fmt: skip
    assert results[0].problems > 5
    assert results[1:] == results[:1] * 2


def test_gradients_are_of_one_batch(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of gradients fill the memory, so none is of more images, whatever calls the model gets them in."""
    sizes, gradient = [], attacks.score_gradient

    def noted(scores: Any, images: Tensor, labels: Tensor) -> Tensor:
        sizes.append(len(images))
        return gradient(scores, images, labels)

    for module in (attacks, sanity):
        monkeypatch.setattr(module, "score_gradient", noted)
    images, labels = test_digits
    attack(undefended, images[:23], labels[:23], eps=EPS, attacks=["pgd"], batch_size=MOST)
    assert max(sizes) == MOST
    attacks.pgd(PixelClassifier(undefended, batch_size=MOST), images, labels, eps=EPS, steps=1)
    assert max(sizes) == len(images)  # control: a divided classifier alone does not bound the graphs


def test_corrupted_images_do_not_depend_on_the_batch_size(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "CORRUPTED_AT_ONCE", 40)
    records = [
        attack(undefended, *test_digits, eps=EPS, suite="standard", attacks=["fgsm"], batch_size=batch_size)
        for batch_size in (13, 97)
    ]
    assert records[0].corruptions == records[1].corruptions
    monkeypatch.setattr(task, "CORRUPTED_AT_ONCE", 97)
    whole = attack(undefended, *test_digits, eps=EPS, suite="standard", attacks=["fgsm"])
    assert whole.corruptions != records[0].corruptions  # control: the draws do depend on the images at once

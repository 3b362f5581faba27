"""Attacks: budgets, what they reach, parity with two other libraries, and what they refuse."""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead_lab.robustness.attacks import Scores, fgsm, margin, pgd, spsa
from clearhead_lab.robustness.classifier import PixelClassifier

EPS, IMAGES, CLASSES = 0.07, 13, 5
Attack = Callable[..., Tensor]


class Network(nn.Module):
    """A small smooth classifier."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = nn.Parameter(torch.randn(3 * 6 * 5, 17, generator=generator, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(17, CLASSES, generator=generator, dtype=torch.float64))

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.tanh((pixels.flatten(1) - 0.5) @ self.first / 3) @ self.second


NETWORK = Network()
PIXELS = torch.rand(IMAGES, 3, 6, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
LABELS = NETWORK(PIXELS).argmax(dim=-1).detach()


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _accuracy(images: Tensor) -> float:
    return float((NETWORK(images).argmax(dim=-1) == LABELS).double().mean())


ATTACKS: dict[str, Attack] = {
    "fgsm": fgsm,
    "pgd": lambda *args, **options: pgd(*args, **options, generator=_generator()),
    "spsa": lambda *args, **options: spsa(*args, **options, samples=16, steps=10, generator=_generator()),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_stays_within_its_budget_and_the_box(name: str) -> None:
    dark = PIXELS.clone()
    dark[:, :, 0] = 0
    dark[:, :, 1] = 1
    for images in (PIXELS, dark):
        attacked = ATTACKS[name](NETWORK, images, LABELS, eps=EPS)
        assert float((attacked - images).abs().max()) <= EPS + 1e-12
        assert float(attacked.min()) >= 0
        assert float(attacked.max()) <= 1
        assert not attacked.requires_grad
        assert not torch.equal(attacked, images)


@pytest.mark.parametrize("name", ATTACKS)
def test_budget_zero_changes_nothing(name: str) -> None:
    assert torch.equal(ATTACKS[name](NETWORK, PIXELS, LABELS, eps=0.0), PIXELS)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_lowers_every_margin(name: str) -> None:
    before = margin(NETWORK, PIXELS, LABELS)
    after = margin(NETWORK, ATTACKS[name](NETWORK, PIXELS, LABELS, eps=0.02), LABELS)
    assert bool((before > 0).all())
    assert bool((after < before).all())


def test_stronger_attacks_are_stronger() -> None:
    clean, single = _accuracy(PIXELS), _accuracy(fgsm(NETWORK, PIXELS, LABELS, eps=EPS))
    iterated = _accuracy(pgd(NETWORK, PIXELS, LABELS, eps=EPS, steps=40, generator=_generator()))
    assert clean == 1 > single >= iterated
    assert _accuracy(pgd(NETWORK, PIXELS, LABELS, eps=1.0, steps=40, generator=_generator())) == 0


def test_restarts_keep_what_fooled_the_model() -> None:
    """Steps of size zero leave the random starts. Half of them fool this model, so eight fool nearly all images."""

    def by_first_pixel(pixels: Tensor) -> Tensor:
        return torch.stack([0.5 - pixels[:, 0, 0, 0], pixels[:, 0, 0, 0] - 0.5], dim=-1)

    images, labels = torch.full((400, 1, 2, 2), 0.5), torch.zeros(400, dtype=torch.long)
    shares = []
    for restarts in (1, 8):
        attacked = pgd(
            by_first_pixel, images, labels, eps=EPS, step_size=0.0, restarts=restarts, generator=_generator()
        )
        shares.append(float((margin(by_first_pixel, attacked, labels) < 0).double().mean()))
    assert 0.4 < shares[0] < 0.6
    assert shares[1] > 0.97


def test_the_result_of_an_image_does_not_depend_on_its_batch() -> None:
    for attack in (fgsm, lambda *args, **options: pgd(*args, **options, random_start=False)):
        whole = attack(NETWORK, PIXELS, LABELS, eps=EPS)
        alone = torch.cat([attack(NETWORK, PIXELS[i : i + 1], LABELS[i : i + 1], eps=EPS) for i in range(IMAGES)])
        assert torch.allclose(whole, alone, atol=1e-12)


def test_random_numbers_come_from_the_generator() -> None:
    for name in ("pgd", "spsa"):
        one, same = (ATTACKS[name](NETWORK, PIXELS, LABELS, eps=EPS) for _ in range(2))
        assert torch.equal(one, same)
    one, other = (pgd(NETWORK, PIXELS, LABELS, eps=EPS, steps=1, generator=_generator(seed)) for seed in range(2))
    assert not torch.equal(one, other)


def test_the_first_step_of_spsa_has_the_length_of_its_rate() -> None:
    """Adam divides its averages, which begin at zero, by the share of them that is filled."""
    attacked = spsa(NETWORK, PIXELS, LABELS, eps=1.0, steps=1, samples=16, bounds=None, generator=_generator())
    torch.testing.assert_close((attacked - PIXELS).abs(), torch.full_like(PIXELS, 0.01), rtol=1e-4, atol=0)


def test_the_default_step_of_pgd_is_that_of_madry() -> None:
    seen: list[Tensor] = []

    def scores(images: Tensor) -> Tensor:
        seen.append(images.detach())
        return NETWORK(images)

    pgd(scores, PIXELS, LABELS, eps=EPS, steps=20, random_start=False, bounds=None)
    assert float((seen[1] - seen[0]).abs().max()) == pytest.approx(2.5 * EPS / 20)


def test_an_image_whose_scores_are_tied_is_not_fooled() -> None:
    def tied(images: Tensor) -> Tensor:
        return images.flatten(1)[:, :CLASSES] * 0

    options: dict[str, Any] = {"eps": EPS, "steps": 1, "bounds": None}
    once = pgd(tied, PIXELS, LABELS, generator=_generator(), **options)
    again = pgd(tied, PIXELS, LABELS, generator=_generator(), restarts=2, **options)
    assert not (once == again).flatten(1).any(dim=1).any()  # the last start is kept


def test_spsa_needs_no_gradient() -> None:
    """Quantised inputs have a gradient of zero: FGSM and PGD from the image itself leave it, SPSA does not."""

    def quantised(pixels: Tensor) -> Tensor:
        return NETWORK((pixels * 63).round() / 63 + 0 * pixels)

    hidden = fgsm(quantised, PIXELS, LABELS, eps=EPS)
    assert torch.equal(hidden, PIXELS)
    found = spsa(quantised, PIXELS, LABELS, eps=EPS, samples=32, steps=20, delta=0.02, generator=_generator())
    assert _accuracy(found) < _accuracy(hidden) == 1


def test_spsa_estimates_the_gradient() -> None:
    """The first step of Adam is the sign of the estimate; with many samples of a linear model it is the gradient's."""
    weight = torch.randn(3 * 6 * 5, 2, generator=_generator(), dtype=torch.float64)
    labels = torch.zeros(IMAGES, dtype=torch.long)

    def linear(pixels: Tensor) -> Tensor:
        return pixels.flatten(1) @ weight

    inside = 0.4 + 0.2 * PIXELS
    attacked = spsa(linear, inside, labels, eps=EPS, steps=1, samples=2000, learning_rate=0.01, generator=_generator())
    downhill = (weight[:, 1] - weight[:, 0]).sign().reshape(3, 6, 5)
    agree = ((attacked - inside).sign() == downhill).double().mean()
    assert agree > 0.9


@pytest.mark.parametrize("steps", [1, 7])
def test_tensors_equal_those_of_foolbox(steps: int) -> None:
    foolbox = import_module("foolbox")
    model = foolbox.PyTorchModel(NETWORK.eval(), bounds=(0, 1), device="cpu")
    criterion = foolbox.criteria.Misclassification(LABELS)
    theirs, _, _ = foolbox.attacks.LinfFastGradientAttack(random_start=False)(model, PIXELS, criterion, epsilons=[EPS])
    assert torch.allclose(fgsm(NETWORK, PIXELS, LABELS, eps=EPS), theirs[0], atol=1e-12)
    attack = foolbox.attacks.LinfPGD(abs_stepsize=0.02, steps=steps, random_start=False)
    theirs, _, _ = attack(model, PIXELS, criterion, epsilons=[EPS])
    ours = pgd(NETWORK, PIXELS, LABELS, eps=EPS, steps=steps, step_size=0.02, random_start=False)
    assert torch.allclose(ours, theirs[0], atol=1e-12)


@pytest.mark.parametrize("steps", [1, 7])
def test_tensors_equal_those_of_torchattacks(steps: int) -> None:
    torchattacks = import_module("torchattacks")
    network = NETWORK.eval()
    theirs = torchattacks.FGSM(network, eps=EPS)(PIXELS, LABELS)
    assert torch.allclose(fgsm(NETWORK, PIXELS, LABELS, eps=EPS), theirs, atol=1e-12)
    theirs = torchattacks.PGD(network, eps=EPS, alpha=0.02, steps=steps, random_start=False)(PIXELS, LABELS)
    ours = pgd(NETWORK, PIXELS, LABELS, eps=EPS, steps=steps, step_size=0.02, random_start=False)
    assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"logits": x}, lambda x: SimpleNamespace(logits=x), lambda x: (x, 0)]
)
def test_a_classifier_reads_scores_of_every_kind(wrap: Callable[[Tensor], Any]) -> None:
    class Wrapped(nn.Module):
        def forward(self, pixels: Tensor) -> Any:
            return wrap(NETWORK(pixels))

    assert torch.equal(PixelClassifier(Wrapped()).predict(PIXELS), LABELS)


def test_a_budget_is_in_pixels_whatever_the_normalisation() -> None:
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    centre, scale = (torch.tensor(x, dtype=torch.float64).reshape(-1, 1, 1) for x in (mean, std))

    class Normalised(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return NETWORK(inputs * scale + centre)

    classifier = PixelClassifier(Normalised(), mean=mean, std=std)
    assert torch.allclose(classifier(PIXELS), NETWORK(PIXELS))
    attacked = fgsm(classifier, PIXELS, LABELS, eps=EPS)
    assert torch.allclose(attacked, fgsm(NETWORK, PIXELS, LABELS, eps=EPS), atol=1e-12)


def test_bad_input_is_refused(typechecked: bool) -> None:
    def attack(scores: Scores = NETWORK, images: Tensor = PIXELS, labels: Tensor = LABELS, **options: Any) -> Tensor:
        return pgd(scores, images, labels, **{"eps": EPS, **options})

    with pytest.raises(InputError, match=r"eps of at least 0; got -0\.1"):
        attack(eps=-0.1)
    with pytest.raises(InputError, match="pixels from 0 to 1; got -"):
        attack(images=PIXELS - 0.5)
    if not typechecked:  # the annotations refuse these first
        with pytest.raises(InputError, match="floats from 0 to 1"):
            attack(images=(PIXELS * 255).to(torch.uint8))
        with pytest.raises(InputError, match="label for each of 13 images; got 12"):
            attack(labels=LABELS[:-1])
    with pytest.raises(InputError, match="restarts need random starts"):
        attack(restarts=2, random_start=False)
    with pytest.raises(InputError, match="of at least 1"):
        attack(steps=0)
    with pytest.raises(InputError, match="even number of samples"):
        spsa(NETWORK, PIXELS, LABELS, eps=EPS, samples=3)
    with pytest.raises(InputError, match=r"expected scores of shape \(images, classes\)"):
        PixelClassifier(nn.Identity())(PIXELS)
    with pytest.raises(InputError, match="above zero"):
        PixelClassifier(NETWORK, std=[0.0, 1.0, 1.0])

"""Parts of the sanity report: the comparison of attacks, the surrogate, the binarisation test, and library attacks."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from clearhead._swap import swap
from clearhead.modules.rpc import RPCAttention
from clearhead.operators.named import RPC, ClampedKeys, Symmetric
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.robustness.attacks import fgsm, pgd
from clearhead_lab.robustness.binarisation import binarisation_test
from clearhead_lab.robustness.classifier import (
    PixelClassifier,
    evaluated,
    one_step_surrogate,
    optimises_in_forward,
    pixel_classifier,
)  # fmt: skip
from clearhead_lab.robustness.library_attacks import auto_attack, carlini_wagner, hop_skip_jump
from clearhead_lab.robustness.results import AttackResult, bootstrap_mean, budget_text
from clearhead_lab.robustness.sanity import Evidence, is_weaker
from clearhead_lab.robustness.suites import Attack

EPS = 0.1


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _vit(attention: object) -> VisionTransformer:
    config = VisionTransformerConfig(
        image_size=8, patch_size=2, channels=1, classes=5, width=12, layers=2, heads=3, mlp_width=7, attention=attention
    )
    return VisionTransformer(config, generator=_generator()).eval()


@pytest.mark.parametrize(("by_strong", "by_weak"), [(0, 0), (0, 4), (0, 5), (3, 10), (3, 11), (10, 3), (40, 55)])
def test_the_sign_test_is_scipys(by_strong: int, by_weak: int) -> None:
    both = 7
    strong = torch.tensor([False] * by_strong + [True] * by_weak + [True] * both)
    weak = torch.tensor([True] * by_strong + [False] * by_weak + [True] * both)
    flagged, *counts = is_weaker(strong, weak)
    assert counts == [by_strong, by_weak]
    total = by_strong + by_weak
    expected = total > 0 and binomtest(by_weak, total, 0.5, alternative="greater").pvalue < 0.05
    assert flagged == expected


def test_intervals_cover_the_mean() -> None:
    """The bootstrap interval of a share is that of a binomial number; of draws at .3, about 95% contain .3."""
    covered = 0
    for seed in range(200):
        values = (torch.rand(83, generator=_generator(seed)) < 0.3).long()
        interval = bootstrap_mean(values).interval
        covered += interval.low <= 0.3 <= interval.high
    assert 178 <= covered <= 199
    assert bootstrap_mean(torch.zeros(83, dtype=torch.long)).interval.high == pytest.approx(0.0442, abs=1e-3)
    same = bootstrap_mean(torch.zeros(83, dtype=torch.long), limits=(-1.0, 1.0)).interval
    assert same.low == -same.high < 0


def test_budgets_read_as_people_write_them() -> None:
    written = [budget_text(eps) for eps in (8 / 255, 0.5 / 255, 1.0, 0.1, 0.0, 1 / 3, 2.25 / 255)]
    assert written == ["8/255", "0.5/255", "255/255", "0.1", "0", "85/255", "2.25/255"]


@pytest.mark.parametrize("first", [(0, 1, 2, 3), (1, 1, 2, 3)])
def test_every_attack_of_a_kind_counts(first: tuple[int, ...]) -> None:
    """An image is right if no attack of the kind fooled it; attacks on fewer images leave out the others."""
    box = {name: Attack(title=name, run=fgsm, access="black box") for name in ("a", "b")}
    results = [
        AttackResult(attack=name, title=name, eps=0.1, predicted=predicted, largest_change=0.1)
        for name, predicted in (("a", first), ("b", (0, 1, 9)))
    ]
    labels = torch.arange(4)
    evidence = Evidence(
        classifier=PixelClassifier(nn.Identity()), images=torch.zeros(4, 1, 1, 1), labels=labels, eps=0.1, attacks=box,
        results=tuple(results), all_labels=labels, batch_size=4, seed=0,
    )  # fmt: skip
    right = evidence.right_by_results(lambda attack: attack.access == "black box")
    assert right is not None
    assert right.tolist() == [first[0] == 0, True, False]
    assert evidence.right_by_results(lambda attack: attack.access == "white box") is None


def test_models_that_optimise_in_their_forward_pass() -> None:
    looping = RPC(iterations=2, strength=3.0)
    assert optimises_in_forward(_vit(looping))
    assert optimises_in_forward(_vit((RPC(iterations=3, queries="given"), Symmetric())))
    assert optimises_in_forward(nn.Sequential(RPCAttention(12, 3, iterations=4)))
    for attention in (Symmetric(), ClampedKeys(), RPC(iterations=1)):
        assert not optimises_in_forward(_vit(attention))
        assert one_step_surrogate(_vit(attention)) is None
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(
        ViTConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=7, image_size=8)
    )
    assert not optimises_in_forward(model)
    with swap(model, looping):
        assert optimises_in_forward(model)
    assert not optimises_in_forward(model)


def test_the_surrogate_takes_one_step_and_leaves_the_model() -> None:
    model, clamped = _vit(RPC(iterations=4, strength=4.0)), _vit(ClampedKeys(strength=4.0))
    clamped.load_state_dict(model.state_dict())
    images = torch.rand(3, 1, 8, 8, generator=_generator(2))
    before = model(images)
    surrogate = one_step_surrogate(model)
    assert surrogate is not None
    assert torch.allclose(surrogate(images), clamped(images), atol=1e-6)
    assert not torch.allclose(surrogate(images), before, atol=1e-4)
    assert torch.equal(model(images), before)
    module = RPCAttention(12, 3, iterations=4)
    changed = one_step_surrogate(nn.Sequential(module))
    assert changed is not None
    assert (changed[0].pursuit.iterations, module.pursuit.iterations) == (1, 4)  # type: ignore[index]


def test_the_binarisation_test_tells_working_gradients_from_masked_ones(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    images = test_digits[0][:13]
    works = binarisation_test(PixelClassifier(undefended), images, eps=EPS, steps=20, generator=_generator())
    assert works is not None
    assert (works.attack, works.problems) == (1.0, 13)
    assert works.random < 0.5

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = undefended

        def forward(self, pixels: Tensor) -> Tensor:
            return self.model(pixels.detach() + 0 * pixels)

    masked = binarisation_test(PixelClassifier(Masked()), images, eps=EPS, steps=20, generator=_generator())
    assert masked is not None
    assert masked.problems == 13
    assert masked.attack < 0.5
    without = nn.Sequential(nn.Flatten(), nn.Softmax(dim=-1))
    assert binarisation_test(PixelClassifier(without), images, eps=EPS, steps=2, generator=_generator()) is None


LIBRARY = {
    "autoattack": lambda *a, **o: auto_attack(*a, queries=50, steps=10, **o),
    "square": lambda *a, **o: auto_attack(*a, attacks=("square",), queries=200, **o),
    "cw": lambda *a, **o: carlini_wagner(*a, steps=60, searches=3, **o),
    "hopskipjump": lambda *a, **o: hop_skip_jump(*a, steps=3, **o),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_library_attacks_stay_in_the_budget_and_leave_global_draws(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], name: str
) -> None:
    images, labels = test_digits[0][:17], undefended(test_digits[0][:17]).argmax(dim=-1).detach()
    torch.manual_seed(11)
    np.random.seed(11)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    with evaluated(PixelClassifier(undefended)):
        first, same, other = (
            LIBRARY[name](undefended, images, labels, eps=EPS, generator=_generator(seed)) for seed in (0, 0, 1)
        )
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(first, same)
    assert float((first - images).abs().max()) <= EPS + 1e-6
    assert 0 <= float(first.min()) <= float(first.max()) <= 1
    assert float((undefended(first).argmax(dim=-1) == labels).double().mean()) < 1
    if name in ("square", "hopskipjump"):
        assert not torch.equal(first, other)


def test_autoattack_is_at_least_as_strong_as_pgd(undefended: nn.Module, test_digits: tuple[Tensor, Tensor]) -> None:
    images, labels = test_digits[0], undefended(test_digits[0]).argmax(dim=-1).detach()
    strong = auto_attack(undefended, images, labels, eps=0.05, queries=100, steps=30, generator=_generator())
    weak = pgd(undefended, images, labels, eps=0.05, steps=20, generator=_generator())
    right = [undefended(x).argmax(dim=-1) == labels for x in (strong, weak)]
    assert 0 < float(right[0].double().mean()) <= float(right[1].double().mean()) < 1


def test_normalisations_are_read_off_the_model() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1, img_size=32)
    classifier = pixel_classifier(model)
    assert "0.5" in classifier.normalisation
    pixels = torch.rand(2, 3, 32, 32, generator=_generator())
    model.eval()
    assert torch.allclose(classifier(pixels), model((pixels - 0.5) / 0.5), atol=1e-5)
    assert pixel_classifier(_vit(Symmetric())).normalisation == "by the model"
    assert pixel_classifier(nn.Flatten()).normalisation == "none"
    assert pixel_classifier(classifier) is classifier

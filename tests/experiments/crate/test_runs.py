"""CRATE and a vision transformer trained side by side: what is made, that it resumes, and that maps become scores."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.experiments.crate import runs as crate_runs
from clearhead.experiments.crate import segmentation as crate_segmentation
from clearhead.experiments.crate.pets import MaskedImages
from clearhead.experiments.crate.runs import VIT, Plan, train_all
from clearhead.experiments.experiment import Request
from clearhead.experiments.images import ImageSet
from clearhead.models.crate import Crate, Form
from clearhead.models.vit import VisionTransformer
from clearhead.training.loop import Recipe

PLAN = Plan(
    patch_size=4, layers=2, heads=2, crate_width=14, vit_width=10, mlp_width=11,
    recipe=Recipe(epochs=2, batch_size=11, warmup=0.0), augment=None, forms=(Form.RELEASED, Form.PAPER), seeds=2,
)  # fmt: skip


def drawn(n: int = 22, *, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (n + 7, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n + 7) % 3
    return ImageSet(
        name="drawn", train_images=images[:n], train_labels=labels[:n], test_images=images[n:], test_labels=labels[n:]
    )


def test_every_model_is_trained_from_every_seed_on_its_own(tmp_path: Path) -> None:
    told: list[str] = []
    request = Request(out=tmp_path, seed=5, tell=lambda what, done, total: told.append(what))
    runs = train_all(drawn(), PLAN, request, tmp_path)
    assert [(run.name, run.seed) for run in runs] == [
        (name, seed) for seed in (5, 6) for name in ("CRATE, released", "CRATE, paper", VIT)
    ]
    kinds = [type(run.model()) for run in runs]
    assert kinds == [Crate, Crate, VisionTransformer] * 2
    assert {run.images for run in runs} == {7}
    assert all(run.parameters == sum(p.numel() for p in run.model().parameters()) for run in runs)
    weights = [run.model().state_dict()["head.weight"] for run in runs if run.name == VIT]
    assert not torch.equal(*weights)
    assert any("CRATE, paper, seed 6: loss" in what for what in told)


def test_what_is_finished_is_not_trained_again_unless_it_would_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(PLAN, forms=(Form.RELEASED,), seeds=1)
    first = train_all(drawn(), plan, Request(out=tmp_path), tmp_path)

    def no_training(*args: object, **others: object) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr(crate_runs, "train", no_training)
    assert train_all(drawn(), plan, Request(out=tmp_path), tmp_path) == first
    with pytest.raises(AssertionError, match="it trains"):
        train_all(drawn(seed=1), plan, Request(out=tmp_path), tmp_path)
    with pytest.raises(AssertionError, match="it trains"):
        train_all(drawn(), plan, Request(out=tmp_path, epochs=3), tmp_path)


def test_the_plans_compare_models_of_like_size() -> None:
    for plan, size, channels in ((crate_runs.FASHION_PLAN, 28, 1), (crate_runs.PETS_PLAN, 64, 3)):
        images = torch.zeros(3, channels, size, size, dtype=torch.uint8)
        labels = torch.arange(3)
        few = ImageSet(name="", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
        sizes = []
        for config in plan.configs(few).values():
            with torch.device("meta"):
                model = VisionTransformer(config) if config.__class__.__name__.startswith("Vision") else Crate(config)
            sizes.append(sum(p.numel() for p in model.parameters()))
        assert max(sizes) < 1.05 * min(sizes)


def made_masks(images: ImageSet, *, side: int) -> MaskedImages:
    objects = torch.zeros(len(images.test_images), side, side, dtype=torch.bool)
    objects[:, : side // 2] = True
    return MaskedImages(images=images, objects=objects, counted=torch.ones_like(objects))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crate_segmentation, "SIZE", 8)
    monkeypatch.setattr(crate_segmentation, "PETS_PLAN", dataclasses.replace(PLAN, seeds=2, forms=(Form.RELEASED,)))
    monkeypatch.setattr(crate_segmentation, "SHOWN", 2)


def test_masks_that_ignore_the_image_are_scored_by_their_overlap(small: None) -> None:
    found = crate_segmentation.blind(made_masks(drawn(), side=8), images=6)
    assert found[crate_segmentation.EVERYTHING] == pytest.approx(0.25)  # half of the object's union, none of the rest's


def test_the_best_head_is_chosen_on_other_images_than_it_is_scored_on() -> None:
    heads = np.array([[0.9, 0.1], [0.2, 0.4], [0.9, 0.1], [0.2, 0.6]])
    found = crate_segmentation.scores(heads)
    assert found["head"] == 0
    assert found["best"] == pytest.approx(0.2)
    assert found["mean"] == pytest.approx(0.35)


def test_the_whole_run_prints_every_model_beside_itself_before_training(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crate_segmentation, "read_pets", lambda *_, **__: made_masks(drawn(), side=8))
    request = Request(out=tmp_path, data=tmp_path, epochs=1)
    outcome = crate_segmentation.SEGMENTATION.run(request, tmp_path / "run")
    assert "a blob in the middle" in outcome.headline
    assert set(outcome.facts["found"]) == {
        name + before for name in ("CRATE, released", VIT) for before in ("", crate_segmentation.BEFORE)
    }
    assert "before training" in (tmp_path / "run" / "table.md").read_text()
    assert (tmp_path / "run" / "picture.svg").read_text().count("<image") == 2 * 6


def test_segmentation_without_images_says_which_it_wants(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Oxford-IIIT Pet set"):
        crate_segmentation.SEGMENTATION.run(Request(out=tmp_path), tmp_path)

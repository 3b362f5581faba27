"""Studies of images in memory: every variant from every seed, resumed, and refused in a folder of another run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from clearhead.errors import InputError
from clearhead_lab.data.image_sets import ImageSet
from clearhead_lab.experiments.crate import training
from clearhead_lab.experiments.crate.training import VIT, variants
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.study import Study, StudyRun, in_memory, train_all, variants_named
from clearhead_lab.models.crate import Crate, Form
from clearhead_lab.models.vit import VisionTransformer
from clearhead_lab.training import run as training_run
from clearhead_lab.training.loop import DivergedError
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.run import build_model

SIZES = {"crate_width": 14, "width": 10, "mlp_width": 11}
STUDY = Study(
    small=in_memory(Recipe(epochs=2, batch_size=11, warmup=0.0), patch_size=4, layers=2, heads=2),
    variants=variants(Form.RELEASED, Form.PAPER, **SIZES),
    seeds=2,
)


def random_images(n: int = 22, *, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (n + 7, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n + 7) % 3
    return ImageSet(
        name="random", train_images=images[:n], train_labels=labels[:n], test_images=images[n:], test_labels=labels[n:]
    )


def train_on(images: ImageSet, study: Study, request: Request) -> list[StudyRun]:
    return train_all(study, request, data=images, folder=request.out)


def test_every_model_is_trained_from_every_seed(tmp_path: Path) -> None:
    reported: list[str] = []
    request = Request(out=tmp_path, seed=5, progress=lambda what, done, total: reported.append(what))
    runs = train_on(random_images(), STUDY, request)
    assert [(run.variant, run.seed) for run in runs] == [
        (name, seed) for seed in (5, 6) for name in ("CRATE, released", "CRATE, paper", VIT)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "crate-paper-5", "crate-paper-6", "crate-released-5", "crate-released-6", "vit-5", "vit-6",
    ]  # fmt: skip
    kinds = [type(run.model()) for run in runs]
    assert kinds == [Crate, Crate, VisionTransformer] * 2
    assert {run.accuracy.images for run in runs} == {7}
    assert all(run.parameters == sum(p.numel() for p in run.model().parameters()) for run in runs)
    weights = [run.model().state_dict()["head.weight"] for run in runs if run.variant == VIT]
    assert not torch.equal(*weights)
    assert any("CRATE, paper, seed 6: loss" in what for what in reported)


def test_finished_runs_are_not_trained_again_and_other_runs_are_refused(tmp_path: Path) -> None:
    study = dataclasses.replace(STUDY, variants=variants(Form.RELEASED, **SIZES), seeds=1)
    steps: list[str] = []
    request = Request(out=tmp_path, progress=lambda what, done, total: steps.append(what))
    first = train_on(random_images(), study, request)
    assert steps
    steps.clear()
    again = train_on(random_images(), study, request)
    assert steps == []
    assert [run.accuracy for run in again] == [run.accuracy for run in first]
    for one, other in zip(first, again, strict=True):
        weights = one.model().state_dict()
        assert all(torch.equal(weight, weights[name]) for name, weight in other.model().state_dict().items())
    with pytest.raises(InputError, match=r"\(data, model\)"):
        train_on(random_images(seed=1), study, request)
    with pytest.raises(InputError, match="epochs"):
        train_on(random_images(), study, dataclasses.replace(request, epochs=3))


def test_images_that_are_not_square_are_refused(tmp_path: Path) -> None:
    images = random_images()
    cut = dataclasses.replace(
        images, train_images=images.train_images[..., :6], test_images=images.test_images[..., :6]
    )
    with pytest.raises(InputError, match="expected square images; random has 8 x 6"):
        train_on(cut, STUDY, Request(out=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_accuracy_is_refused(tmp_path: Path) -> None:
    for right, images in ((8, 7), (-1, 7)):
        run = StudyRun(variant="vit", seed=0, parameters=1, folder=tmp_path, log=({"right": right, "images": images},))
        with pytest.raises(InputError, match=f"log.jsonl has {right} of 7 images right, which cannot be"):
            _ = run.accuracy


def test_a_run_that_diverges_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*args: object, **options: object) -> None:
        raise DivergedError("the loss is nan at step 3")

    monkeypatch.setattr(training_run, "train", diverge)
    runs = train_on(random_images(), dataclasses.replace(STUDY, seeds=1), Request(out=tmp_path))
    assert [each.reason for each in runs] == ["the loss is nan at step 3"] * 3
    assert runs[0].parameters > 0


def test_each_seed_has_its_own_initial_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initial: dict[int, torch.Tensor] = {}

    def diverge(model: torch.nn.Module, *args: object, recipe: Recipe, **options: object) -> None:
        initial[recipe.seed] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        raise DivergedError("")

    monkeypatch.setattr(training_run, "train", diverge)
    study = dataclasses.replace(STUDY, variants=variants(**SIZES))
    train_on(random_images(), study, Request(out=tmp_path, seed=5))
    first = dict(initial)
    train_on(random_images(), study, Request(out=tmp_path, seed=5))
    assert list(first) == [5, 6]
    assert not torch.equal(first[5], first[6])
    assert torch.equal(first[5], initial[5])


def test_the_study_compares_models_of_about_the_same_size(tmp_path: Path) -> None:
    study, images = training.FASHION_STUDY, {"image_size": 28, "channels": 1, "classes": 3}
    files = [study.recipe(Request(out=tmp_path), variant, 0) for variant in study.variants]
    sizes = [sum(p.numel() for p in build_model(file, **images).parameters()) for file in files]
    assert max(sizes) < 1.05 * min(sizes)


def test_epochs_and_the_seed_come_from_the_request(tmp_path: Path) -> None:
    study = Study(small=in_memory(Recipe(epochs=40, warmup=3.0)), variants=variants_named("symmetric"))
    recipe = study.recipe(Request(out=tmp_path, epochs=4), "symmetric", 7).recipe
    assert (recipe.epochs, recipe.warmup, recipe.seed) == (4, 1.0, 7)
    assert study.recipe(Request(out=tmp_path), "symmetric", 7).recipe.warmup == 3.0

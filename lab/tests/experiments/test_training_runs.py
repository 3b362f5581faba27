"""Models trained for experiments: every one from every seed, resumed, and refused where a folder is of another run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from clearhead.errors import InputError
from clearhead_lab.data.image_sets import ImageSet
from clearhead_lab.experiments import training_runs
from clearhead_lab.experiments.crate import plans
from clearhead_lab.experiments.crate.plans import VIT, configs
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.training_runs import Plan, TrainedRun, train_runs
from clearhead_lab.models.crate import Crate, Form
from clearhead_lab.models.vit import VisionTransformer
from clearhead_lab.training.recipe import Recipe

PLAN = Plan(
    patch_size=4, layers=2, heads=2, width=10, mlp_width=11, crate_width=14, forms=(Form.RELEASED, Form.PAPER), seeds=2,
    recipe=Recipe(epochs=2, batch_size=11, warmup=0.0),
)  # fmt: skip


def random_images(n: int = 22, *, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (n + 7, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n + 7) % 3
    return ImageSet(
        name="random", train_images=images[:n], train_labels=labels[:n], test_images=images[n:], test_labels=labels[n:]
    )


def train_all(images: ImageSet, plan: Plan, request: Request) -> list[TrainedRun]:
    return train_runs(images, plan, configs(images, plan), request, request.out)


def test_every_model_is_trained_from_every_seed(tmp_path: Path) -> None:
    reported: list[str] = []
    request = Request(out=tmp_path, seed=5, progress=lambda what, done, total: reported.append(what))
    runs = train_all(random_images(), PLAN, request)
    assert [(run.name, run.seed) for run in runs] == [
        (name, seed) for seed in (5, 6) for name in ("CRATE, released", "CRATE, paper", VIT)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "crate-paper-5", "crate-paper-6", "crate-released-5", "crate-released-6", "vit-5", "vit-6",
    ]  # fmt: skip
    kinds = [type(run.model()) for run in runs]
    assert kinds == [Crate, Crate, VisionTransformer] * 2
    assert {run.accuracy.images for run in runs} == {7}
    assert all(run.parameters == sum(p.numel() for p in run.model().parameters()) for run in runs)
    weights = [run.model().state_dict()["head.weight"] for run in runs if run.name == VIT]
    assert not torch.equal(*weights)
    assert any("CRATE, paper, seed 6: loss" in what for what in reported)


def test_finished_runs_are_not_trained_again_and_other_runs_are_refused(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, forms=(Form.RELEASED,), seeds=1)
    steps: list[str] = []
    request = Request(out=tmp_path, progress=lambda what, done, total: steps.append(what))
    first = train_all(random_images(), plan, request)
    assert steps
    steps.clear()
    again = train_all(random_images(), plan, request)
    assert steps == []
    assert [run.accuracy for run in again] == [run.accuracy for run in first]
    for one, other in zip(first, again, strict=True):
        weights = one.model().state_dict()
        assert all(torch.equal(weight, weights[name]) for name, weight in other.model().state_dict().items())
    with pytest.raises(InputError, match="contents"):
        train_all(random_images(seed=1), plan, request)
    with pytest.raises(InputError, match="epochs"):
        train_all(random_images(), plan, dataclasses.replace(request, epochs=3))


def test_an_impossible_accuracy_is_refused(tmp_path: Path) -> None:
    for right, images in ((8, 7), (-1, 7)):
        run = TrainedRun(name="vit", seed=0, parameters=1, folder=tmp_path, log=({"right": right, "images": images},))
        with pytest.raises(InputError, match=f"log.jsonl has {right} of 7 images right, which cannot be"):
            _ = run.accuracy


def test_a_run_that_diverges_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*args: object, **options: object) -> None:
        raise training_runs.DivergedError("the loss is nan at step 3")

    monkeypatch.setattr(training_runs, "train", diverge)
    runs = train_all(random_images(), dataclasses.replace(PLAN, seeds=1), Request(out=tmp_path))
    assert [run.reason for run in runs] == ["the loss is nan at step 3"] * 3
    assert runs[0].parameters > 0


def test_each_seed_has_its_own_initial_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initial: dict[int, torch.Tensor] = {}

    def diverge(model: torch.nn.Module, *args: object, recipe: Recipe, **options: object) -> None:
        initial[recipe.seed] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        raise training_runs.DivergedError("")

    monkeypatch.setattr(training_runs, "train", diverge)
    plan = dataclasses.replace(PLAN, forms=())
    train_all(random_images(), plan, Request(out=tmp_path, seed=5))
    first = dict(initial)
    train_all(random_images(), plan, Request(out=tmp_path, seed=5))
    assert list(first) == [5, 6]
    assert not torch.equal(first[5], first[6])
    assert torch.equal(first[5], initial[5])


def test_the_plans_compare_models_of_about_the_same_size() -> None:
    for plan, size, channels in ((plans.FASHION_PLAN, 28, 1), (plans.PETS_PLAN, 64, 3)):
        images = torch.zeros(3, channels, size, size, dtype=torch.uint8)
        labels = torch.arange(3)
        few = ImageSet(name="", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
        sizes = []
        for config in configs(few, plan).values():
            with torch.device("meta"):
                model = VisionTransformer(config) if config.__class__.__name__.startswith("Vision") else Crate(config)
            sizes.append(sum(p.numel() for p in model.parameters()))
        assert max(sizes) < 1.05 * min(sizes)


def test_epochs_and_the_first_seed_come_from_the_request(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, recipe=Recipe(epochs=40, warmup=3.0))
    recipe = plan.recipe_of(Request(out=tmp_path, epochs=4, seed=7))
    assert (recipe.epochs, recipe.warmup, recipe.seed) == (4, 1.0, 7)
    assert plan.recipe_of(Request(out=tmp_path)).warmup == 3.0

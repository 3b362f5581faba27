"""Train CRATE and a vision transformer of like size on the same images in the same order, from several seeds."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.experiments.experiment import Request, write_json
from clearhead.experiments.fingerprint import of_tensors
from clearhead.experiments.images import ImageSet
from clearhead.experiments.models.vision import MODEL_FOLDER, pixel_moments
from clearhead.models.crate import Crate, CrateConfig, Form
from clearhead.models.native import load_native, save_native
from clearhead.models.vit import VisionTransformer, VisionTransformerConfig, config_as_json
from clearhead.training.augmentation import random_shift, random_shift_and_flip
from clearhead.training.evaluation import measure_accuracy
from clearhead.training.loop import Augment, Recipe, train

__all__ = ["DIGITS_PLAN", "FASHION_PLAN", "PETS_PLAN", "VIT", "Plan", "Trained", "train_all"]

VIT = "ViT"
DONE = "trained.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of both models and of the runs. CRATE is wider, for it has fewer parameters at the same width.

    forms: of CRATE, each a model of its own
    """

    patch_size: int
    layers: int
    heads: int
    crate_width: int
    vit_width: int
    mlp_width: int
    recipe: Recipe
    augment: Augment | None
    forms: tuple[Form, ...] = (Form.RELEASED,)
    seeds: int = 3

    def configs(self, images: ImageSet) -> dict[str, CrateConfig | VisionTransformerConfig]:
        """The models by name."""
        mean, spread = pixel_moments(images.train_images)
        shared: dict[str, Any] = {
            "image_size": images.train_images.shape[-1], "channels": images.train_images.shape[1],
            "classes": images.classes, "patch_size": self.patch_size, "layers": self.layers, "heads": self.heads,
            "pixel_mean": mean, "pixel_spread": spread,
        }  # fmt: skip
        crates = {f"CRATE, {form}": CrateConfig(width=self.crate_width, form=form, **shared) for form in self.forms}
        return {**crates, VIT: VisionTransformerConfig(width=self.vit_width, mlp_width=self.mlp_width, **shared)}


FASHION_PLAN = Plan(
    patch_size=4,
    layers=6,
    heads=8,
    crate_width=160,
    vit_width=96,
    mlp_width=208,
    recipe=Recipe(epochs=3, learning_rate=1e-3, label_smoothing=0.1),
    augment=None,
)
DIGITS_PLAN = Plan(
    patch_size=2,
    layers=4,
    heads=4,
    crate_width=52,
    vit_width=32,
    mlp_width=64,
    recipe=Recipe(epochs=40, batch_size=64, learning_rate=2e-3, warmup=3.0),
    augment=lambda images, generator: random_shift(images, generator, max_pixels=1),
    forms=(Form.RELEASED, Form.TIED, Form.NEGATED, Form.PAPER),
)


PETS_PLAN = Plan(
    patch_size=8,
    layers=6,
    heads=8,
    crate_width=128,
    vit_width=80,
    mlp_width=160,
    recipe=Recipe(epochs=25, batch_size=64, learning_rate=1e-3, warmup=2.0, label_smoothing=0.1),
    augment=random_shift_and_flip,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One model from one seed: how many of the test images it gets right, and the folder that holds it."""

    name: str
    seed: int
    parameters: int
    right: int
    images: int
    folder: Path

    @property
    def accuracy(self) -> float:
        """The share of test images that it gets right."""
        return self.right / self.images

    def model(self) -> nn.Module:
        """The model as trained."""
        return load_native(self.folder)


def train_all(images: ImageSet, plan: Plan, request: Request, folder: Path) -> list[Trained]:
    """Every model from every seed, each in a folder of its own. What is finished there is not done again.

    All models of one seed come before the next seed, so that an interrupted run can be compared as far as it came.
    """
    contents = of_tensors((images.train_images, images.train_labels, images.test_images, images.test_labels))
    configs = plan.configs(images)
    asked = [
        (name, seed) for seed in range(request.seed, request.seed + (request.seeds or plan.seeds)) for name in configs
    ]
    epochs = request.epochs or plan.recipe.epochs
    recipe = dataclasses.replace(plan.recipe, epochs=epochs, warmup=min(plan.recipe.warmup, epochs / 4))
    done = []
    for place, (name, seed) in enumerate(asked):

        def tell(share: float, loss: float, place: int = place, named: str = f"{name}, seed {seed}") -> None:
            request.tell(f"{named}: loss {loss:.3f}", round(100 * (place + share)), 100 * len(asked))

        done.append(
            _train(
                images, name, configs[name], dataclasses.replace(recipe, seed=seed), plan.augment,
                {"data": images.name, "contents": contents}, folder / f"{_plain(name)}-{seed}", tell,
            )
        )  # fmt: skip
    return done


def _plain(name: str) -> str:
    return name.lower().replace(", ", "-")


def _train(
    images: ImageSet,
    name: str,
    config: CrateConfig | VisionTransformerConfig,
    recipe: Recipe,
    augment: Augment | None,
    data: Mapping[str, Any],
    folder: Path,
    tell: Callable[[float, float], None],
) -> Trained:
    generator = torch.Generator().manual_seed(recipe.seed)
    model: nn.Module
    if isinstance(config, CrateConfig):
        model, sizes = Crate(config, generator=generator), config.as_json()
    else:
        model, sizes = VisionTransformer(config, generator=generator), config_as_json(config)
    run = json.loads(json.dumps({**dataclasses.asdict(recipe), "model": sizes, **data}))
    kept = _kept(folder, run)
    if kept is None:
        log = train(
            model,
            images.train_images,
            images.train_labels,
            recipe=recipe,
            folder=folder,
            evaluate=lambda trained: {"right": measure_accuracy(trained, images.test_images, images.test_labels).right},
            augment=augment,
            describe={"model": sizes, **data},
            progress=lambda step, steps, loss: tell(step / steps, loss),
        )
        save_native(model, folder / MODEL_FOLDER)
        kept = {"run": run, "right": log[-1]["right"]}
        write_json(folder / DONE, kept)
    return Trained(
        name=name,
        seed=recipe.seed,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        right=kept["right"],
        images=len(images.test_images),
        folder=folder / MODEL_FOLDER,
    )


def _kept(folder: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier run of the same recipe left, if it was finished and its model is there."""
    if not (folder / MODEL_FOLDER).is_dir():
        return None
    try:
        stored: dict[str, Any] = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if stored.get("run") == run else None

"""Train the vision transformer on real images."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.experiments.experiment import Experiment, Outcome, Request
from clearhead.experiments.images import ImageSet, digits, read_images
from clearhead.models.native import save_native
from clearhead.models.vit import VisionTransformer, VisionTransformerConfig, config_as_json
from clearhead.training.augmentation import random_shift, random_shift_and_flip
from clearhead.training.evaluation import measure_accuracy
from clearhead.training.loop import Augment, Recipe, train

__all__ = [
    "DEBIAN_FASHION_MNIST", "DIGITS", "DIGITS_PLAN", "FASHION_MNIST", "MODEL_FOLDER", "Plan", "fashion_mnist",
    "pixel_moments", "vit_config",
]  # fmt: skip

MODEL_FOLDER = "model"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of the model and of the run, for one set of images."""

    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    recipe: Recipe
    augment: Augment


FASHION_PLAN = Plan(
    patch_size=4,
    width=128,
    layers=6,
    heads=8,
    mlp_width=256,
    recipe=Recipe(epochs=8, learning_rate=1e-3, label_smoothing=0.1),
    augment=random_shift_and_flip,
)
DIGITS_PLAN = Plan(
    patch_size=2,
    width=32,
    layers=3,
    heads=4,
    mlp_width=64,
    recipe=Recipe(epochs=60, batch_size=64, learning_rate=2e-3, warmup=3.0),
    augment=lambda images, generator: random_shift(images, generator, max_pixels=1),
)


def fashion_mnist(folder: Path | None) -> ImageSet:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from the folder, or from where Debian's package puts it."""
    if folder is None and not DEBIAN_FASHION_MNIST.is_dir():
        raise InputError(
            "Fashion-MNIST is not here; install Debian's package dataset-fashion-mnist, "
            "or give the folder of its four IDX files with --data"
        )
    return read_images(DEBIAN_FASHION_MNIST if folder is None else folder)


def vit_config(images: ImageSet, plan: Plan) -> VisionTransformerConfig:
    """The model of a plan, for these images."""
    mean, spread = pixel_moments(images.train_images)
    return VisionTransformerConfig(
        image_size=images.train_images.shape[-1],
        patch_size=plan.patch_size,
        channels=images.train_images.shape[1],
        classes=images.classes,
        width=plan.width,
        layers=plan.layers,
        heads=plan.heads,
        mlp_width=plan.mlp_width,
        pixel_mean=mean,
        pixel_spread=spread,
    )


def _train(images: ImageSet, plan: Plan, request: Request, folder: Path) -> Outcome:
    epochs = request.epochs or plan.recipe.epochs
    warmup = min(plan.recipe.warmup, epochs / 4)
    recipe = dataclasses.replace(plan.recipe, epochs=epochs, warmup=warmup, seed=request.seed)
    config = vit_config(images, plan)
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(recipe.seed))

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        accuracy = measure_accuracy(trained, images.test_images, images.test_labels)
        bounds = accuracy.interval
        return {"right": accuracy.right, "images": accuracy.images, "accuracy": accuracy.value,
                "interval": [bounds.low, bounds.high]}  # fmt: skip

    log = train(
        model,
        images.train_images,
        images.train_labels,
        recipe=recipe,
        folder=folder,
        evaluate=evaluate,
        augment=plan.augment,
        describe={"model": config_as_json(config), "data": images.name},
        progress=lambda step, steps, loss: request.tell(f"training, loss {loss:.3f}", step, steps),
    )
    save_native(model, folder / MODEL_FOLDER)
    last = log[-1]
    low, high = last["interval"]
    return Outcome(
        headline=f"test accuracy {last['accuracy']:.4f} [{low:.4f}, {high:.4f}], {last['images']:,} images",
        files=(folder / MODEL_FOLDER, folder / "log.jsonl"),
    )


def pixel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of each channel, of pixels from 0 to 1, to four digits."""
    pixels = images.double() / 255
    mean, spread = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3))
    return tuple(round(float(x), 4) for x in mean), tuple(max(round(float(x), 4), 1e-4) for x in spread)


FASHION_MNIST = Experiment(
    name="vit/fashion-mnist",
    reproduces="a vision transformer trained on Fashion-MNIST, for the audit and for later robustness studies",
    cost="1 h",
    run=lambda request, folder: _train(fashion_mnist(request.data), FASHION_PLAN, request, folder),
    options=frozenset({"data", "epochs"}),
)
DIGITS = Experiment(
    name="vit/digits",
    reproduces="the same on scikit-learn's digits, which needs no download",
    cost="1 min",
    run=lambda request, folder: _train(digits(), DIGITS_PLAN, request, folder),
    options=frozenset({"epochs"}),
)

"""Models trained for an experiment: one plan of their sizes, one way to train them from several seeds."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.errors import InputError
from clearhead_lab.data.image_sets import ImageSet, pixel_moments
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.models.crate import Crate, CrateConfig, Form
from clearhead_lab.models.native import load_native, save_native
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig, config_as_json
from clearhead_lab.training.batches import Augment, TensorBatches
from clearhead_lab.training.evaluation import Accuracy, measure_accuracy
from clearhead_lab.training.loop import DivergedError, train
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification

__all__ = ["LOG", "MODEL_FOLDER", "Config", "Plan", "TrainedRun", "train_run", "train_runs"]

MODEL_FOLDER, LOG = "model", "log.jsonl"

Config = VisionTransformerConfig | CrateConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of the models and of the runs of an experiment, for one set of images.

    width, mlp_width: of the vision transformer
    train_images: the number of training images, from the first; None for all
    seeds: the number of runs of each model
    crate_width, forms: of CRATE, which is wider, as it has fewer parameters at the same width
    corrupted: the number of test images that are corrupted; rounds: of the timing
    """

    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    recipe: Recipe
    augment: Augment | None = None
    train_images: int | None = None
    seeds: int = 3
    crate_width: int = 0
    forms: tuple[Form, ...] = ()
    corrupted: int = 0
    rounds: int = 0

    def recipe_of(self, request: Request) -> Recipe:
        """Return the recipe with the requested number of epochs and the first seed."""
        epochs = request.epochs or self.recipe.epochs
        warmup = min(self.recipe.warmup, epochs / 4)
        return dataclasses.replace(self.recipe, epochs=epochs, warmup=warmup, seed=request.seed)

    def vit_config(self, *, image_size: int, channels: int, classes: int) -> VisionTransformerConfig:
        """Return the vision transformer of the plan for images of this size."""
        return VisionTransformerConfig(
            image_size=image_size, channels=channels, classes=classes, patch_size=self.patch_size,
            width=self.width, layers=self.layers, heads=self.heads, mlp_width=self.mlp_width,
        )  # fmt: skip

    def vit_for(self, images: ImageSet) -> VisionTransformerConfig:
        """Return the vision transformer of the plan for these images, which are normalised by their own moments."""
        channels, height, width = images.train_images.shape[1:]
        if height != width:
            raise InputError(f"expected square images; {images.name} has {height} x {width}")
        mean, spread = pixel_moments(images.train_images[: self.train_images])
        config = self.vit_config(image_size=width, channels=channels, classes=images.classes)
        return dataclasses.replace(config, pixel_mean=mean, pixel_spread=spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """One model trained from one seed, its log, and the folder that holds both; or the reason why it diverged."""

    name: str
    seed: int
    parameters: int
    folder: Path
    log: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""

    @property
    def accuracy(self) -> Accuracy:
        """The test accuracy after the last epoch."""
        right, images = self.log[-1]["right"], self.log[-1]["images"]
        if not 0 <= right <= images:
            raise InputError(
                f"{self.folder / LOG} has {right} of {images} images right, which cannot be; delete the folder and "
                "train again"
            )
        return Accuracy(right=right, images=images)

    def model(self) -> nn.Module:
        """Return the trained model."""
        return load_native(self.folder / MODEL_FOLDER)


def train_run(
    images: ImageSet,
    config: Config,
    recipe: Recipe,
    folder: Path,
    *,
    name: str,
    augment: Augment | None = None,
    measure: Callable[[nn.Module], Mapping[str, Any]] | None = None,
    describe: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> TrainedRun:
    """Train one model from the seed of the recipe and save it in the folder. A finished or interrupted run continues.

    measure: further values for the log, after every epoch
    describe: further values that identify the run; a folder of another run is refused
    progress, notice: as in `train`
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    model: nn.Module
    if isinstance(config, CrateConfig):
        model, sizes = Crate(config, generator=generator), config.as_json()
    else:
        model, sizes = VisionTransformer(config, generator=generator), config_as_json(config)

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        accuracy = measure_accuracy(trained, images.test_images, images.test_labels)
        further = {} if measure is None else measure(trained)
        return {"right": accuracy.right, "images": accuracy.images, "accuracy": accuracy.value, **further}

    parameters = sum(parameter.numel() for parameter in model.parameters())
    batches = TensorBatches(
        images.train_images, images.train_labels, batch_size=recipe.batch_size, seed=recipe.seed, augment=augment
    )
    try:
        log = train(
            model,
            Classification(recipe, evaluate),
            batches,
            recipe=recipe,
            folder=folder,
            describe={"model": sizes, "data": images.name, "contents": images.fingerprint(), **(describe or {})},
            progress=progress,
            notice=notice,
        )
    except DivergedError as error:
        return TrainedRun(name=name, seed=recipe.seed, parameters=parameters, folder=folder, reason=str(error))
    save_native(model, folder / MODEL_FOLDER)
    return TrainedRun(name=name, seed=recipe.seed, parameters=parameters, folder=folder, log=tuple(log))


def train_runs(
    images: ImageSet, plan: Plan, configs: Mapping[str, Config], request: Request, folder: Path
) -> list[TrainedRun]:
    """Train every model from every seed, each in its own folder; finished runs are not repeated.

    All models of one seed come before the next seed, so that an interrupted experiment can be compared so far.
    """
    recipe, runs = plan.recipe_of(request), []
    cells = [(name, seed) for seed in request.seed_list(plan.seeds) for name in configs]
    for number, (name, seed) in enumerate(cells):

        def progress(
            step: int, steps: int, loss: float, number: int = number, cell: str = f"{name}, seed {seed}"
        ) -> None:
            request.progress(f"{cell}: loss {loss:.3f}", round(100 * (number + step / steps)), 100 * len(cells))

        run_folder = folder / f"{name.lower().replace(', ', '-')}-{seed}"
        seeded = dataclasses.replace(recipe, seed=seed)
        runs.append(
            train_run(
                images,
                configs[name],
                seeded,
                run_folder,
                name=name,
                augment=plan.augment,
                progress=progress,
                notice=request.notice,
            )
        )
    return runs

"""Train every variant from every seed, and ask each what is left of its answers under corruptions."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead.errors import InputError
from clearhead.experiments.experiment import Request, write_json
from clearhead.experiments.fingerprint import of_code, of_tensors
from clearhead.experiments.images import ImageSet
from clearhead.experiments.models.vision import MODEL_FOLDER, pixel_moments
from clearhead.experiments.robustness.key_bounds import beyond_bound
from clearhead.models.native import save_native
from clearhead.models.vit import VisionTransformer, VisionTransformerConfig, config_as_json
from clearhead.robustness.sweep import sweep
from clearhead.training.evaluation import as_pixels, measure_accuracy
from clearhead.training.loop import DivergedError, Recipe, train

__all__ = ["Plan", "Run", "plain_config", "run_all"]

MEASURED = "measured.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of the models and of the runs, for one set of images.

    trained_on: the first so many training images; corrupted: the first so many test images
    seeds: how many runs of each variant; rounds: of the timing
    """

    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    trained_on: int
    corrupted: int
    recipe: Recipe
    rounds: int
    seeds: int = 3

    def config(self, *, image_size: int, channels: int, classes: int) -> VisionTransformerConfig:
        """The sizes for such images."""
        return VisionTransformerConfig(
            image_size=image_size,
            patch_size=self.patch_size,
            channels=channels,
            classes=classes,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            mlp_width=self.mlp_width,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One variant from one seed: how many answers were right, or the reason why there are none.

    clean: of `images`; by_corruption: of `corrupted` images, at severities 1 to 5
    beyond: of every layer, the share of entries of keys that its bound cuts; None where it has none
    seconds: of every epoch of training, evaluation included
    """

    variant: str
    seed: int
    parameters: int
    clean: int = 0
    images: int = 0
    by_corruption: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    corrupted: int = 0
    beyond: Sequence[float | None] = ()
    seconds: Sequence[float] = ()
    reason: str = ""


def plain_config(images: ImageSet, plan: Plan) -> VisionTransformerConfig:
    """The config for these images, before a variant chooses how to attend."""
    channels, height, width = images.train_images.shape[1:]
    if height != width:
        raise InputError(f"expected square images; {images.name} has {height} x {width}")
    mean, spread = pixel_moments(images.train_images[: plan.trained_on])
    config = plan.config(image_size=width, channels=channels, classes=images.classes)
    return dataclasses.replace(config, pixel_mean=mean, pixel_spread=spread)


def run_all(
    images: ImageSet, plan: Plan, configs: Mapping[str, VisionTransformerConfig], request: Request, folder: Path
) -> list[Run]:
    """Every variant from every seed, each in a folder of its own. What is finished there is not done again.

    All variants of one seed come before the next seed, so that an interrupted run can be compared as far as it came.
    """
    bench = _Bench(images=images, plan=plan, seed=request.seed)
    seeds = range(request.seed, request.seed + (request.seeds or plan.seeds))
    asked = [(name, seed) for seed in seeds for name in configs]
    runs = []
    for place, (name, seed) in enumerate(asked):

        def tell(what: str, share: float, place: int = place, named: str = f"{name}, seed {seed}") -> None:
            request.tell(f"{named}: {what}", round(100 * (place + share)), 100 * len(asked))

        runs.append(bench.run(name, seed, configs[name], folder / f"{name}-{seed}", tell))
    return runs


class _Bench:
    """The images that all runs share. `seed` is that of the corruptions, so that all runs are shown the same."""

    def __init__(self, *, images: ImageSet, plan: Plan, seed: int) -> None:
        self.images, self.plan, self.seed = images, plan, seed
        self.learned = images.train_images[: plan.trained_on], images.train_labels[: plan.trained_on]
        self.shown = images.test_images[: plan.corrupted], images.test_labels[: plan.corrupted]
        self.described = {"data": images.name, "contents": of_tensors(self.learned)}

    def run(
        self, name: str, seed: int, config: VisionTransformerConfig, folder: Path, tell: Callable[[str, float], None]
    ) -> Run:
        """Train one model, keep it, and measure it. A run that diverges is one more thing to report."""
        model = VisionTransformer(config, generator=torch.Generator().manual_seed(seed))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        try:
            log = train(
                model,
                *self.learned,
                recipe=dataclasses.replace(self.plan.recipe, seed=seed),
                folder=folder,
                evaluate=lambda trained: {"right": measure_accuracy(trained, *self.shown).right},
                describe={"model": config_as_json(config), **self.described},
                progress=lambda step, steps, loss: tell(f"training, loss {loss:.3f}", 0.9 * step / steps),
            )
        except DivergedError as error:
            return Run(variant=name, seed=seed, parameters=parameters, reason=str(error))
        save_native(model, folder / MODEL_FOLDER)
        found = self._measured(model, folder / MEASURED, tell)
        seconds = [float(epoch["seconds"]) for epoch in log]
        return Run(variant=name, seed=seed, parameters=parameters, seconds=seconds, **found)

    def _measured(self, model: VisionTransformer, path: Path, tell: Callable[[str, float], None]) -> dict[str, Any]:
        """How many answers are right: as it was kept of this model and these images, or counted now."""
        key = {
            "weights": of_tensors(model.state_dict().values()),
            "images": of_tensors([self.images.test_images, self.images.test_labels]),
            "corrupted": self.plan.corrupted,
            "seed": self.seed,
            "code": of_code("robustness"),
            "torch": torch.__version__,
        }
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["key"] == key:
                return dict(stored["found"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        images, labels = self.shown
        clean = measure_accuracy(model, self.images.test_images, self.images.test_labels)
        swept = sweep(
            images,
            lambda worse: measure_accuracy(model, worse, labels).right,
            seed=self.seed,
            progress=lambda corruption: tell(corruption, 0.95),
        )
        found = {
            "clean": clean.right,
            "images": clean.images,
            "corrupted": len(images),
            "beyond": beyond_bound(model, as_pixels(images)),
            "by_corruption": {one.corruption: [int(right) for right in one.values] for one in swept},
        }
        write_json(path, {"key": key, "found": found})
        return found

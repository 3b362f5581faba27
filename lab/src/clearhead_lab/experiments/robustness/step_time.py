"""Relative step time of variants, interleaved so that machine noise affects all equally."""

import dataclasses
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clearhead.kernels.library import kernel
from clearhead.numerics.threads import one_thread
from clearhead.stored_json import load_cached, store
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.models.transformer_block import config_as_json
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.loop import Stepper
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification

TIMES = "step-time.json"
WARM_UP = 2
"""Rounds that are not counted."""

Configs = Mapping[str, VisionTransformerConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median ratio over rounds, and its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds per step by variant, one per round, on one thread. `key` identifies the models and the machine."""

    key: Mapping[str, Any]
    seconds: Mapping[str, tuple[float, ...]]

    def ratio(self, name: str, *, to: str) -> Ratio:
        """Return the step time of one variant relative to another, over rounds."""
        ratios = np.array(self.seconds[name]) / np.array(self.seconds[to])
        low, median, high = (float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75)))
        return Ratio(median=median, low=low, high=high)


def measure_step_times(
    configs: Configs,
    recipe: Recipe,
    *,
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> StepTimes:
    """Take one step of every model in each round, in random order, on one thread.

    Models are untrained and see one random batch of the recipe's size. A step is that of `training.loop`: forward,
    backward, clipping, AdamW. `progress` receives the number of rounds done and the total.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    sizes = next(iter(configs.values()))
    side = sizes.image_size
    pixels = torch.rand(recipe.batch_size, sizes.channels, side, side, generator=generator)
    labels = torch.randint(sizes.classes, (recipe.batch_size,), generator=generator)
    models: dict[str, nn.Module] = {
        name: VisionTransformer(config, generator=torch.Generator().manual_seed(recipe.seed))
        for name, config in configs.items()
    }
    steppers = {name: Stepper(model, recipe, Classification(recipe)) for name, model in models.items()}
    calls = {name: partial(step, pixels, labels, learning_rate=recipe.learning_rate) for name, step in steppers.items()}
    return StepTimes(key=_key(configs, recipe, rounds), seconds=interleave(calls, rounds=rounds, progress=progress))


def interleave(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int, progress: Callable[[int, int], None] | None = None
) -> dict[str, tuple[float, ...]]:
    """Call every function once in each round, in random order, on one thread. Return the seconds of every round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with one_thread():
        for number in range(WARM_UP + rounds):
            for name in random.Random(number).sample(list(calls), len(calls)):
                start = time.perf_counter()
                calls[name]()
                seconds[name].append(time.perf_counter() - start)
            if progress is not None:
                progress(number + 1, WARM_UP + rounds)
    return {name: tuple(each[WARM_UP:]) for name, each in seconds.items()}


def store_step_times(folder: Path, times: StepTimes) -> None:
    """Write the times into the folder."""
    store(folder / TIMES, times.key, times.seconds)


def load_step_times(
    folder: Path, configs: Configs, recipe: Recipe, *, rounds: int, request: Request
) -> StepTimes | None:
    """Return the times that the folder holds for these models on such a machine, or None."""
    key = _key(configs, recipe, rounds)
    stored = load_cached(folder / TIMES, key, notice=request.notice, kind=dict[str, list[float]])
    if stored is None:
        return None
    return StepTimes(key=key, seconds={name: tuple(seconds) for name, seconds in stored["result"].items()})


def _key(configs: Configs, recipe: Recipe, rounds: int) -> dict[str, Any]:
    """Return what the times depend on; the normalisation of pixels does not matter."""
    compiled = kernel()
    plain = {name: dataclasses.replace(config, pixel_mean=(), pixel_spread=()) for name, config in configs.items()}
    return {
        "models": {name: config_as_json(config) for name, config in plain.items()},
        "batch_size": recipe.batch_size,
        "rounds": rounds,
        "threads": 1,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "kernel": None if compiled is None else compiled.instructions,
    }

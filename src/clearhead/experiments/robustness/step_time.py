"""How long a step of training takes beside another's, measured so that the machine's moods fall on all alike."""

import dataclasses
import json
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clearhead.experiments.experiment import write_json
from clearhead.kernels.library import kernel
from clearhead.models.vit import VisionTransformer, VisionTransformerConfig, config_as_json
from clearhead.numerics.threads import one_thread
from clearhead.training.loop import Recipe, Stepper

__all__ = ["TIMES", "Ratio", "StepTimes", "measure_step_times", "read_step_times", "write_step_times"]

TIMES = "step-time.json"
WARM_UP = 2
"""Rounds that are thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median of the rounds' ratios, and their quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step by name, one for each round, all on one thread. `key` says of what they were taken."""

    key: Mapping[str, Any]
    seconds: Mapping[str, tuple[float, ...]]

    def ratio(self, name: str, *, to: str) -> Ratio:
        """How many times as long as another one's a step takes, round by round."""
        ratios = np.array(self.seconds[name]) / np.array(self.seconds[to])
        low, median, high = (float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75)))
        return Ratio(median=median, low=low, high=high)


def measure_step_times(
    configs: Mapping[str, VisionTransformerConfig],
    recipe: Recipe,
    *,
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> StepTimes:
    """Take one step of every model in each round, in an order drawn anew, on one thread.

    Models are as before training, on one drawn batch of the recipe's size. A step is `training.loop`'s own: forward,
    backward, clipped, AdamW. `progress` is told the rounds done and all.
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
    steppers = {name: Stepper(model, recipe) for name, model in models.items()}
    taken: dict[str, list[float]] = {name: [] for name in configs}
    with one_thread():
        for number in range(WARM_UP + rounds):
            for name in random.Random(number).sample(list(steppers), len(steppers)):
                began = time.perf_counter()
                steppers[name](pixels, labels, learning_rate=recipe.learning_rate)
                taken[name].append(time.perf_counter() - began)
            if progress is not None:
                progress(number + 1, WARM_UP + rounds)
    return StepTimes(
        key=_key(configs, recipe, rounds),
        seconds={name: tuple(seconds[WARM_UP:]) for name, seconds in taken.items()},
    )


def write_step_times(folder: Path, times: StepTimes) -> None:
    """Keep the times in the folder."""
    write_json(folder / TIMES, {"key": times.key, "seconds": times.seconds})


def read_step_times(
    folder: Path, configs: Mapping[str, VisionTransformerConfig], recipe: Recipe, *, rounds: int
) -> StepTimes | None:
    """The times that the folder holds of these models on such a machine; None if it has none."""
    key = _key(configs, recipe, rounds)
    try:
        stored = json.loads((folder / TIMES).read_text(encoding="utf-8"))
        if stored["key"] == key:
            return StepTimes(key=key, seconds={name: tuple(times) for name, times in stored["seconds"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _key(configs: Mapping[str, VisionTransformerConfig], recipe: Recipe, rounds: int) -> dict[str, Any]:
    """What the times depend on; what pixels are divided by is no part of it."""
    compiled = kernel()
    plain = {name: dataclasses.replace(config, pixel_mean=(), pixel_spread=()) for name, config in configs.items()}
    key = {
        "models": {name: config_as_json(config) for name, config in plain.items()},
        "batch_size": recipe.batch_size,
        "rounds": rounds,
        "threads": 1,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "kernel": None if compiled is None else compiled.instructions,
    }
    stored: dict[str, Any] = json.loads(json.dumps(key))
    return stored

"""`clearhead train`: train the model of a recipe, or list the recipes."""

import dataclasses
import time
from collections import deque
from pathlib import Path
from typing import Any

from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError, RunInterruptedError, TerminatedError
from clearhead.report.columns import first_that_fits, print_columns, text_column
from clearhead.report.wording import clean
from clearhead.training.distributed import Sharding, join_processes
from clearhead.training.recipe_file import RecipeFile, read_recipe_file, shipped_recipes
from clearhead.training.run import MODEL_FOLDER, TrainedModel, run_recipe

__all__ = ["list_recipes", "print_trained", "read_recipe", "train_recipe"]

RATE_STEPS = 50
"""Steps over which the shown rate is averaged."""


def read_recipe(name: str, *, epochs: int | None, seed: int | None) -> RecipeFile:
    """Return the recipe with the epochs and the seed of the command."""
    file = read_recipe_file(name)
    recipe = file.recipe
    if epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=epochs, warmup=min(recipe.warmup, epochs / 4))
    if seed is not None:
        recipe = dataclasses.replace(recipe, seed=seed)
    return dataclasses.replace(file, recipe=recipe)


def train_recipe(
    file: RecipeFile, *, data: Path | None, out: Path, sharding: Sharding, tensorboard: bool, bar: ProgressBar
) -> TrainedModel | None:
    """Train the recipe's model in the folder `out`. Return None in all processes but the first."""
    if data is None:
        hint = f" ({file.data.get})" if file.data.get else ""
        raise CommandError(f"name the data with --data{hint}")
    if any(path.exists() and not path.is_dir() for path in (out, *out.parents)):
        raise CommandError(f"{out} is a file or inside a file; choose a folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    bar.update("reading the data", 0, None)

    times: deque[float] = deque(maxlen=RATE_STEPS)

    def progress(step: int, steps: int, loss: float) -> None:
        bar.update("training", step, steps)
        times.append(time.monotonic())
        if len(times) > 1:
            bar.describe(f"loss {loss:.3f}, {(len(times) - 1) / (times[-1] - times[0]):.2g} steps/s")

    try:
        with join_processes(sharding) as processes:
            trained = run_recipe(
                file, data, out, processes=processes, tensorboard=tensorboard, progress=progress, notice=bar.notice
            )
            return trained if processes.first else None
    except (KeyboardInterrupt, TerminatedError) as signal:
        raise RunInterruptedError(f"the same command continues from {out}", signal) from None


def print_trained(file: RecipeFile, trained: TrainedModel) -> None:
    """Print the result of every epoch, at most ten of them, and the folder of the model."""
    log = list(trained.log)
    shown = log if len(log) <= 10 else [log[round(i * (len(log) - 1) / 9)] for i in range(10)]
    names = [name for name in shown[-1] if name not in ("step", "seconds", "right", "images")]
    columns = [text_column(name.replace("_", " "), [_format(entry[name]) for entry in shown]) for name in names]
    plain: dict[str, Any] = {"soft_wrap": True, "highlight": False, "markup": False, "emoji": False}
    with printing() as console:
        print_columns(first_that_fits([columns, columns[:2]], width=console.width), console)
        console.print(clean(f"{file.name}: {trained.parameters:,} parameters, {len(log)} epochs"), **plain)
        console.print(clean(str(trained.folder / MODEL_FOLDER)), style="bold", **plain)


def list_recipes() -> None:
    """Print the recipes that come with Clearhead."""
    files = [read_recipe_file(name) for name in shipped_recipes()]
    name = text_column("recipe", [file.name for file in files], right=False)
    title = text_column("trains", [file.title for file in files], right=False)
    cost = text_column("takes", [file.cost for file in files], right=False)
    with printing() as console:
        print_columns(first_that_fits([(name, title, cost), (name, title), (name,)], width=console.width), console)


def _format(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"

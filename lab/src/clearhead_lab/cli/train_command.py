"""`clearhead train`: train the model of a recipe, or list the recipes."""

import os
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError, RunInterruptedError, TerminatedError
from clearhead.report.columns import first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.wording import clean
from clearhead_lab.training.distributed import Sharding, join_processes
from clearhead_lab.training.estimate import SUSTAINED_FLOPS, estimate_run
from clearhead_lab.training.recipe_file import RecipeFile, read_recipe_file, shipped_recipes
from clearhead_lab.training.run import MODEL_FOLDER, Loading, TrainedModel, run_recipe

RATE_STEPS = 50
"""Steps over which the shown rate is averaged."""


def train_recipe(
    file: RecipeFile,
    *,
    data: Path | None,
    out: Path,
    sharding: Sharding,
    tensorboard: bool,
    workers: int,
    on_corrupt: Literal["refuse", "skip"],
    bar: ProgressBar,
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
                file,
                data,
                out,
                processes=processes,
                loading=Loading(workers=workers, on_corrupt=on_corrupt, notice=bar.notice),
                tensorboard=tensorboard,
                progress=progress,
                notice=bar.notice,
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


def print_estimate(file: RecipeFile) -> None:
    """Print what a run of the recipe will take."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    estimate = estimate_run(file, processes=processes)
    recipe = file.recipe
    lines = {
        "batch": f"{tuple(estimate.inputs)}, in {processes} process(es) and {recipe.accumulate} part(s)",
        "parameters": f"{estimate.parameters:,}",
        "multiply-adds": f"{estimate.multiply_adds / 1e9:.3g} G for one row",
        "steps": f"{estimate.steps:,} in {recipe.epochs} epochs, {recipe.optimizer}, {recipe.precision}",
        "learning rate": ", ".join(f"{rate:.3g} at step {step:,}" for step, rate in estimate.rates.items()),
        "memory": f"{_gigabytes(estimate.weight_bytes)} for weights, gradients and optimizer; "
        f"{_gigabytes(estimate.activation_bytes)} for activations in each process",
        "time": f"{estimate.gpu_hours:,.3g} GPU hours at {SUSTAINED_FLOPS / 1e12:.0f} TFLOP/s, 30% of an A100's peak; "
        "small models stay below that rate and take longer",
    }
    width = max(map(len, lines))
    with printing() as console:
        console.print(clean(f"{file.name}: {file.title}"), style="bold", highlight=False, markup=False)
        for name, text in lines.items():
            print_paragraph(f"{name:{width}}  ", Text(clean(text)), console, indent=width + 2)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e8 else f"{count / 1e6:.2g} MB"


def list_recipes() -> None:
    """Print the recipes that come with Clearhead."""
    files = [read_recipe_file(name) for name in shipped_recipes()]
    name = text_column("recipe", [file.name for file in files], right=False)
    cost = text_column("takes", [file.cost for file in files], right=False)
    with printing() as console:
        print_columns((name, cost), console, beneath=[Text(clean(file.title)) for file in files])


def _format(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"

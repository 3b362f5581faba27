"""`clearhead reproduce`: run an experiment and print its result, or list the experiments."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from clearhead.cli.console import printing
from clearhead.cli.failure import CommandError, RunInterruptedError
from clearhead.experiments.catalogue import EXPERIMENTS, find_experiment
from clearhead.experiments.experiment import Request
from clearhead.report.columns import first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.wording import clean

__all__ = ["list_experiments", "reproduce_command"]


def reproduce_command(name: str, *, out: Path, seed: int, given: Mapping[str, Any]) -> None:
    """Run the experiment and print its result; everything is written below `out`."""
    experiment = find_experiment(name)
    options = {option: value for option, value in given.items() if value}
    unknown = sorted(set(options) - experiment.options)
    if unknown:
        accepted = ", ".join([*(f"--{option}" for option in sorted(experiment.options)), "--seed and --out"])
        raise CommandError(f"{name} does not take --{unknown[0]}; it takes {accepted}")
    folder = experiment.folder(out)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise CommandError(f"{out} is a file, or below one; choose a folder with --out")
    with _progress() as (progress, notice):
        request = Request(out=out, seed=seed, progress=progress, notice=notice, **options)
        try:
            outcome = experiment.run(request)
        except KeyboardInterrupt:
            raise RunInterruptedError(f"interrupted; the same command continues from {folder}") from None
    with printing() as console:
        plain: dict[str, Any] = {"soft_wrap": True, "highlight": False, "markup": False, "emoji": False}
        if outcome.page:
            console.print(outcome.page.rstrip("\n"), **plain)
        if outcome.tables:
            print_columns(first_that_fits(outcome.tables, width=console.width), console)
        for remark in outcome.remarks:
            print_paragraph("", Text(remark), console, indent=0)
        console.print(f"{name}: {outcome.headline}", **plain)
        for file in outcome.files:
            console.print(str(file), style="bold", **plain)


def list_experiments(out: Path) -> None:
    """Print every experiment: its cost, its last result below `out`, and what it reproduces."""
    last = [experiment.last_run(out) for experiment in EXPERIMENTS]
    name = text_column("experiment", [experiment.name for experiment in EXPERIMENTS], right=False)
    cost = text_column("time on one core", [experiment.cost for experiment in EXPERIMENTS], right=False)
    day = text_column("last run", ["-" if run is None else run.day for run in last], right=False)
    result = text_column("result", ["-" if run is None else run.headline for run in last], right=False)
    with printing() as console:
        columns = first_that_fits([(name, cost, day, result), (name, cost, day), (name, day)], width=console.width)
        # In a narrow terminal the results are printed below their rows.
        ends = ["" if run is None or result in columns else f". Last: {clean(run.headline)}" for run in last]
        below = [Text(experiment.reproduces + end) for experiment, end in zip(EXPERIMENTS, ends, strict=True)]
        print_columns(columns, console, beneath=below)


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str, int, int | None], None], Callable[[str], None]]]:
    """Show a progress bar and notices on standard error, so that standard output holds only the result."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("preparing", total=None)

        def progress(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        def notice(line: str) -> None:
            console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)

        yield progress, notice

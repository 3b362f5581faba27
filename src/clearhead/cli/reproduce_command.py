"""`clearhead reproduce`: find the experiment, walk its corridor, print what it found; and the list of experiments."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from clearhead.cli.console import printing
from clearhead.cli.failure import CommandError, RunInterruptedError
from clearhead.experiments.catalogue import EXPERIMENTS, find_experiment
from clearhead.experiments.experiment import Request, last_outcome, write_outcome
from clearhead.report.columns import Column, first_that_fits, print_columns, print_paragraph

__all__ = ["list_experiments", "reproduce_command"]


def reproduce_command(name: str, *, out: Path, seed: int, given: Mapping[str, Any]) -> None:
    """Run the experiment; everything that it writes goes under `out`."""
    experiment = find_experiment(name)
    options = {option: value for option, value in given.items() if value}
    foreign = sorted(set(options) - experiment.options)
    if foreign:
        takes = ", ".join([*(f"--{option}" for option in sorted(experiment.options)), "--seed and --out"])
        raise CommandError(f"{name} does not take --{foreign[0]}; it takes {takes}")
    folder = experiment.folder(out)
    if any(place.exists() and not place.is_dir() for place in (folder, *folder.parents)):
        raise CommandError(f"{out} is a file, or below one; choose a folder with --out")
    with _progress() as tell:
        request = Request(out=out, seed=seed, tell=tell, **options)
        try:
            outcome = experiment.run(request, folder)
        except KeyboardInterrupt:
            raise RunInterruptedError(f"interrupted; the same command goes on from what is in {folder}") from None
    write_outcome(folder, experiment, outcome, request)
    with printing() as console:
        for line in outcome.lines:
            console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)
        if outcome.tables:
            print_columns(first_that_fits(outcome.tables, width=console.width), console)
        for remark in outcome.remarks:
            print_paragraph("", Text(remark), console, indent=0)
        console.print(f"{name}: {outcome.headline}", soft_wrap=True, highlight=False, markup=False, emoji=False)
        for file in outcome.files:
            console.print(str(file), style="bold", soft_wrap=True, highlight=False, markup=False, emoji=False)


def list_experiments(out: Path) -> None:
    """Print every experiment: what it costs, what it gave last under `out`, and what it reproduces."""
    last = [last_outcome(experiment.folder(out)) for experiment in EXPERIMENTS]
    name = _column("experiment", [experiment.name for experiment in EXPERIMENTS])
    cost = _column("time on one core", [experiment.cost for experiment in EXPERIMENTS])
    day = _column("last run", ["-" if found is None else found.day for found in last])
    result = _column("result", ["-" if found is None else found.headline for found in last])
    with printing() as console:
        columns = first_that_fits([(name, cost, day, result), (name, cost, day), (name, day)], width=console.width)
        # Where there is no room for results beside the others, they stand beneath.
        told = ["" if found is None or result in columns else f". Last: {found.headline}" for found in last]
        beneath = [Text(experiment.reproduces + end) for experiment, end in zip(EXPERIMENTS, told, strict=True)]
        print_columns(columns, console, beneath=beneath)


def _column(title: str, cells: Sequence[str]) -> Column:
    return Column(title=title, cells=tuple(Text(cell) for cell in cells))


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on standard error, so that standard output holds the result alone."""
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
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)

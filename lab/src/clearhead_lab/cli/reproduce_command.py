"""`clearhead reproduce`: run an experiment and print its outcome, or list the experiments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError, RunInterruptedError, TerminatedError
from clearhead.report.columns import first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.wording import clean
from clearhead.storage import LOCK_FILE
from clearhead_lab.experiments.catalogue import EXPERIMENTS, find_experiment
from clearhead_lab.experiments.experiment import SHARED_RUNS, Outcome, Request


def run_experiment(name: str, *, out: Path, seed: int, options: Mapping[str, Any], bar: ProgressBar) -> Outcome:
    """Run the experiment, which writes everything below `out`. `options` that are None or False are not set."""
    experiment = find_experiment(name)
    options = {option: value for option, value in options.items() if value}
    unknown = sorted(set(options) - experiment.options)
    if unknown:
        accepted = ", ".join([*(_as_option(option) for option in sorted(experiment.options)), "--seed and --out"])
        raise CommandError(f"{name} does not take {_as_option(unknown[0])}; it takes {accepted}")
    folder = experiment.folder(out)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise CommandError(f"{out} is a file or inside a file; choose a folder with --out")
    bar.update("preparing", 0, None)
    try:
        return experiment.run(Request(out=out, seed=seed, progress=bar.update, notice=bar.notice, **options))
    except (KeyboardInterrupt, TerminatedError) as signal:
        written = [path for path in (folder, out / SHARED_RUNS) if _has_files(path)]
        outcome = f"the same command continues from {written[0]}" if written else "nothing was written"
        raise RunInterruptedError(outcome, signal) from None


def _as_option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _has_files(folder: Path) -> bool:
    """Return True if the folder holds a file other than locks."""
    return any(path.is_file() and path.name != LOCK_FILE for path in folder.rglob("*"))


def print_outcome(name: str, outcome: Outcome) -> None:
    """Print the page or table, the remarks, the headline and the files of an outcome."""
    plain: dict[str, Any] = {"soft_wrap": True, "highlight": False, "markup": False, "emoji": False}
    with printing() as console:
        if outcome.page:
            console.print(outcome.page.rstrip("\n"), **plain)
        if outcome.tables:
            print_columns(first_that_fits(outcome.tables, width=console.width), console)
        for remark in outcome.remarks:
            print_paragraph("", Text(clean(remark)), console, indent=0)
        console.print(clean(f"{name}: {outcome.headline}"), **plain)
        for file in outcome.files:
            console.print(clean(str(file)), style="bold", **plain)


def list_experiments(out: Path) -> None:
    """Print every experiment: its cost, its last result below `out`, and what it reproduces."""
    last = [experiment.last_run(out) for experiment in EXPERIMENTS]
    name = text_column("experiment", [experiment.name for experiment in EXPERIMENTS], right=False)
    source = text_column("figure or table", [experiment.source or "-" for experiment in EXPERIMENTS], right=False)
    cost = text_column("time on one core", [experiment.cost for experiment in EXPERIMENTS], right=False)
    full = text_column("at full scale", [experiment.full_cost or "-" for experiment in EXPERIMENTS], right=False)
    day = text_column("last run", ["-" if run is None else run.day for run in last], right=False)
    result = text_column("result", ["-" if run is None else run.headline for run in last], right=False)
    with printing() as console:
        candidates = [
            (name, source, cost, full, day, result), (name, source, cost, full, day), (name, cost, day), (name, day),
        ]  # fmt: skip
        columns = first_that_fits(candidates, width=console.width)
        # In a narrow terminal the figures or tables, and the results, are printed below their rows.
        ends = ["" if run is None or result in columns else f". Last: {clean(run.headline)}" for run in last]
        starts = [f"{e.source}: " if e.source and source not in columns else "" for e in EXPERIMENTS]
        below = [
            Text(f"{start}{experiment.reproduces}{end}")
            for start, experiment, end in zip(starts, EXPERIMENTS, ends, strict=True)
        ]
        print_columns(columns, console, beneath=below)

"""`clearhead calibrate`: measure how often the audit detects planted heads and flags heads of random models."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.audit.findings import Verdict
from clearhead.audit.options import AuditOptions
from clearhead.calibration.planted_model import Shape
from clearhead.calibration.random_models import RandomModels, families, shape_of
from clearhead.calibration.results import Calibration, Count, RandomCounts
from clearhead.calibration.runs import CalibrationRequest, calibrate
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError, RunInterruptedError, TerminatedError
from clearhead.cli.models import load_named_model
from clearhead.data.text import default_passages, text_batches
from clearhead.loading.model import LoadedModel
from clearhead.report.columns import first_that_fits, print_columns
from clearhead.report.plots import as_svg, finish_panel, make_panels, plot_percentage
from clearhead.report.tables import Field, Table, as_columns, as_markdown, percentage
from clearhead.report.wording import clean, number
from clearhead.storage import lock_folder
from clearhead.stored_json import write_text

__all__ = [
    "CalibrationFiles",
    "planted_table",
    "print_calibration",
    "published_table",
    "random_table",
    "run_calibration",
]

COUNTS_FILE, TABLE_FILE, PLOT_FILE = "calibration.json", "calibration.md", "calibration.svg"
MAX_TOKENS, BATCH_SIZE = 256, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFiles:
    """A finished calibration and its files."""

    calibration: Calibration
    paths: tuple[Path, ...]


def run_calibration(
    model: str | None, options: AuditOptions, *, repeats: int, models: int, out: Path, bar: ProgressBar
) -> CalibrationFiles:
    """Run the calibration and write its counts, table and plot. Counts that `out` holds are not measured again."""
    bar.update("preparing", 0, None)
    try:
        with lock_folder(out):
            shape, random_models = (Shape(), families()) if model is None else _like(model)
            request = CalibrationRequest(
                options=options, repeats=repeats, models=models, shape=shape, model=model or ""
            )
            calibration = calibrate(request, random_models, path=out / COUNTS_FILE, progress=bar.update)
            write_text(out / TABLE_FILE, as_page(calibration))
            if calibration.planted:
                write_text(out / PLOT_FILE, draw_power(calibration))
    except (KeyboardInterrupt, TerminatedError) as signal:
        raise RunInterruptedError(f"the same command continues from {out / COUNTS_FILE}", signal) from None
    names = (COUNTS_FILE, TABLE_FILE, *([PLOT_FILE] if calibration.planted else []))
    return CalibrationFiles(calibration=calibration, paths=tuple(out / name for name in names))


def print_calibration(files: CalibrationFiles) -> None:
    """Print both tables and where the files are."""
    with printing() as console:
        for table in (planted_table(files.calibration), random_table(files.calibration)):
            if table[0].cells:
                print_columns(first_that_fits(as_columns(table), width=console.width), console)
                console.print()
        for path in files.paths:
            console.print(clean(str(path)), style="bold", soft_wrap=True, highlight=False, markup=False, emoji=False)


def planted_table(calibration: Calibration) -> Table:
    """Return one row for each theory and strength or variant: how many planted heads are detected and supported."""
    rows = [(theory, *row) for theory in calibration.primary for row in calibration.rows(theory)]
    counts = [count for *_, count in rows]
    detected = [count.count(calibration.primary[theory]) for theory, _, count in rows]
    supported = [count.count(calibration.primary[theory], (Verdict.SUPPORTED,)) for theory, _, count in rows]
    return [
        Field(title="theory", cells=[theory for theory, *_ in rows], text=True),
        Field(title="strength", cells=[name for _, name, _ in rows], text=True),
        Field(title="detected", cells=[str(count) for count in detected]),
        Field(
            title="power, % [95% interval]", short="power, %", cells=[percentage(_flags(count)) for count in detected]
        ),
        Field(title="supported", cells=[str(count) for count in supported], rank=1),
        Field(
            title="other heads flagged",
            cells=[str(Count(count.other_called, count.other_heads)) for count in counts],
            rank=1,
        ),
    ]


def random_table(calibration: Calibration) -> Table:
    """Return one row for each theory and family of random models, and one for all families."""
    rows = [(theory, family) for theory in calibration.primary for family in (*calibration.random, None)]
    counts = [
        calibration.random_counts(theory) if family is None else calibration.random[family].get(theory, RandomCounts())
        for theory, family in rows
    ]
    models = [Count(count.called_models, count.models) for count in counts]
    return [
        Field(title="theory", cells=[theory for theory, _ in rows] if calibration.random else [], text=True),
        Field(title="random models", cells=[family or "all" for _, family in rows], text=True),
        Field(title="models flagged", cells=[str(count) for count in models]),
        Field(
            title="false positives, % [95% interval]",
            short="false positives, %",
            cells=[percentage(_flags(count)) for count in models],
        ),
        Field(title="heads flagged", cells=[str(Count(count.called_heads, count.heads)) for count in counts], rank=1),
    ]


def published_table(calibration: Calibration) -> Table:
    """Return one row for each statistic as published: its median and range over random models."""
    rows = [
        (theory, statistic, level)
        for theory in calibration.primary
        for statistic, level in calibration.published(theory).items()
    ]
    return [
        Field(title="theory", cells=[theory for theory, *_ in rows], text=True),
        Field(title="statistic as published", cells=[statistic for _, statistic, _ in rows], text=True),
        Field(title="median over random models", cells=[number(level.median) for *_, level in rows]),
        Field(title="5% to 95%", cells=[f"{number(level.low)} to {number(level.high)}" for *_, level in rows]),
        Field(title="models", cells=[str(level.models) for *_, level in rows]),
    ]


def as_page(calibration: Calibration) -> str:
    """Return the tables, the verdicts of all claims and the settings in Markdown."""
    settings = calibration.settings
    shape = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings["shape"].items())
    of_model = f"; sizes of {clean(settings['model'])}" if settings["model"] else ""
    parts = [
        f"clearhead {calibration.version}, seed {settings['seed']}{of_model}. Planted heads: {shape}.",
        as_markdown(planted_table(calibration)),
    ]
    if calibration.random:
        parts.append(as_markdown(random_table(calibration)))
        parts += ["Statistics as published on random models:", as_markdown(published_table(calibration))]
    parts += ["Verdicts of planted heads, all claims:", as_markdown(_claims_table(calibration))]
    return "\n\n".join(parts) + "\n"


def _claims_table(calibration: Calibration) -> Table:
    rows = [
        (theory, statistic, name, verdicts)
        for theory in calibration.primary
        for statistic in dict.fromkeys(s for _, counts in calibration.rows(theory) for s in counts.verdicts)
        for name, counts in calibration.rows(theory)
        if (verdicts := counts.verdicts.get(statistic))
    ]
    return [
        Field(title="theory", cells=[theory for theory, *_ in rows]),
        Field(title="statistic", cells=[statistic for _, statistic, *_ in rows]),
        Field(title="strength", cells=[name for *_, name, _ in rows]),
        Field(
            title="verdicts",
            cells=[", ".join(f"{name} {count}" for name, count in verdicts.items()) for *_, verdicts in rows],
        ),
    ]


def draw_power(calibration: Calibration) -> str:
    """Return the plot: power by strength for each theory, with the false positives of random models as a line."""
    theories = [theory for theory in calibration.primary if calibration.strengths(theory)]
    figure, panels = make_panels(len(theories), title="Power of the audit by planted strength", columns=3)
    for theory, panel in zip(theories, panels, strict=True):
        strengths = calibration.strengths(theory)
        detected = [calibration.detected(theory, strength) for strength in strengths]
        plot_percentage(panel, strengths, [_flags(count) for count in detected], label="planted heads", colour=0)
        random = calibration.random_counts(theory)
        if random.models:
            flagged = [_flags(Count(random.called_models, random.models))] * 2
            plot_percentage(panel, [0.0, 1.0], flagged, label="random models", colour=1)
        finish_panel(panel, title=theory, x="planted strength", y="detected, %", y_range=(-3.0, 103.0))
    return as_svg(figure)


def _like(name: str) -> tuple[Shape, list[RandomModels]]:
    """Return the sizes of a model on the default text, and models of its architecture with random weights."""
    loaded = load_named_model(name, max_tokens=MAX_TOKENS)
    if loaded.encode is None:
        raise CommandError(
            f"{name} has no tokenizer, so its lengths on text are unknown; leave MODEL out for the default sizes"
        )
    batches = functools.partial(_batches, loaded)
    draw = loaded.draw_baseline
    random = [] if draw is None else [RandomModels(name=loaded.name, draw=draw, batches=lambda seed: list(batches()))]
    return shape_of(loaded.model, batches()), random


def _batches(loaded: LoadedModel) -> Iterator[Any]:
    assert loaded.encode is not None
    return text_batches(default_passages(), loaded.encode, batch_size=BATCH_SIZE)


def _flags(count: Count) -> list[bool]:
    return [True] * count.count + [False] * (count.total - count.count)

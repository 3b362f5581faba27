"""An experiment is settings, a measurement, tables and figures. `Experiment.run` writes what they give."""

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clearhead import __version__
from clearhead.errors import MissingPackageError
from clearhead.report.columns import Column
from clearhead.report.tables import Table, as_columns, as_markdown
from clearhead.stored_json import DamagedFileError, read_json, write_json, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # matplotlib is optional, and loaded when a figure is drawn
    Axes = Figure = Any

RESULT, TABLE = "result.json", "table.md"
SHARED_RUNS = "runs"
"""The folder of trainings that several experiments use."""

Scale = Literal["small", "paper"]
Progress = Callable[[str, int, int | None], None]
"""Receives what is being done, how many steps are done, and the number of steps."""


def _no_progress(what: str, done: int, total: int | None) -> None:
    pass


def _print_notice(line: str) -> None:
    print(line, file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of a run; None leaves the choice to the experiment.

    out: the folder under which everything is written
    seed, seeds: the first seed, and the number of seeds where runs are repeated
    data: the images, in a layout that `data.image_sets` reads
    models: the folder of prepared models; fetch: download those that are absent
    scale: "small" for two cores, "paper" for the published settings
    dry_run: check shapes, parameters, schedule, memory and time; train nothing
    progress, notice: receive the progress, and lines for the user
    """

    out: Path
    seed: int = 0
    data: Path | None = None
    epochs: int | None = None
    models: Path | None = None
    fetch: bool = False
    inputs: int | None = None
    seeds: int | None = None
    scale: Scale = "small"
    dry_run: bool = False
    progress: Progress = _no_progress
    notice: Callable[[str], None] = _print_notice

    def seed_list(self, default: int) -> list[int]:
        """Return the seeds of repeated runs; `default` is the number if `seeds` is None."""
        return list(range(self.seed, self.seed + (self.seeds or default)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of an experiment, ready to be written.

    headline: the result in one line
    setting: how the numbers were obtained, for the page
    sections: headings with a table or text
    terminal: the table that the terminal shows, by default the first of the sections; `print_page` shows all sections
    remarks: paragraphs for the terminal
    figures: functions that draw a figure, by file name
    facts: plain values for result.json; json_files: plain values of further files
    files: files and folders that the measurement wrote, to list for the user
    """

    headline: str
    setting: str = ""
    sections: Sequence[tuple[str, Table | str]] = ()
    terminal: Table | None = None
    remarks: Sequence[str] = ()
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    json_files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Sequence[Path] = ()
    print_page: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The printed result of a run: the headline, a page or a table, remarks, and the files that were written.

    tables: the same table in columns, the widest first; the first that fits the terminal is printed
    facts: plain values, as in result.json
    """

    headline: str
    page: str = ""
    tables: tuple[Sequence[Column], ...] = ()
    remarks: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The headline of the last run and its day."""

    headline: str
    day: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A published result that can be computed again.

    reproduces: the statement or table; source: its number in the publication
    cost, full_cost: the time of a run on one core, and at the scale of the publication
    measure: computes the results in a folder, or takes them from the cache there
    report: turns the results into tables and figures
    options: the optional fields of the request that it reads
    """

    name: str
    title: str
    reproduces: str
    cost: str
    measure: Callable[[Request, Path], Any]
    report: Callable[[Any, Request], Report]
    options: frozenset[str] = frozenset()
    source: str = ""
    full_cost: str = ""

    def folder(self, out: Path) -> Path:
        """Return the folder below `out` that a run writes."""
        return out / self.name.replace("/", "-")

    def command(self, request: Request) -> str:
        """Return the command that computes the same numbers. Paths do not change a number and are left out."""
        options = [f"--data {request.data.name or '.'}"] if request.data is not None else []
        options += ["--fetch"] if "fetch" in self.options else []
        chosen = {"epochs": request.epochs, "inputs": request.inputs, "seeds": request.seeds, "seed": request.seed}
        options += [f"--{name} {value}" for name, value in chosen.items() if value]
        options += ["--scale paper"] if request.scale == "paper" else []
        options += ["--dry-run"] if request.dry_run else []
        return " ".join([f"clearhead reproduce {self.name}", *options])

    def run(self, request: Request) -> Outcome:
        """Measure, and write the page of tables, the figures and result.json. Without matplotlib there are no figures.

        A run that was interrupted continues from what its folder holds.
        """
        folder = self.folder(request.out)
        report = self.report(self.measure(request, folder), request)
        files, remarks = list(report.files), list(report.remarks)
        drawn = []
        try:
            for name, draw in report.figures.items():
                from clearhead.report.plots import as_svg

                write_text(folder / name, as_svg(draw()))
                drawn.append(name)
        except MissingPackageError as error:
            remarks.append(f"No figures: {error}")
        page = self._page(report, request, drawn)
        if page:
            write_text(folder / TABLE, page)
            files.append(folder / TABLE)
        files += [folder / name for name in drawn]
        for name, content in report.json_files.items():
            write_json(folder / name, content)
            files.append(folder / name)
        facts = {"command": self.command(request), **report.facts}
        write_json(
            folder / RESULT,
            {
                "experiment": self.name,
                "version": __version__,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": installed_versions(),
                "processor": processor(),
                "seed": request.seed,
                "headline": report.headline,
                "facts": facts,
            },
        )
        tables = [table for _, table in report.sections if not isinstance(table, str)]
        shown = report.terminal or next(iter(tables), None)
        return Outcome(
            headline=report.headline,
            page=page if report.print_page else "",
            tables=() if shown is None or report.print_page else as_columns(shown),
            remarks=tuple(remarks),
            files=(*files, folder / RESULT),
            facts=facts,
        )

    def last_run(self, out: Path) -> LastRun | None:
        """Return the headline of the last run below `out`; None without one. A damaged file is named."""
        path = self.folder(out) / RESULT
        try:
            stored = read_json(path)
            return LastRun(headline=str(stored["headline"]), day=str(stored["created"])[:10])
        except (FileNotFoundError, KeyError):
            return None
        except DamagedFileError:
            return LastRun(headline=f"{path.name} is damaged; run the experiment again", day="unknown")

    def _page(self, report: Report, request: Request, drawn: Sequence[str]) -> str:
        """Return Markdown: the title, the setting, every section, the figures and the manifest; "" without sections."""
        if not report.sections:
            return ""
        parts = [f"# {self.title}", f"{self.reference}{report.setting}".strip()]
        for heading, content in report.sections:
            parts += [f"## {heading}", content if isinstance(content, str) else as_markdown(content)]
        if drawn:
            parts += ["## Figures", *(f"![{self.title}]({name})" for name in drawn)]
        parts += ["## Manifest", *self._manifest(request)]
        return "\n\n".join(part for part in parts if part) + "\n"

    @property
    def reference(self) -> str:
        """The figure or table of the publication, as the beginning of a page; "" if there is none."""
        return f"Reproduces {self.source} of Teo and Nguyen 2024 (arXiv 2406.13762). " if self.source else ""

    def _manifest(self, request: Request) -> Sequence[str]:
        """Return the paragraphs that say how the page was made."""
        versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
        day = datetime.now(UTC).date().isoformat()
        return (
            f"Made by `{self.command(request)}` on {day}; {versions}; {processor()}.",
            f"`{RESULT}`, which the command writes next to this page, has every number of every seed.",
        )


def processor() -> str:
    """Return the machine, the instructions that torch uses, and its number of threads."""
    import torch

    threads = torch.get_num_threads()
    return f"{platform.machine()} with {torch.backends.cpu.get_cpu_capability()}, {threads} thread(s)"


def installed_version(package: str) -> str:
    """Return the version of an installed package, or "none"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def installed_versions() -> dict[str, str]:
    """Return the versions of Clearhead, Python and the packages that compute the numbers."""
    packages = ("torch", "transformers", "numpy", "scipy")
    return {
        "clearhead": __version__,
        "python": platform.python_version(),
        **{name: installed_version(name) for name in packages},
    }

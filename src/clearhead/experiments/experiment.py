"""What an experiment is, what it is asked, and what it leaves behind."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from clearhead import __version__
from clearhead.report.columns import Column

__all__ = [
    "RESULT",
    "Experiment",
    "LastOutcome",
    "Outcome",
    "Request",
    "installed_version",
    "installed_versions",
    "last_outcome",
    "write_json",
    "write_outcome",
    "write_text",
]

RESULT = "result.json"

Tell = Callable[[str, int, int | None], None]
"""Is told what is being done, how much of it is done, and of how much in all."""


def _tell_nobody(what: str, done: int, total: int | None) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an experiment is asked. What is None is left to the experiment.

    out: the folder under which everything is written
    data: the images, in a layout that `data.images` reads
    models: the folder of prepared models; fetch: whether to fetch what it lacks
    seed: of everything that is drawn; seeds: how many, from that one on, where runs are repeated
    """

    out: Path
    seed: int = 0
    data: Path | None = None
    epochs: int | None = None
    models: Path | None = None
    fetch: bool = False
    inputs: int | None = None
    seeds: int | None = None
    tell: Tell = _tell_nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an experiment found: a line to remember, what to print, and the files that hold it.

    lines: printed as they are
    tables: the same table in columns, the widest first; the first that fits the terminal is printed
    remarks: paragraphs, broken where the terminal ends
    facts: plain values for result.json
    """

    headline: str
    lines: tuple[str, ...] = ()
    tables: tuple[Sequence[Column], ...] = ()
    remarks: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Something published that can be run again.

    reproduces: the statement or the table; cost: what a run takes on one core
    options: which of the request's optional fields it reads
    """

    name: str
    reproduces: str
    cost: str
    run: Callable[[Request, Path], Outcome]
    options: frozenset[str] = frozenset()

    def folder(self, out: Path) -> Path:
        """Where a run under `out` writes."""
        return out / self.name.replace("/", "-")


def write_text(path: Path, text: str) -> None:
    """Write a file that is complete or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    started = path.with_name(f".{path.name}")
    started.write_text(text, encoding="utf-8")
    started.replace(path)


def write_json(path: Path, facts: Any) -> None:
    """Write plain values to a file that is complete or as it was before."""
    write_text(path, json.dumps(facts, indent=1, allow_nan=False) + "\n")


def write_outcome(folder: Path, experiment: Experiment, outcome: Outcome, request: Request) -> None:
    """Leave the headline for the list, and the facts."""
    write_json(
        folder / RESULT,
        {
            "experiment": experiment.name,
            "version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": request.seed,
            "headline": outcome.headline,
            **({"facts": dict(outcome.facts)} if outcome.facts else {}),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOutcome:
    """What the last run found, and on which day."""

    headline: str
    day: str


def last_outcome(folder: Path) -> LastOutcome | None:
    """What the last run in the folder found; None if there is none."""
    try:
        stored = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return LastOutcome(headline=str(stored["headline"]), day=str(stored["created"])[:10])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def installed_version(package: str) -> str:
    """The version of an installed package, or "none"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def installed_versions(*packages: str) -> dict[str, str]:
    """The versions of clearhead, python and those packages."""
    found = {"clearhead": __version__, "python": platform.python_version()}
    return found | {name: installed_version(name) for name in packages}

"""`clearhead audit`: load the model and the text, walk the corridor, print and write what was found."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.cli.console import printing
from clearhead.cli.failure import CommandError
from clearhead.cli.import_path import allow_current_folder, remove_from_import_path
from clearhead.data.text import default_passages, read_passages, text_batches
from clearhead.interfaces import read_descriptions
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.models.loading import LoadedModel, load_model
from clearhead.models.objects import LoadError, is_object_path, load_batches, load_function
from clearhead.report.folder import WrittenReport, report_folder
from clearhead.report.json_file import audit_as_text
from clearhead.report.terminal import print_audit
from clearhead.theories.catalogue import find_theories

__all__ = ["AuditRequest", "audit_command"]

TWINS = 5
"""How often a model is drawn anew for theories that are judged by what it was before training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What was asked for on the command line."""

    model: str
    text: Path | None
    batches: str | None
    layers: str | None
    theories: tuple[str, ...]
    inputs: int | None
    max_tokens: int
    batch_size: int
    seed: int
    describe: Path | None
    allow_unseen: bool
    untrained: bool | None
    loss: str | None
    out: Path
    json: bool


@dataclass(frozen=True, slots=True)
class _Again:
    """Batches that can be gone through more than once without being kept."""

    make: Callable[[], Iterable[Any]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    batches: Iterable[Any]
    name: str
    count: int | None


def audit_command(request: AuditRequest) -> None:
    """Run the audit that was asked for. The report is written before anything is printed."""
    layers = None if request.layers is None else _places(request.layers)
    found = find_theories(request.theories)
    compared = [t.name for t in found if t.needs_untrained] if request.untrained is None else [t.name for t in found]
    describe = [] if request.describe is None else read_descriptions(request.describe)
    if request.text is not None and request.batches is not None:
        raise CommandError("--text and --batches are two ways to give inputs; choose one")
    passages = None if request.text is None else read_passages(request.text)
    with report_folder(request.out) as folder:
        ensure_torchvision()
        if is_object_path(request.model):
            allow_current_folder(request.model, [request.model])
        else:
            remove_from_import_path(request.model)
        loaded = load_model(request.model, max_tokens=request.max_tokens)
        if request.untrained and loaded.untrained is None:
            raise CommandError(
                f"--untrained needs a model folder; what {request.model} was before training is not known"
            )
        if objects := [path for path in (request.batches, request.loss) if path is not None]:
            allow_current_folder(request.model, objects)
        inputs = _inputs(request, loaded, passages)
        loss = None if request.loss is None else load_function(request.loss)
        with _progress(inputs.count) as tell:
            record = audit(
                loaded.model,
                inputs.batches,
                theories=request.theories,
                layers=layers,
                seed=request.seed,
                describe=describe,
                allow_unseen=request.allow_unseen,
                untrained=_untrained(request, loaded) if compared else None,
                untrained_for=compared,
                loss=loss,
                name=loaded.name,
                data=inputs.name,
                progress=tell,
            )
        written = folder.write(record)
    _print(record, written, as_json=request.json)


def _untrained(request: AuditRequest, loaded: LoadedModel) -> Iterable[nn.Module] | None:
    """The model before training, drawn several times, each when it is its turn.

    None where it is not wanted, and where nobody asked for it and it cannot be had.
    """
    draw = loaded.untrained
    if request.untrained is False or draw is None:
        return None
    try:
        first = draw(request.seed)
    except LoadError:
        if request.untrained:
            raise
        return None
    return itertools.chain([first], (draw(request.seed + place) for place in range(1, TWINS)))


def _print(record: AuditRecord, written: WrittenReport, *, as_json: bool) -> None:
    with printing() as console:
        if as_json:
            print(audit_as_text(record), file=console.file)
            return
        print_audit(record, console)
        for line in (f"report    {written.page}", f"findings  {written.findings}"):
            console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False, emoji=False)


def _inputs(request: AuditRequest, loaded: LoadedModel, passages: list[str] | None) -> _Inputs:
    if request.batches is not None:
        path = request.batches
        again = _Again(lambda: itertools.islice(load_batches(path), request.inputs))
        return _Inputs(batches=again, name=path, count=None)
    if loaded.encode is None:
        raise CommandError(f"{request.model} has no tokenizer, so it cannot read text; give its inputs with --batches")
    name = "the text that ships with clearhead" if request.text is None else str(request.text)
    chosen = (default_passages() if passages is None else passages)[: request.inputs]
    encode = loaded.encode
    encoded = _Again(lambda: text_batches(chosen, encode, batch_size=request.batch_size))
    return _Inputs(batches=encoded, name=name, count=len(chosen))


def _places(text: str) -> set[int]:
    """Layers from 0,2,5 or 0-3."""
    places: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if match is None:
            raise CommandError(f"--layers takes places of at most four digits, such as 0,2,5 or 0-3, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise CommandError(f"--layers {part.strip()} runs backwards; give {last}-{first}")
        places.update(range(first, last + 1))
    return places


@contextmanager
def _progress(count: int | None) -> Iterator[Any]:
    """A bar on standard error, so that standard output holds the result alone."""
    counts = (MofNCompleteColumn(), TextColumn("inputs"), TimeElapsedColumn())
    console = Console(stderr=True)
    words = {"check": "checking the capture", "measure": "measuring", "untrained": "measuring the untrained model"}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(words["check"], total=count)
        yield lambda phase, done: bar.update(task, description=words[phase], completed=done)

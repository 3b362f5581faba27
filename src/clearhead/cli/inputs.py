"""The inputs of an audit: text, images, sound, or the batches of a function."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.audit.checksums import text_checksum
from clearhead.cli.failure import CommandError
from clearhead.cli.request import AuditRequest
from clearhead.data.media import list_files, media_batches
from clearhead.data.readers import endings, read_file
from clearhead.data.text import default_passages, read_passages, text_batches
from clearhead.loading.model import LoadedModel
from clearhead.loading.objects import load_batches
from clearhead.storage import sha256_of_file

__all__ = ["Inputs", "Source", "find_source", "make_inputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The passages or files that a request names, read before the model is loaded; neither for batches."""

    passages: list[str] | None = None
    files: list[Path] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Batches, what they were made from, and how many inputs there are (None if unknown)."""

    batches: Iterable[Any]
    name: str
    count: int | None
    checksum: str | None = None
    """SHA-256 of the passages or files."""


@dataclass(frozen=True, slots=True)
class _Repeatable:
    """An iterable that calls `make` for each iteration, so that no batch is stored."""

    make: Callable[[], Iterable[Any]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


def find_source(request: AuditRequest) -> Source:
    """Read the passages, or list the files, that a request names. Raise InputError if that is not possible."""
    names = {"--text": request.text, "--batches": request.batches, "--images": request.images, "--audio": request.audio}
    given = [name for name, value in names.items() if value is not None]
    if len(given) > 1:
        raise CommandError(f"{' and '.join(given)} are two ways to give inputs; choose one")
    if request.column is not None and request.text is None:
        raise CommandError("--column selects a column of --text, which is missing; give the table with --text")
    if request.images is not None:
        return Source(files=list_files(request.images, endings("images")))
    if request.audio is not None:
        return Source(files=list_files(request.audio, endings("audio")))
    return Source(passages=None if request.text is None else read_passages(request.text, request.column))


def make_inputs(request: AuditRequest, loaded: LoadedModel, source: Source) -> Inputs:
    """Return the batches of a request. Raise InputError if the model cannot take such inputs."""
    if request.batches is not None:
        path = request.batches
        limited = _Repeatable(lambda: itertools.islice(load_batches(path), request.inputs))
        return Inputs(batches=limited, name=path, count=None)
    return _of_files(request, loaded, source.files) if source.files is not None else _of_text(request, loaded, source)


def _of_text(request: AuditRequest, loaded: LoadedModel, source: Source) -> Inputs:
    if loaded.encode is None:
        others = "--images, --audio or --batches" if loaded.processor is not None else "--batches"
        raise CommandError(
            f"{request.model} has no tokenizer, so it cannot read text; give its inputs with {others}, "
            "or a function that returns the model and its tokenizer (docs/data.md)"
        )
    name = "the text that ships with clearhead" if request.text is None else str(request.text)
    if request.column is not None:
        name = f"{name}, column {request.column}"
    chosen = (default_passages() if source.passages is None else source.passages)[: request.inputs]
    encode = loaded.encode
    encoded = _Repeatable(lambda: text_batches(chosen, encode, batch_size=request.batch_size))
    return Inputs(batches=encoded, name=name, count=len(chosen), checksum=text_checksum(chosen))


def _of_files(request: AuditRequest, loaded: LoadedModel, files: list[Path]) -> Inputs:
    folder, option = (request.images, "--images") if request.images is not None else (request.audio, "--audio")
    processor = loaded.processor
    if folder is None or processor is None:
        raise CommandError(
            f"{request.model} has no processor, which {option} needs; give its inputs with --batches, or a function "
            "that returns the model and its processor (docs/data.md)"
        )
    chosen = files[: request.inputs]

    def batches() -> Iterator[Any]:
        size = request.batch_size
        if request.images is not None:
            return media_batches(chosen, lambda path: read_file(path, "images"), processor.images, batch_size=size)
        rate = processor.rate()
        return media_batches(chosen, lambda path: read_file(path, "audio", rate), processor.audio, batch_size=size)

    checksum = text_checksum(f"{path.relative_to(folder).as_posix()} {sha256_of_file(path)}" for path in chosen)
    return Inputs(batches=_Repeatable(batches), name=str(folder), count=len(chosen), checksum=checksum)

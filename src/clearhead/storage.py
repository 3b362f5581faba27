"""Files that hold state: written atomically, and read only if they match their SHA-256 checksum.

JSON lines (`write_lines`) and safetensors (`write_tensors`) carry their own checksum, and so does JSON
(`clearhead.stored_json`). For files in a format of others, `write_checksums` puts the checksums of a folder into one
more file. A checksum detects damage. It does not prove who wrote a file.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from clearhead.errors import ClearheadError, InputError

__all__ = [
    "CHECKSUMS_FILE", "LOCK_FILE", "MAX_INPUT_BYTES", "MAX_JSON_BYTES", "DamagedFileError", "WriteError",
    "check_checksums", "lock_file", "lock_folder", "open_file", "parse_json", "parse_toml", "read_bytes", "read_lines",
    "read_tensors", "read_text", "remove_unfinished", "sha256_of_file", "tensor_fingerprint", "write_bytes",
    "write_checksums", "write_lines", "write_tensors",
]  # fmt: skip

CHECKSUMS_FILE = "clearhead-checksums.jsonl"
LOCK_FILE = ".lock"
MAX_JSON_BYTES = 64 * 2**20
MAX_INPUT_BYTES = 2**30
"""Of a file of inputs: text, a table, images or sound; and of the text, pixels or samples that it expands to."""
MAX_DEPTH = 64
"""Levels of nested values in JSON and TOML."""

_NO_HASH = "0" * 64
_HASH_IN_HEADER = re.compile(rb'"sha256":"([0-9a-f]{64})"')


class DamagedFileError(InputError):
    """A file that cannot be read back as it was written."""


class WriteError(ClearheadError, OSError):
    """A file that cannot be written: the disk is full, read-only or gone."""


def write_bytes(path: Path, content: bytes, *, previous: Path | None = None) -> None:
    """Write a file atomically: after a crash it holds either the old or the new content.

    previous: a file that gets the old content
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _link(path, previous)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise WriteError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another folder"
        ) from None
    _sync_folder(path.parent)


def remove_unfinished(path: Path) -> None:
    """Remove the temporary files that writers of this file left when they were killed. No writer may be running."""
    for temporary in path.parent.glob(f".{path.name}.*"):
        if temporary.suffix[1:].isdecimal():
            temporary.unlink(missing_ok=True)


@contextmanager
def open_file(path: Path, *, max_bytes: int | None = None) -> Iterator[BufferedReader]:
    """Open a regular file for reading: the one way to open a file that somebody names.

    Raise FileNotFoundError if it is missing, and InputError for a pipe, a device, a folder or more than `max_bytes`.
    """
    # Without O_NONBLOCK, opening a named pipe that was put there after the first check waits for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening one may change what it is connected to
            raise OSError("it is not a regular file")
        file = os.fdopen(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)), "rb")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a ValueError if the name has a zero byte
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"cannot read {path}: it is not a regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise InputError(f"cannot read {path}: it has more than {max_bytes:,} bytes, the limit for such a file")
        yield file


def read_bytes(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file. Raise as `open_file` does."""
    with open_file(path, max_bytes=max_bytes) as file:
        try:
            content = file.read() if max_bytes is None else file.read(max_bytes + 1)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if max_bytes is not None and len(content) > max_bytes:  # it has grown, or the system makes it up
        raise InputError(f"cannot read {path}: it has more than {max_bytes:,} bytes, the limit for such a file")
    return content


def read_text(path: Path, *, max_bytes: int) -> str:
    """Return the content of a regular file of UTF-8 text, with or without a byte order mark. Raise as `open_file`."""
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; convert it first") from None


def parse_json(content: bytes, path: Path) -> Any:
    """Return the value of JSON text. Raise InputError naming `path` if it is not JSON or nested too deeply."""
    return _parse(json.loads, content, path, "JSON")


def parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    """Return the tables of TOML text. Raise InputError as `parse_json` does."""
    tables: dict[str, Any] = _parse(tomllib.loads, content, path, "TOML")
    return tables


def _parse(parse: Callable[[str], Any], content: bytes, path: Path, name: str) -> Any:
    try:
        value = parse(content.decode())
    except RecursionError:
        raise InputError(f"cannot read {path}: its {name} is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"cannot read {path}: it is not valid {name} ({error})") from None
    level, depth = [value], 0
    while level := [entry for each in level for entry in _entries(each) if isinstance(entry, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise InputError(f"cannot read {path}: its {name} is nested more than {MAX_DEPTH} levels deep")
    return value


def _entries(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, and a last line with the checksum of the lines before it."""
    lines = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    write_bytes(path, lines + _hash_line(lines))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects that `write_lines` wrote, without the checksum.

    Raise FileNotFoundError if there is no file, and DamagedFileError if it does not match its checksum.
    """
    content = read_bytes(path, max_bytes=MAX_JSON_BYTES)
    lines = content[: -len(_hash_line(b""))]
    if content != lines + _hash_line(lines):
        raise _damaged(path)
    return [parse_json(line, path) for line in lines.splitlines()]


def write_tensors(
    path: Path,
    tensors: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] | None = None,
    previous: Path | None = None,
) -> None:
    """Write a safetensors file whose metadata hold the checksum of the whole file, computed with zeros in its place.

    previous: a file that gets the old content
    """
    from safetensors.torch import save

    separate = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    content = save(separate, metadata={**(metadata or {}), "sha256": _NO_HASH})
    content = content.replace(f'"sha256":"{_NO_HASH}"'.encode(), f'"sha256":"{_sha256(content)}"'.encode(), 1)
    write_bytes(path, content, previous=previous)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors and the metadata that `write_tensors` wrote. Raise as `read_lines` does."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_bytes(path)
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    hashes = _HASH_IN_HEADER.findall(header)
    if len(hashes) != 1:
        raise DamagedFileError(f"{path} has no checksum: it is damaged, or another program wrote it")
    if _sha256(content.replace(hashes[0], _NO_HASH.encode(), 1)) != hashes[0].decode():
        raise _damaged(path)
    try:
        metadata = parse_json(header, path)["__metadata__"]
        del metadata["sha256"]
        return load(content), metadata
    except (KeyError, TypeError, SafetensorError) as error:
        raise DamagedFileError(f"{path} holds no tensors ({error}): another program wrote it") from None


def write_checksums(folder: Path, names: Sequence[str]) -> None:
    """Write the checksums of files of a folder into `CHECKSUMS_FILE`."""
    entries = [{"name": name, "sha256": sha256_of_file(folder / name)} for name in sorted(names)]
    write_lines(folder / CHECKSUMS_FILE, entries)


def check_checksums(folder: Path) -> bool:
    """Compare the files of a folder with its `CHECKSUMS_FILE`. Return False if it has no such file.

    Raise DamagedFileError if a file differs or is missing.
    """
    path = folder / CHECKSUMS_FILE
    if not path.exists():
        return False
    for entry in read_lines(path):
        name, expected = (entry.get(key) if isinstance(entry, dict) else None for key in ("name", "sha256"))
        if not (isinstance(name, str) and isinstance(expected, str) and name.isprintable()):
            raise DamagedFileError(f"{path} is not a list of files and their checksums; delete it")
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path} lists {name}, which is outside {folder}; delete {path.name}")
        try:
            intact = sha256_of_file(folder / name) == expected
        except FileNotFoundError:
            raise DamagedFileError(f"{folder / name} is missing, but {path.name} lists it; restore it") from None
        if not intact:
            raise DamagedFileError(
                f"{folder / name} does not match {path.name}: it was damaged or edited. Restore it, or delete "
                f"{path.name} to use it as it is"
            )
    return True


@contextmanager
def lock_folder(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the folder's lock, so that no second process writes there. Raise InputError if another holds it.

    The operating system releases the lock when the process ends, however it ends; the file of the lock is removed, and
    one that a killed process left is used again. Where it has no such lock (Windows, some network disks), nothing is
    locked.

    shared: let other processes hold it that also share it: those that write other files
    """
    with _locked(folder / LOCK_FILE, folder, shared=shared):
        yield


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of one file of a folder, as `lock_folder` does. The file need not exist."""
    with _locked(path.with_name(f".{path.name}{LOCK_FILE}"), path):
        yield


_HELD: set[IO[bytes]] = set()
"""The open files of the locks that this process holds."""


def _close_in_child() -> None:
    """Close the locks' files in a forked process. It would keep the lock if this process is killed."""
    for file in _HELD:
        file.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def _locked(path: Path, subject: Path, *, shared: bool = False) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        yield
        return
    created = [folder for folder in path.parents if not folder.exists()]
    file = _open_lock(path, subject, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    _HELD.add(file)
    try:
        yield
    finally:
        if file in _HELD:
            _HELD.remove(file)
            with file, suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it fails while others share the lock
                path.unlink()
            for folder in created:
                with suppress(OSError):
                    folder.rmdir()  # if it is empty


def _open_lock(path: Path, subject: Path, kind: int) -> IO[bytes]:
    """Return the open file of a lock that is held. The file may be removed, by who held it, until it is locked."""
    import fcntl

    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except FileNotFoundError:
            continue  # who held the lock removed the folder, which was empty
        except OSError as error:
            raise WriteError(f"cannot write {subject}: {error.strerror or error}; choose another folder") from None
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(
                f"{subject} is in use by another run; wait until it ends, or choose another folder"
            ) from None
        except OSError:  # a disk without locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        file.close()


def tensor_fingerprint(tensors: Iterable[Any], *, source: str = "") -> str:
    """Return the SHA-256 of the shapes, dtypes and entries of tensors, and of `source`."""
    import torch

    digest = hashlib.sha256(source.encode())
    for tensor in tensors:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def _link(path: Path, other: Path) -> None:
    """Give a file a second name. It is copied where the disk has one name for each file."""
    other.unlink(missing_ok=True)
    try:
        other.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, other)


def _hash_line(lines: bytes) -> bytes:
    return json.dumps({"sha256": _sha256(lines)}).encode() + b"\n"


def _damaged(path: Path) -> DamagedFileError:
    return DamagedFileError(f"{path} does not match its checksum: it was damaged or edited; delete it to start again")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the checksum of a regular file. Raise FileNotFoundError if there is none."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Not every system can open a folder."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

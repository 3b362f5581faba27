"""Files inside wheels, zip files and source archives, by name. Only requested files are unpacked."""

import tarfile
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from clearhead.models.objects import LoadError

__all__ = ["Archives", "unpack_folder"]


class Archives:
    """The files of several archives: `archives(name)` returns the content of a file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._archive_of = {name: path for path in paths for name in _names(path)}

    def __contains__(self, name: str) -> bool:
        return name in self._archive_of

    def __call__(self, name: str) -> bytes:
        """Return the content of one file."""
        if name not in self._archive_of:
            raise LoadError(f"the package has no {name}; check its version")
        if _is_zip(self._archive_of[name]):
            with zipfile.ZipFile(self._archive_of[name]) as whole:
                return whole.read(name)
        with tarfile.open(self._archive_of[name]) as packed:
            opened = packed.extractfile(name)
            assert opened is not None, "only files are listed"
            return opened.read()

    def joined(self, name: str) -> bytes:
        """Return the content of a split file: name.001, name.002 and so on, each in its own folder."""
        files = sorted(
            (file for file in self._archive_of if f"/{name}." in file), key=lambda file: file.rpartition("/")[2]
        )
        if not files:
            raise LoadError(f"the packages have no files {name}.001 ...; check their versions")
        return b"".join(self(file) for file in files)


def unpack_folder(content: bytes, into: Path, *, suffixes: Sequence[str]) -> None:
    """Write the files of a zipped model folder that are next to its config.json and have one of the suffixes."""
    with zipfile.ZipFile(BytesIO(content)) as whole:
        names = [name for name in whole.namelist() if name.rpartition("/")[2] == "config.json"]
        if not names:
            raise LoadError("the archive has no config.json, so it is not a model folder")
        folder = min(names, key=len).removesuffix("config.json")
        for name in whole.namelist():
            inside = name.removeprefix(folder)
            if name.startswith(folder) and "/" not in inside and inside.endswith(tuple(suffixes)):
                (into / inside).write_bytes(whole.read(name))


def _is_zip(path: Path) -> bool:
    return path.suffix in (".whl", ".zip")


def _names(path: Path) -> list[str]:
    """Return the names of the files in an archive."""
    if _is_zip(path):
        with zipfile.ZipFile(path) as whole:
            return [name for name in whole.namelist() if not name.endswith("/")]
    with tarfile.open(path) as packed:
        return [member.name for member in packed if member.isfile()]

"""Files inside wheels, zip files and source archives, by name. Nothing is unpacked that is not asked for."""

import tarfile
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from clearhead.models.objects import LoadError

__all__ = ["Archives", "unpack_folder"]


class Archives:
    """The files of several archives under one roof: `archives(name)` is a file's content."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._home = {name: path for path in paths for name in _names(path)}

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def __call__(self, name: str) -> bytes:
        """The content of one file."""
        if name not in self._home:
            raise LoadError(f"the package has no {name}; is it the version that was asked for?")
        if _is_zip(self._home[name]):
            with zipfile.ZipFile(self._home[name]) as whole:
                return whole.read(name)
        with tarfile.open(self._home[name]) as packed:
            opened = packed.extractfile(name)
            assert opened is not None, "only files are listed"
            return opened.read()

    def joined(self, name: str) -> bytes:
        """The content of a file that came in parts, name.001, name.002 and so on, each in a folder of its own."""
        parts = sorted((part for part in self._home if f"/{name}." in part), key=lambda part: part.rpartition("/")[2])
        if not parts:
            raise LoadError(f"the packages have no parts of {name}; are they the versions that were asked for?")
        return b"".join(self(part) for part in parts)


def unpack_folder(content: bytes, into: Path, *, suffixes: Sequence[str]) -> None:
    """Write those files of a zipped model folder that lie beside its config.json and end so."""
    with zipfile.ZipFile(BytesIO(content)) as whole:
        names = [name for name in whole.namelist() if name.rpartition("/")[2] == "config.json"]
        if not names:
            raise LoadError("the archive holds no config.json, so no model folder")
        home = min(names, key=len).removesuffix("config.json")
        for name in whole.namelist():
            inside = name.removeprefix(home)
            if name.startswith(home) and "/" not in inside and inside.endswith(tuple(suffixes)):
                (into / inside).write_bytes(whole.read(name))


def _is_zip(path: Path) -> bool:
    return path.suffix in (".whl", ".zip")


def _names(path: Path) -> list[str]:
    """The names of the files in an archive."""
    if _is_zip(path):
        with zipfile.ZipFile(path) as whole:
            return [name for name in whole.namelist() if not name.endswith("/")]
    with tarfile.open(path) as packed:
        return [member.name for member in packed if member.isfile()]

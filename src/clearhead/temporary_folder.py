"""A folder for files in progress, next to their destination, so that they can be renamed into it.

A writer that is killed leaves its folder behind. The next writer removes it, if it is certain that the first has ended:
a writer holds the lock of `LOCK` in its folder, and the operating system releases it when the process ends. The file
has this name only from the moment it is locked. A folder without it, or whose lock is held, is left alone.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".clearhead-"
LOCK = "clearhead-writer.lock"
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a new folder in `parent` and remove it at the end. Folders of writers that were killed are removed first.

    Raise OSError if `parent` cannot be written.
    """
    _remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock, and there nothing is removed
        yield
        return
    unlocked = folder / "unlocked"
    with unlocked.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(folder / LOCK)
        except OSError:  # a disk without locks: nobody will remove the folder
            unlocked.unlink(missing_ok=True)
        yield


def _remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders whose writers have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        if _NAME.fullmatch(folder.name) and not folder.is_symlink() and folder.is_dir() and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return True if the folder has the file of a writer, and nobody holds its lock."""
    try:
        import fcntl

        opened = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(opened)
    return True

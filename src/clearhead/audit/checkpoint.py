"""Saving a part of an audit while it runs, and continuing it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead.audit.finishing import finish_audit
from clearhead.audit.part import SAVED_TYPES, Part
from clearhead.audit.record import AuditRecord
from clearhead.audit.state_file import REMEDY, read_state, write_state
from clearhead.errors import InputError
from clearhead.records import check_fields
from clearhead.storage import DamagedFileError, lock_file, remove_unfinished
from clearhead.theories.catalogue import find_theories

__all__ = ["Checkpoint", "read_part"]

SHARE = 0.02
"""Largest share of the time that writing may take."""
PAUSE = 1.0
"""Seconds between two writes, at least."""


class Checkpoint:
    """The file of a part. It is written after the first batch and then often, as long as that costs little time.

    path: None if nothing is saved
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._next = 0.0
        self._created: list[Path] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer of the file. Raise InputError if another process writes it."""
        if self._path is None:
            yield
            return
        with lock_file(self._path):
            remove_unfinished(self._path)
            yield

    def read(self, notice: Callable[[str], None]) -> Part | None:
        """Return the part that the file holds; None without a file. A damaged file is reported and counts as none."""
        if self._path is None:
            return None
        try:
            return read_part(self._path)
        except FileNotFoundError:
            return None
        except Exception as error:
            notice(f"{error}; the audit starts again")
            return None

    def save(self, current: Callable[[], Part], *, always: bool = False) -> None:
        """Write the current part if it is time to. Without a file, the part is made current if `always`."""
        start = time.perf_counter()
        if not always and (self._path is None or start < self._next):
            return
        part = current()
        if self._path is None:
            return
        folder = self._path.parent
        self._created += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        write_state(self._path, part.state())
        end = time.perf_counter()
        self._next = end + max(PAUSE, (end - start) / SHARE)

    def remove(self) -> None:
        """Remove the file, and folders that were made for it and are empty."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        for folder in self._created:
            with suppress(OSError):
                folder.rmdir()

    def finish(self, part: Part) -> AuditRecord:
        """Return the record of a part that is the whole audit. If it cannot be made, nothing is left to continue."""
        try:
            return finish_audit([part])
        except InputError:
            self.remove()
            raise


def read_part(path: Path) -> Part:
    """Return the part that a file holds. Raise FileNotFoundError, or InputError for a damaged or another file."""
    state = read_state(path, SAVED_TYPES)
    try:
        part = Part.from_state(state, find_theories)
        records = (part, part.shard, part.audited, *part.passes)  # one pass is the audited model's
    except InputError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} cannot be read ({error}); {REMEDY}") from None
    for record in records:
        check_fields(record, path, remedy=REMEDY)
    if part.seconds.keys() != {theory.title for theory in find_theories(part.options["theories"])}:
        raise DamagedFileError(f"{path} cannot be read: it has the seconds of other theories; {REMEDY}")
    if not all(0 <= each.next_batch <= len(part.sizes) for each in part.passes):
        raise DamagedFileError(f"{path} cannot be read: it goes on after batches that it does not have; {REMEDY}")
    return part

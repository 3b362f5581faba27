"""A temporary folder goes with its writer, or with the next one; those of running writers and of users stay."""

import os
import signal
import sys
from pathlib import Path

import pytest

from clearhead.temporary_folder import LOCK, temporary_folder

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")


def _names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def _killed_writer(parent: Path, number: signal.Signals) -> Path:
    """Return the folder of a writer that a signal ended."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            if number != signal.SIGKILL:  # whose handler cannot be set
                signal.signal(number, signal.SIG_DFL)
            with temporary_folder(parent) as folder:
                (folder / "half a report").write_text("half")
                os.write(write, folder.name.encode())
                os.kill(os.getpid(), number)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        name = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
    return parent / name


def test_it_is_removed_at_the_end(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        (folder / "file").touch()
        assert _names(tmp_path) == {folder.name}
    assert _names(tmp_path) == set()
    with pytest.raises(ZeroDivisionError), temporary_folder(tmp_path):
        raise ZeroDivisionError
    assert _names(tmp_path) == set()


@needs_locks
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_that_of_a_killed_writer_is_removed_by_the_next(tmp_path: Path, name: str) -> None:
    abandoned = _killed_writer(tmp_path, signal.Signals[name])
    assert _names(abandoned) == {LOCK, "half a report"}
    with temporary_folder(tmp_path) as folder:
        assert _names(tmp_path) == {folder.name}


@needs_locks
def test_that_of_a_running_writer_stays(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as first, temporary_folder(tmp_path) as second:
        assert _names(tmp_path) == {first.name, second.name}
        with temporary_folder(tmp_path):
            pass
        assert _names(first) == _names(second) == {LOCK}


def test_folders_of_users_stay(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in (".clearhead-abcd1234", ".clearhead-my-notes", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "work").touch()
    (tmp_path / ".clearhead-my-notes" / LOCK).touch()  # not a name that a writer draws
    (elsewhere / LOCK).touch()
    (tmp_path / ".clearhead-linked12").symlink_to(elsewhere)
    (tmp_path / ".clearhead-file1234").touch()
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    with temporary_folder(tmp_path):
        pass
    assert {path: path.lstat().st_ino for path in tmp_path.rglob("*")} == before


def test_nothing_is_removed_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with temporary_folder(tmp_path) as first:
        with temporary_folder(tmp_path):
            assert first.exists()
        assert _names(first) == set()
    assert _names(tmp_path) == set()

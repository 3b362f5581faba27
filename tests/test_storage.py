"""Stored files: what is written is read back, and damage never passes for content."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.errors import InputError
from clearhead.storage import (
    CHECKSUMS_FILE,
    DamagedFileError,
    WriteError,
    check_checksums,
    lock_file,
    lock_folder,
    parse_json,
    read_bytes,
    read_lines,
    read_tensors,
    write_bytes,
    write_checksums,
    write_lines,
    write_tensors,
)
from tests.faults.damage import DAMAGES, damage

LINES = [{"epoch": epoch, "loss": 1 / epoch} for epoch in (1, 2, 3)]
TENSORS = {"w": torch.arange(35.0).view(5, 7), "steps": torch.tensor(3), "shared": torch.arange(70.0).view(10, 7)[::2]}
METADATA = {"run": json.dumps({"sha256": "0" * 64})}


def _write_tensors(path: Path) -> None:
    write_tensors(path, TENSORS, metadata=METADATA)


FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "lines": (lambda path: write_lines(path, LINES), read_lines),
    "tensors": (_write_tensors, read_tensors),
}


def test_values_are_read_back(tmp_path: Path) -> None:
    write_lines(tmp_path / "b", LINES)
    assert read_lines(tmp_path / "b") == LINES
    write_lines(tmp_path / "b", [])
    assert read_lines(tmp_path / "b") == []
    _write_tensors(tmp_path / "c")
    tensors, metadata = read_tensors(tmp_path / "c")
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_other_programs_read_the_files(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    _write_tensors(tmp_path / "c")
    assert torch.equal(load_file(tmp_path / "c")["w"], TENSORS["w"])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("format_", FORMATS)
def test_damage_is_an_error(tmp_path: Path, format_: str, kind: str, seed: int) -> None:
    write, read = FORMATS[format_]
    path = tmp_path / "state"
    write(path)
    damage(path, kind, seed)
    with pytest.raises(DamagedFileError, match=r"it was damaged or edited; delete it|has no checksum: it is damaged"):
        read(path)


@pytest.mark.parametrize("read", [read_lines, read_tensors])
def test_a_missing_file_is_not_a_damaged_file(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
    (tmp_path / "empty").touch()
    with pytest.raises(DamagedFileError):
        read(tmp_path / "empty")


def test_a_folder_is_compared_with_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    assert not check_checksums(tmp_path)
    write_checksums(tmp_path, ["a", "b"])
    assert check_checksums(tmp_path)
    (tmp_path / "c").write_text("other files do not matter")
    assert check_checksums(tmp_path)
    (tmp_path / "b").write_text("3")
    with pytest.raises(DamagedFileError, match=r"b does not match clearhead-checksums.jsonl"):
        check_checksums(tmp_path)
    (tmp_path / "b").unlink()
    with pytest.raises(DamagedFileError, match=r"b is missing"):
        check_checksums(tmp_path)
    write_lines(tmp_path / CHECKSUMS_FILE, [{"name": "../other", "sha256": "0"}])
    with pytest.raises(InputError, match=r"lists ../other, which is outside"):
        check_checksums(tmp_path)


@pytest.mark.parametrize(
    "entry", ["x", None, 3, {}, {"name": "a"}, {"name": 3, "sha256": "x"}, {"name": "a", "sha256": None},
              {"name": "\x1b[2J", "sha256": "x"}, {"name": "\ud800", "sha256": "x"}],
)  # fmt: skip
def test_a_list_of_checksums_that_is_none_is_refused(tmp_path: Path, entry: Any) -> None:
    (tmp_path / "a").write_bytes(b"1")
    write_lines(tmp_path / CHECKSUMS_FILE, [entry])
    with pytest.raises(DamagedFileError, match="is not a list of files and their checksums"):
        check_checksums(tmp_path)


@pytest.mark.parametrize("change", ["no offsets", "other offsets", "no metadata", "deep"])
def test_a_file_with_a_checksum_that_holds_no_tensors_is_refused(tmp_path: Path, change: str) -> None:
    """Whoever writes a file writes its checksum."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.zeros(2)})
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header: Any = json.loads(content[8:end])
    if change == "no offsets":
        del header["x"]["data_offsets"]
    elif change == "other offsets":
        header["x"]["data_offsets"] = [0, 2**40]
    elif change == "no metadata":
        header = {"sha256": header["__metadata__"]["sha256"], "x": header["x"]}
    text = json.dumps(header, separators=(",", ":"))
    if change == "deep":
        text = text.replace('"x":', '"y":' + "[" * 10**5 + "]" * 10**5 + ',"x":')
    zeros = re.sub(r'(?<="sha256":")\w{64}', "0" * 64, text).encode()
    written = len(zeros).to_bytes(8, "little") + zeros + content[end:]
    path.write_bytes(written.replace(b"0" * 64, hashlib.sha256(written).hexdigest().encode(), 1))
    with pytest.raises(InputError, match=r"a\.safetensors holds no tensors|a\.safetensors: .* nested"):
        read_tensors(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(tmp_path / "a", b"1")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"cannot write .*a: No space left on device; free space"):
        write_bytes(tmp_path / "a", b"2")
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"1"
    (tmp_path / "link").hardlink_to(tmp_path / "a")
    write_bytes(tmp_path / "a", b"2")
    assert (tmp_path / "link").read_bytes() == b"1"  # not written in place
    (tmp_path / "link").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(WriteError, match="Not a directory"):
        write_bytes(tmp_path / "a" / "b", b"")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs device files")
def test_only_regular_files_of_a_limited_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            read_bytes(path)
    with pytest.raises(InputError, match="Is a directory"):
        read_bytes(tmp_path)
    (tmp_path / "big").write_bytes(b"12345")
    assert read_bytes(tmp_path / "big", max_bytes=5) == b"12345"
    with pytest.raises(InputError, match="more than 4 bytes"):
        read_bytes(tmp_path / "big", max_bytes=4)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_refused_without_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that waits for a reader would go on, and then fail."""
    os.mkfifo(tmp_path / "pipe")
    opened: list[Any] = []
    monkeypatch.setattr(os, "open", lambda path, *_: opened.append(path))
    with pytest.raises(InputError, match="not a regular file"):
        read_bytes(tmp_path / "pipe")
    assert opened == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_that_takes_the_place_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    regular = Path(__file__).stat()
    monkeypatch.setattr(Path, "stat", lambda path: regular)
    with pytest.raises(InputError, match="not a regular file"):
        read_bytes(tmp_path / "pipe")


@pytest.mark.parametrize(("text", "reason"), [(b"{", "not valid JSON"), (b"\xff", "not valid JSON"),
                                              (b"[" * 200_000, "nested too deeply")])  # fmt: skip
def test_invalid_json_raises_an_error(text: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=f"cannot read config.json: it.*{reason}"):
        parse_json(text, Path("config.json"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_a_lock_can_be_shared_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with lock_folder(folder, shared=True):
        with lock_folder(folder, shared=True), pytest.raises(InputError), lock_folder(folder):
            pass
        with pytest.raises(InputError), lock_folder(folder):
            pass
        with lock_file(folder / "one"), lock_file(folder / "two"), pytest.raises(InputError), lock_file(folder / "one"):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_does_not_keep_the_lock_of_one_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys, time; from clearhead.storage import lock_folder\n"
        "with lock_folder(pathlib.Path(sys.argv[1])):\n"
        "    child = os.fork()\n    if not child: print(os.getpid(), flush=True)\n    time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    child = int(other.stdout.readline())
    try:
        other.kill()
        other.wait()
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_a_folder_is_locked_by_one_process(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from clearhead.storage import lock_folder\n"
        "with lock_folder(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="is in use by another run; wait until it ends"), lock_folder(tmp_path):
            pass
    finally:
        other.kill()
        other.wait()
    time.sleep(0.05)
    with lock_folder(tmp_path), pytest.raises(InputError), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass

"""Stored JSON: what is written is read, and no damage passes for content."""

import json
import os
from pathlib import Path

import pytest

from clearhead.errors import ClearheadError
from clearhead.stored_json import DamagedFileError, read_json, write_json

CONTENT = {"accuracy": 0.1 + 0.2, "counts": [1, 2, 3], "name": "möbius \u0007", "nested": {"none": None, "yes": True}}


def test_content_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "it.json"
    write_json(path, CONTENT)
    assert read_json(path) == CONTENT
    write_json(path, {**CONTENT, 3: (4, 5)})  # as JSON has them: keys are strings, tuples are lists
    assert read_json(path) == {**CONTENT, "3": [4, 5]}
    assert [file.name for file in path.parent.iterdir()] == ["it.json"]


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    write_json(path, CONTENT)
    stored = path.read_bytes()
    damaged = 0
    for position in range(len(stored)):
        for bit in range(8):
            path.write_bytes(stored[:position] + bytes([stored[position] ^ (1 << bit)]) + stored[position + 1 :])
            try:
                assert read_json(path) == CONTENT  # a space that became another one
            except DamagedFileError:
                damaged += 1
    assert damaged > 0.9 * 8 * len(stored)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no checksum"),
        ('{"accuracy": 7.2556}', "no checksum"),
        (json.dumps({"accuracy": 7.2556, "sha256": "0" * 64}), "checksum does not fit"),
        (json.dumps({"accuracy": 7.2556, "sha256": None}), "checksum does not fit"),
    ],
)
def test_files_without_the_right_checksum_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "it.json"
    path.write_text(text)
    with pytest.raises(DamagedFileError, match=reason) as error:
        read_json(path)
    assert isinstance(error.value, ClearheadError)
    assert "\n" not in str(error.value)


def test_an_edited_number_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    write_json(path, {"accuracy": 0.7256})
    path.write_text(path.read_text().replace("0.7256", "7.2556"))
    with pytest.raises(DamagedFileError, match="checksum does not fit"):
        read_json(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "it.json"
    write_json(path, CONTENT)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"other": 1})
    monkeypatch.undo()
    assert read_json(path) == CONTENT
    assert [file.name for file in tmp_path.iterdir()] == ["it.json"]


def test_numbers_that_json_cannot_hold_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "it.json", {"accuracy": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_raises_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "it.json")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "it.json")
    with pytest.raises(DamagedFileError, match="not a regular file"):
        read_json(tmp_path / "it.json")


def test_a_folder_that_cannot_be_created_raises_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClearheadError, match=r"cannot write .*; choose another folder"):
        write_json(tmp_path / "file" / "it.json", CONTENT)

"""Readers of other packages: their endings are read, own ones stay, and what they do wrong is one line."""

from pathlib import Path
from typing import Any

import pytest

from clearhead.data.media import list_files
from clearhead.data.readers import READERS, Reader, endings, find_reader, read_file
from clearhead.data.text import read_passages
from clearhead.errors import InputError


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers."""
    monkeypatch.setattr(READERS, "_registered", {})


def _fails(path: Path) -> Any:
    raise KeyError("no such part")


def test_a_reader_reads_its_endings_and_no_others(tmp_path: Path) -> None:
    READERS.register("notes", Reader(kind="text", endings=(".md",), read=lambda path: ["from the reader"]))
    for name in ("a.md", "a.MD", "a.txt", "a.other"):
        (tmp_path / name).write_text("from the file")
        expected = ["from the reader"] if name.lower().endswith(".md") else ["from the file"]
        assert read_passages(tmp_path / name) == expected
    with pytest.raises(InputError, match="no columns"):
        read_passages(tmp_path / "a.md", "text")


def test_a_reader_of_tables_gets_the_column(tmp_path: Path) -> None:
    reader = Reader(kind="text", endings=(".rows",), read=lambda path, column: [f"of {column}"], columns=True)
    READERS.register("rows", reader)
    assert read_passages(tmp_path / "a.rows", "text") == ["of text"]
    assert read_passages(tmp_path / "a.rows") == ["of None"]


def test_files_of_a_reader_are_listed_and_own_readers_stay(tmp_path: Path) -> None:
    READERS.register("scans", Reader(kind="images", endings=(".scan", ".png"), read=lambda path: "scanned"))
    for name in ("a.scan", "b.png", "c.wav"):
        (tmp_path / name).touch()
    assert [path.name for path in list_files(tmp_path, endings("images"))] == ["a.scan", "b.png"]
    assert read_file(tmp_path / "a.scan", "images") == "scanned"
    assert find_reader(tmp_path / "b.png", "images") is READERS.get("images")
    with pytest.raises(InputError, match=r"a\.scan ends in none of \.flac"):
        find_reader(tmp_path / "a.scan", "audio")


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        (_fails, r"cannot read .*a\.md: KeyError: 'no such part'"),
        (lambda path: "text", "returns a str; expected a list"),
    ],
)
def test_what_a_reader_does_wrong_is_one_line(tmp_path: Path, read: Any, cause: str) -> None:
    READERS.register("notes", Reader(kind="text", endings=(".md",), read=read))
    with pytest.raises(InputError, match=cause) as caught:
        read_passages(tmp_path / "a.md")
    assert "\n" not in str(caught.value)


def test_another_kind_is_no_reader(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses it before the registry can")
    with pytest.raises(InputError, match="not a Reader of text, images or audio"):
        READERS.register("video", Reader(kind="video", endings=(".mp4",), read=str))  # type: ignore[arg-type]

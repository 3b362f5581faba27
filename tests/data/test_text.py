"""Passages from text files."""

from pathlib import Path

import pytest

from clearhead.data.text import default_passages, read_passages, text_batches


@pytest.mark.parametrize(
    ("text", "passages"),
    [
        ("one line\nanother  line\n", ["one line", "another line"]),
        ("a first\nparagraph\n\n\na second\n", ["a first paragraph", "a second"]),
        ("\n\nonly one paragraph\nof two lines\n", ["only one paragraph", "of two lines"]),
        ("\ufeffbyte order mark\nline", ["byte order mark", "line"]),
    ],
)
def test_paragraphs_or_lines(tmp_path: Path, text: str, passages: list[str]) -> None:
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert read_passages(tmp_path / "text.txt") == passages


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "holds no text"), (b" \n\n \n", "holds no text"), (b"\xff\xfe\x00a", "not UTF-8")]
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_passages(tmp_path / "text.txt")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the text .*No such file"):
        read_passages(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"is not a dataset folder, .*; give a text file or a table"):
        read_passages(tmp_path)


def test_the_default_text_is_varied_and_long_enough() -> None:
    passages = default_passages()
    sentences = [s for passage in passages for s in passage.replace("?", ".").replace("!", ".").split(". ") if s]
    words = [len(passage.split()) for passage in passages]
    assert len(sentences) >= 64
    assert len(set(passages)) == len(passages) >= 30
    # More tokens than the 32 values of a default head, or the claim would be empty.
    assert min(words) > 45
    lengths = sorted(len(sentence.split()) for sentence in sentences)
    assert lengths[0] <= 3
    assert lengths[-1] >= 35


def test_batches_are_encoded_lazily() -> None:
    encoded: list[list[str]] = []

    def encode(passages: list[str]) -> dict[str, object]:
        encoded.append(list(passages))
        return {}

    batches = text_batches(["a", "b", "c"], encode, batch_size=2)
    assert encoded == []
    next(batches)
    assert encoded == [["a", "b"]]
    assert len(list(batches)) == 1

"""Text corpora as token ids."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearhead.errors import InputError
from clearhead_lab.data import corpus
from clearhead_lab.data.corpus import Corpus, read_corpus

TEXTS = {
    "train": " \n = A title = \n \n the cat saw the dog , and the <unk> saw the cat . \n",
    "valid": " \n the bird saw the dog . \n",
    "test": " = Another = \n a cat \n",
}
HUGGING_FACE = {"train": "train", "valid": "validation", "test": "test"}


def _words(data: Corpus, split: str) -> list[str]:
    return [data.vocabulary[i] for i in getattr(data, split).tolist()]


def _expected(text: str, known: set[str]) -> list[str]:
    """Return the tokens by a slow definition: each line's words and its end."""
    words = [word for line in text.splitlines() for word in (*line.split(), "<eos>")]
    return [word if word in known else "<unk>" for word in words]


def _write_tokens(folder: Path, pattern: str = "wiki.{}.tokens") -> Path:
    for split, text in TEXTS.items():
        (folder / pattern.format(split)).write_text(text, encoding="utf-8", newline="\n")
    return folder


def _write_parquet(path: Path, rows: list[dict[str, str | None]]) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow writes the Parquet files")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def _one_table(folder: Path) -> Path:
    """Write the splits so that joining the rows with line ends restores the files, as an empty last row does."""
    rows = [{"split": split, "text": line} for split, text in TEXTS.items() for line in text.split("\n")]
    return _write_parquet(folder / "wikitext.parquet", rows)


def _hugging_face(folder: Path) -> Path:
    """Write one file per split and two for training. Lines keep their ends; lines without words are empty rows."""
    for split, name in HUGGING_FACE.items():
        lines = [{"text": line if line.strip() else ""} for line in TEXTS[split].splitlines(keepends=True)]
        for part, rows in enumerate([lines[:2], lines[2:]] if split == "train" else [lines]):
            _write_parquet(folder / f"{name}-0000{part}-of-00002.parquet", rows)
    return folder


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "tokens": _write_tokens,
    "txt": lambda folder: _write_tokens(folder, "{}.txt"),
    "one table": _one_table,
    "Hugging Face": _hugging_face,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_tokens_of_the_definition(tmp_path: Path, layout: str) -> None:
    data = read_corpus(LAYOUTS[layout](tmp_path))
    known = set(TEXTS["train"].split()) | {"<eos>"}
    assert set(data.vocabulary) == known
    for split, text in TEXTS.items():
        assert _words(data, split) == _expected(text, known), split
        assert getattr(data, split).dtype == torch.int64


def test_an_empty_last_line_of_a_hugging_face_file_is_a_line(tmp_path: Path) -> None:
    for name in HUGGING_FACE.values():
        _write_parquet(tmp_path / f"{name}-00000-of-00001.parquet", [{"text": " a b \n"}, {"text": ""}])
    assert _words(read_corpus(tmp_path), "valid") == ["a", "b", "<eos>", "<eos>"]


def test_frequent_words_come_first_and_the_rest_in_order_of_appearance(tmp_path: Path) -> None:
    data = read_corpus(_write_tokens(tmp_path))
    counts = torch.bincount(data.train, minlength=len(data.vocabulary))
    assert data.vocabulary[:2] == ("<eos>", "the")
    assert torch.equal(counts, counts.sort(descending=True).values)
    assert data.vocabulary[2:8] == ("=", "cat", "saw", "A", "title", "dog")


def test_a_training_text_without_unknown_words_gets_the_word_for_them(tmp_path: Path) -> None:
    for split in TEXTS:
        (tmp_path / f"{split}.txt").write_text("a b\n" if split == "train" else "b c\n")
    data = read_corpus(tmp_path)
    assert data.vocabulary == ("a", "b", "<eos>", "<unk>")
    assert data.valid.tolist() == [1, 3, 2]


def test_long_files_are_split_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_corpus(_write_tokens(tmp_path))
    monkeypatch.setattr(corpus, "CHARACTERS", 3)
    assert read_corpus(tmp_path).fingerprint() == whole.fingerprint()


def test_the_fingerprint_depends_on_ids_and_words(tmp_path: Path) -> None:
    first = read_corpus(_write_tokens(tmp_path)).fingerprint()
    (tmp_path / "wiki.test.tokens").write_text(" = Another = \n the cat \n", newline="\n")
    second = read_corpus(tmp_path).fingerprint()
    (tmp_path / "wiki.train.tokens").write_text(TEXTS["train"].replace("dog", "wolf"), newline="\n")
    (tmp_path / "wiki.valid.tokens").write_text(TEXTS["valid"].replace("dog", "wolf"), newline="\n")
    third = read_corpus(tmp_path).fingerprint()
    assert len({first, second, third}) == 3


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-20])
    return path


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nowhere": (lambda f: f / "none", r"none does not exist; expected a folder with wiki\.train\.tokens"),
    "empty": (lambda f: f, "has no file of the split train; expected a folder"),
    "a split is missing": (
        lambda f: (_write_tokens(f) / "wiki.test.tokens").unlink() or f,
        "no file of the split test",
    ),
    "half copied": (lambda f: _cut(_write_tokens(f) / "wiki.train.tokens").parent, "is half copied; copy it again"),
    "no words": (
        lambda f: (_write_tokens(f) / "wiki.valid.tokens").write_text(" \n \n") and f,
        "has no words in the split valid",
    ),
    "not text": (
        lambda f: (_write_tokens(f) / "wiki.valid.tokens").write_bytes(b"\xff\xfe\n") and f,
        r"wiki\.valid\.tokens is not UTF-8 text",
    ),
    "half a table": (lambda f: _cut(_one_table(f)), r"wikitext\.parquet is damaged or half copied"),
    "another column": (lambda f: _write_parquet(f / "a.parquet", [{"a": "b"}]), r"has no column 'split'; it has 'a'"),
    "another split": (
        lambda f: _write_parquet(f / "a.parquet", [{"split": "train", "text": "a"}]),
        "has no words in the split valid",
    ),
    "a missing text": (
        lambda f: _write_parquet(f / "a.parquet", [{"split": "train", "text": "a"}, {"split": "train", "text": None}]),
        "has a row in column 'text' that is not text",
    ),
    "another file": (
        lambda f: (f / "a.txt").write_text("a") and f / "a.txt",
        r"a\.txt is not a Parquet file; expected",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_corpora_give_one_line(tmp_path: Path, case: str) -> None:
    spoil, reason = BAD[case]
    path = spoil(tmp_path)
    with pytest.raises(InputError, match=reason) as error:
        read_corpus(path)
    assert "\n" not in str(error.value)

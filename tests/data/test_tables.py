"""A column of text from CSV, JSON lines, Parquet and dataset folders."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clearhead.data.text import read_passages
from clearhead.errors import InputError

pytest.importorskip("pyarrow")
import pyarrow.ipc
import pyarrow.parquet

ROWS = [{"id": 1, "review": "a first  text,\nin two lines"}, {"id": 2, "review": ""}, {"id": 3, "review": "ünd noch"}]
TEXTS = ["a first text, in two lines", "ünd noch"]


def _csv(path: Path) -> Path:
    path.write_text('id,review\n1,"a first  text,\nin two lines"\n2,\n3,ünd noch\n', encoding="utf-8-sig")
    return path


def _tsv(path: Path) -> Path:
    path.write_text('id\treview\n1\t"a first  text,\nin two lines"\n2\t\n3\tünd noch\n', encoding="utf-8")
    return path


def _jsonl(path: Path) -> Path:
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    return path


def _parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


def _dataset(path: Path) -> Path:
    """Write what datasets.Dataset.save_to_disk writes: Arrow streams and state.json."""
    path.mkdir()
    files = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, rows in zip(files, (ROWS[:1], ROWS[1:]), strict=True):
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.ipc.new_stream(path / name, table.schema) as stream:
            stream.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    return path


MAKERS = {"t.csv": _csv, "t.tsv": _tsv, "t.jsonl": _jsonl, "t.parquet": _parquet, "dataset": _dataset}


@pytest.mark.parametrize(("name", "make"), MAKERS.items(), ids=list(MAKERS))
class TestEveryTable:
    def test_rows_of_the_column_are_passages(self, tmp_path: Path, name: str, make: Callable[[Path], Path]) -> None:
        assert read_passages(make(tmp_path / name), "review") == TEXTS

    def test_without_a_column_the_error_lists_the_columns(
        self, tmp_path: Path, name: str, make: Callable[[Path], Path]
    ) -> None:
        with pytest.raises(InputError, match="is a table; choose a column with --column: 'id', 'review'"):
            read_passages(make(tmp_path / name))
        with pytest.raises(InputError, match="has no column 'magic'; it has 'id', 'review'"):
            read_passages(make(tmp_path / f"again-{name}"), "magic")

    def test_a_damaged_file_is_one_line(self, tmp_path: Path, name: str, make: Callable[[Path], Path]) -> None:
        path = make(tmp_path / name)
        file = next(path.glob("*.arrow")) if path.is_dir() else path
        file.write_bytes(b"\xff\xfe\x00{" + file.read_bytes()[7:40])
        with pytest.raises(InputError) as caught:
            read_passages(path, "review")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["t.parquet", "dataset"])
@pytest.mark.parametrize("limit", ["MAX_ROWS", "MAX_INPUT_BYTES"])
def test_a_table_that_expands_beyond_the_limits_is_refused(
    tmp_path: Path, name: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MAKERS[name](tmp_path / name)
    assert len(read_passages(path, "review")) == len(TEXTS)
    monkeypatch.setattr(f"clearhead.data.parquet.{limit}", 1)
    with pytest.raises(InputError, match="expands to more than"):
        read_passages(path, "review")


def test_a_small_parquet_file_of_many_equal_texts_is_refused_early(tmp_path: Path) -> None:
    indices = pyarrow.array(np.zeros(11_000_000, dtype=np.int32))
    column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["x" * 1000]))
    pyarrow.parquet.write_table(pyarrow.table({"review": column}), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 2 * 10**6  # and 11 GB in memory
    with pytest.raises(InputError, match="expands to more than 10,000,000 rows"):
        read_passages(tmp_path / "t.parquet", "review")


def test_a_dataset_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    path = _dataset(tmp_path / "dataset")
    (tmp_path / "other").mkdir()
    for arrow in list(path.glob("*.arrow")):
        arrow.rename(tmp_path / "other" / arrow.name)
    for named in (f"../other/{arrow.name}", str(tmp_path / "other" / arrow.name)):
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": named}]}))
        with pytest.raises(InputError):
            read_passages(path, "review")


def test_numbers_are_not_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"column 'id' of .* has a int in row 1, not text; choose another"):
        read_passages(_jsonl(tmp_path / "t.jsonl"), "id")


def test_a_long_field_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text\n" + "word " * 40_000)
    [passage] = read_passages(tmp_path / "t.csv", "text")
    assert len(passage) == 5 * 40_000 - 1


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("one\ntwo")
    with pytest.raises(InputError, match="plain text, which has no columns; leave --column out"):
        read_passages(tmp_path / "prose.txt", "text")
    with pytest.raises(InputError, match=r"is not a dataset folder, as Dataset\.save_to_disk writes it"):
        read_passages(tmp_path, "text")
    (tmp_path / "rows.jsonl").write_text("[1, 2]")
    with pytest.raises(InputError, match="must have one JSON object per line"):
        read_passages(tmp_path / "rows.jsonl", "text")
    _dataset(tmp_path / "train")
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(InputError, match="has several splits; give the folder of one: 'train'"):
        read_passages(tmp_path, "review")
    (tmp_path / "train" / "state.json").write_text('{"_data_files": [{"filename": "../outside.arrow"}]}')
    (tmp_path / "outside.arrow").write_bytes(next((tmp_path / "train").glob("*.arrow")).read_bytes())
    with pytest.raises(InputError, match=r"cannot read the table .*train"):
        read_passages(tmp_path / "train", "review")

"""The audit record in Python."""

import sys
from pathlib import Path

import pytest

from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.errors import InputError
from clearhead.report.json_file import audit_as_json
from tests.audit.test_run import Projecting, _batches
from tests.interfaces.zoo import with_large_weights


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    return audit(with_large_weights(Projecting()).double(), _batches(1), theories=["kernel-pca", "symmetry"])


def test_findings_are_indexed_by_theory_layer_head_and_statistic(record: AuditRecord) -> None:
    head = record["kernel-pca"].layer(1).head(2)
    assert {(f.claim.theory, f.layer, f.head) for f in head} == {("kernel PCA", 1, 2)}
    [captured] = head["captured variance"]
    assert captured in record.findings
    assert len(record["symmetry"]) == 6
    assert str(record["symmetry"].layer(0).head(1)).startswith("symmetry, permutation error, layer 0, head 1: ")


def test_a_missing_index_raises_an_error_with_the_possible_ones(record: AuditRecord) -> None:
    for read, message in (
        (lambda: record["magic"], "'magic'.*kernel-pca, symmetry"),
        (lambda: record["symmetry"].layer(7), "layer 7.* 0, 1"),
        (lambda: record["symmetry"].head(9), "head 9.* 0, 1, 2"),
        (lambda: record["symmetry"]["x"], "statistic 'x'.*permutation error"),
    ):
        with pytest.raises(InputError, match=message):
            read()


def test_a_record_converts_to_plain_values(record: AuditRecord) -> None:
    assert record.to_dict() == audit_as_json(record)


def test_a_record_converts_to_a_table(record: AuditRecord) -> None:
    pandas = pytest.importorskip("pandas")
    table = record.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert len(table) == len(record.findings)
    assert list(table["value"].dropna()) == [f.value for f in record.findings if f.value == f.value]
    assert set(table["verdict"]) == {str(f.verdict) for f in record.findings}


def test_without_pandas_the_error_says_what_to_install(record: AuditRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pandas.*clearhead\[tables\]"):
        record.to_pandas()


def test_reprs_are_one_short_line(record: AuditRecord) -> None:
    [finding] = record["symmetry"].layer(0).head(1)
    assert repr(record).startswith("AuditRecord(model=")
    assert "theories='kernel-pca, symmetry'" in repr(record)
    assert repr(finding).startswith("Finding('symmetry', 'permutation error', layer=0, head=1, value=")
    assert repr(record.layer(1)) == f"FindingTable(findings={len(record.layer(1))}, theories='kernel PCA, symmetry')"
    for shown in (repr(record), repr(finding), repr(record.layer(1))):
        assert len(shown) < 250
        assert "\n" not in shown


def test_a_layer_is_found_for_all_theories(record: AuditRecord) -> None:
    found = record.layer(1).head(2)
    assert {(f.claim.theory, f.layer, f.head) for f in found} == {("kernel PCA", 1, 2), ("symmetry", 1, 2)}


def test_a_record_is_written_as_parquet(record: AuditRecord, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    record.to_parquet(tmp_path / "findings.parquet")
    read, table = pandas.read_parquet(tmp_path / "findings.parquet"), record.to_pandas()
    assert list(read.columns) == list(table.columns)
    for column in table.columns:
        same = (read[column] == table[column]) | (read[column].isna() & table[column].isna())
        assert same.all(), column
    assert read["head"].dtype == "int64"


def test_without_pyarrow_the_error_says_what_to_install(record: AuditRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pyarrow.*clearhead\[tables\]"):
        record.to_parquet("unused.parquet")

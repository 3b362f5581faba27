"""The short output of an audit: at most forty lines, verdicts first and last, nothing that controls the terminal."""

import dataclasses
import io

import pytest
from rich.console import Console

from clearhead.audit.judging import summarise
from clearhead.audit.record import AuditRecord
from clearhead.calibration.results import shipped_calibration
from clearhead.report import print_summary
from clearhead.report.terminal import MOST_LINES, PATHS
from clearhead.report.wording import headline, short
from clearhead.theories.catalogue import TheorySource
from tests.report.synthetic import KERNEL_PCA, MAX_MARGIN, record_of


def printed(record: AuditRecord, width: int) -> str:
    stream = io.StringIO()
    print_summary(record, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.fixture(scope="module")
def five() -> AuditRecord:
    """An audit of five theories with long names, and three notes."""
    theories = [dataclasses.replace(KERNEL_PCA, theory=f"theory number {i} with a name") for i in range(5)]
    record = record_of([4, 4], *theories)
    return dataclasses.replace(record, notes=tuple(f"a note of some length about theory {i}" for i in range(3)))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_five_theories_fit_forty_lines_and_the_width(five: AuditRecord, width: int) -> None:
    lines = printed(five, width).splitlines()
    assert len(lines) + PATHS <= MOST_LINES
    assert max(map(len, lines)) <= width
    assert "1 more; --details prints them" in printed(five, width)


def test_verdicts_come_first_and_last(two_claims: AuditRecord) -> None:
    lines = printed(two_claims, 200).splitlines()
    words = [line.removeprefix("verdict").strip() for line in lines if line.startswith("verdict")]
    first = next(i for i, line in enumerate(lines) if line.startswith("verdict"))
    assert first == 2, "after what was audited"
    for text, summary in zip(words, summarise(two_claims.findings), strict=True):
        assert text.startswith(headline(summary))
    table = lines[-2:]
    assert [line.split("  ")[0] for line in table] == [KERNEL_PCA.theory, MAX_MARGIN.theory]


def test_the_table_has_the_numbers_of_the_control_that_decides(record: AuditRecord) -> None:
    (summary,) = summarise(record.findings)
    row = printed(record, 160).splitlines()[-1]
    assert f" {short(summary.median)} [" in row
    assert f" {short(summary.controls[summary.deciding])} [" in row
    assert headline(summary) in printed(record, 160)


def test_the_calibration_in_the_package_is_cited() -> None:
    """One sentence for all theories, with the counts of the file; nothing for a theory that was not calibrated."""
    shipped = shipped_calibration()
    assert shipped is not None
    keys = ("kernel-pca", "max-margin", "of another package")
    sources = tuple(TheorySource(key=key, title=f"title of {key}", package="clearhead", version="0") for key in keys)
    text = " ".join(printed(dataclasses.replace(record_of([2], KERNEL_PCA), theories=sources), 300).split())
    exact, half = (shipped.detected("kernel-pca", strength) for strength in (1.0, 0.5))
    random = shipped.random_counts("kernel-pca")
    assert f"title of kernel-pca {exact}, {half}, {random.called_models}/{random.models}; title of max-margin" in text
    assert "another package" not in text


def test_names_cannot_control_the_terminal() -> None:
    hostile = "bert\x1b[2J\x07\u202e\x00"
    text = printed(dataclasses.replace(record_of([2], KERNEL_PCA), model=hostile, data=hostile, notes=(hostile,)), 80)
    assert not set(text) & set("\x1b\x07\u202e\x00")

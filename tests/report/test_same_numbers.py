"""The page, the terminal and findings.json of one audit give the same numbers for the same thing."""

import io
import json
import re

import pytest
from rich.console import Console

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.report import print_audit, print_summary, render_html
from clearhead.report.json_file import audit_as_text
from clearhead.report.wording import MARKS, number, short
from tests.report.synthetic import KERNEL_PCA, MAX_MARGIN, OVERLAP, record_of


@pytest.fixture(scope="module")
def made() -> AuditRecord:
    return record_of([5, 8, 3], KERNEL_PCA, OVERLAP, MAX_MARGIN)


@pytest.fixture(scope="module")
def page(made: AuditRecord) -> str:
    return render_html(made)


@pytest.fixture(scope="module")
def stored(made: AuditRecord) -> dict:
    return json.loads(audit_as_text(made))


def printed(made: AuditRecord, show: object) -> list[str]:
    stream = io.StringIO()
    show(made, Console(file=stream, width=200))  # type: ignore[operator]
    return stream.getvalue().splitlines()


def test_every_head_has_the_numbers_of_the_file_on_the_page(page: str, stored: dict) -> None:
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', page, re.S).group(1))
    rows = iter(stored["findings"])
    for claim in facts["claims"]:
        columns = {name: column.split(" ") for name, column in claim["columns"].items()}
        controls = {facts["controls"][c["control"]]: c for c in claim["controls"]}
        for i, value in enumerate(columns["value"]):
            finding = next(rows)
            assert finding["statistic"] == claim["statistic"]
            assert value == number(_known(finding["value"]))
            assert columns["adjusted"][i] == number(_known(finding["p_value_adjusted"]))
            assert columns["agreement"][i] == number(_known(finding["agreement"]))
            assert facts["verdicts"][int(columns["verdict"][i])]["words"] == finding["verdict"]
            deciding = finding["deciding_control"]
            assert facts["controls"][int(columns["deciding"][i])] == deciding
            for name in ("value", "p"):
                stored_name = {"value": "value", "p": "p_value"}[name]
                shown = controls[deciding][name].split(" ")[i]
                assert shown == number(_known(finding["controls"][deciding][stored_name]))


def test_the_control_that_is_shown_is_the_one_of_the_p_value(made: AuditRecord) -> None:
    """A head outside of the range of its control must not stand next to a large p-value of another control."""
    tested = [f for f in made.findings if f.verdict in (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED)]
    assert tested
    assert all(f.deciding_control.p_value == f.p_value for f in tested)
    outside = [f for f in made.findings if f.deciding_control.p_value > 0.2]
    assert outside
    for f in outside:
        control = f.deciding_control.range
        assert f.interval.low <= control.high
        assert f.interval.high >= control.low


def test_summaries_agree_in_page_terminal_and_file(made: AuditRecord, page: str, stored: dict) -> None:
    table = {line.split("  ")[0]: line for line in printed(made, print_summary)[-2:]}
    words = " ".join(" ".join(printed(made, print_summary)).split())
    for summary in stored["summaries"]:
        if summary["statistic"] == OVERLAP.statistic:
            continue
        control = summary["controls"][summary["deciding_control"]]
        row = table[summary["theory"]]
        assert f" {short(summary['median'])} [" in row
        assert f" {short(control)} [" in row
        assert row.rstrip().endswith(f" {short(summary['predicted'])}")
        sentence = summary["evidence"].split(" Without evidence")[0]
        assert sentence in words
        assert sentence in page
        assert summary["headline"] in words
        assert summary["headline"] in page


def test_the_detailed_output_has_the_agreement_of_the_file(made: AuditRecord, stored: dict) -> None:
    lines = printed(made, print_audit)
    start = lines.index("kernel PCA, captured variance")
    rows = [line.split() for line in lines[start + 2 : start + 5]]
    cells = {(f["layer"], f["head"]): f for f in stored["findings"] if f["statistic"] == KERNEL_PCA.statistic}
    for row in rows:
        layer = int(row[0])
        for head in range(sum(key[0] == layer for key in cells)):
            finding = cells[layer, head]
            mark = MARKS[Verdict(finding["verdict"])]
            if finding["verdict"] != "not applicable":
                assert float(row[head + 1].rstrip("*+~!?=")) == pytest.approx(finding["agreement"], abs=0.0051)
                assert row[head + 1].endswith(mark)


def _known(value: float | None) -> float:
    return float("nan") if value is None else value

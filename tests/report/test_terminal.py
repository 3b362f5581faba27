import dataclasses
import io
import re

import pytest
from rich.console import Console

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import judge, summarise
from clearhead.audit.record import AuditRecord
from clearhead.report import print_audit, render_html
from clearhead.report.wording import (
    agreement,
    amount_of_memory,
    closest_control,
    control_draws,
    duration,
    number,
    short,
)
from clearhead.theories.reason import Reason, ReasonKind
from tests.report.synthetic import DISPUTE, KERNEL_PCA, LOSS, NAMES, OVERLAP, record_of

WIDTHS = [50, 80, 120, 200]


def printed(show, width, *, colour=False):
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        legacy_windows=False,
    )
    show(console)
    return stream.getvalue()


def heads_in(text, title):
    """The head table under a title, read back: {(layer, head): cell}."""
    lines = text.split(f"\n{title}\n")[1].splitlines()
    result, starts = {}, []
    for line in lines:
        if line.startswith("agreement:"):
            return result
        if line.startswith("layer"):
            starts = [(int(m.group()), m.end()) for m in re.finditer(r"\d+", line)]
        else:
            layer, step = int(line[:5]), (starts[1][1] - starts[0][1] if len(starts) > 1 else 7)
            for head, end in starts:
                cell = line[max(end - step + 2, 5) : end + 1].strip()
                if cell:
                    result[layer, head] = cell
    raise AssertionError("the table has no end")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(record, two_claims, disputed, width):
    for show in (
        lambda c: print_audit(record, c),
        lambda c: print_audit(two_claims, c),
        lambda c: print_audit(disputed, c),
        lambda c: print_audit(record_of([64] * 3, KERNEL_PCA), c),
    ):
        assert max(map(len, printed(show, width).splitlines())) <= width


@pytest.mark.parametrize("width", [20, *WIDTHS])
def test_long_names_do_not_widen_a_line(width):
    long = "encoder.layers." * 20
    claim = dataclasses.replace(KERNEL_PCA, theory=long + "theory")
    made = record_of([12] * 2, claim, model=long, name=long + "{}")
    text = printed(lambda c: print_audit(made, c), width)
    assert max(map(len, text.splitlines())) <= width
    assert "".join(text.split()).count(long + "theory") >= 3, "in the table, over the head table, with its time"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [[12] * 6, [3, 13, 5, 11, 7], [64, 2, 61]])
def test_every_head_is_printed_at_its_layer_and_number(width, heads):
    record = record_of(heads, KERNEL_PCA)
    cells = heads_in(printed(lambda c: print_audit(record, c), width), "kernel PCA, captured variance")
    assert len(cells) == len(record.findings) == sum(heads)
    for f in record.findings:
        expected = "-" if f.verdict is Verdict.NOT_APPLICABLE else agreement(f.agreement)
        assert cells[f.layer, f.head].rstrip("*+~?!") == expected


def test_verdicts_are_marked_without_colour(record):
    cells = heads_in(printed(lambda c: print_audit(record, c), 120), "kernel PCA, captured variance")
    for f in record.findings:
        mark = {
            Verdict.NO_EVIDENCE: "~",
            Verdict.SUPPORTED: "*",
            Verdict.PARTLY_SUPPORTED: "+",
            Verdict.UNDECIDED: "?",
            Verdict.CONTRADICTED: "!",
        }.get(f.verdict, "")
        assert cells[f.layer, f.head].endswith(mark)
        assert bool(mark) == (cells[f.layer, f.head][-1] in "~*+?!")


def test_heads_without_evidence_are_dim_and_the_rest_are_coloured_by_value(record):
    text = printed(lambda c: print_audit(record, c), 120, colour=True)
    contradicted = next(f for f in record.findings if f.verdict is Verdict.CONTRADICTED)
    without_evidence = next(f for f in record.findings if f.verdict is Verdict.NO_EVIDENCE)
    cells = re.findall(r"\x1b\[([\d;]+)m *([-.\d]+)([~*+?! ])\x1b", text)
    backgrounds = {text: style for style, text, mark in cells if mark in "*+!" and "48;2" in style}
    assert {style for style, _, mark in cells if mark == "~"} == {"2"}
    assert agreement(contradicted.agreement) in backgrounds
    assert agreement(without_evidence.agreement) in {text for _, text, mark in cells if mark == "~"}
    assert len(set(backgrounds.values())) == len(backgrounds)


def test_all_facts_are_printed(record):
    text = printed(lambda c: print_audit(record, c), 200)
    for fact in (
        "6 layers x 12 heads captured through transformers",
        "max |output - original| 0;",
        "recompute error 2e-7",
        "error 3e-7 within tolerance 1e-5",
        "uniform attention (control): change .83",
        "random values, 999 draws; values of other heads, 5 draws; seed 17",
        "52 / 70",
        "Kernel PCA is partly supported in 43 of 70 heads judged; ",
        "2 of 72 heads for kernel PCA (captured variance): keys are all equal",
        "check 1.2 s, forward and capture 9.4 s, kernel PCA 31 s",
        "peak 1.9 GB",
        NAMES.format(5),
    ):
        assert fact in text


def test_narrow_terminals_lose_the_lesser_columns_first(record):
    headers = {
        w: next(x for x in printed(lambda c: print_audit(record, c), w).splitlines() if x.startswith("theory "))
        for w in WIDTHS
    }
    assert "statistic" in headers[120]
    assert "statistic" not in headers[80]
    assert "predicted" in headers[80]
    assert "predicted" not in headers[50]
    assert "CI" not in headers[50]
    assert "median" in headers[50]
    assert "control" in headers[50]


def test_the_table_has_median_control_and_prediction_of_each_claim(record):
    (summary,) = summarise(record.findings)
    lines = printed(lambda c: print_audit(record, c), 120).splitlines()
    (row,) = [line for line in lines if line.startswith("kernel PCA  captured variance ")]
    median = f"{short(summary.median)} [{short(summary.interval.low)}, {short(summary.interval.high)}]"
    assert re.split(r"\s{2,}", row)[2:] == [median, ".32 [.31, .33]", "1", "52 / 70"]


def test_a_failed_check_and_missing_layers_are_shown(record):
    fidelity = dataclasses.replace(record.fidelity, swap_error=0.2, unseen=("decoder.odd",))
    text = printed(lambda c: print_audit(dataclasses.replace(record, fidelity=fidelity), c), 120)
    assert "EXCEEDS" in text
    assert "attention modules not captured (1): decoder.odd" in text


def test_names_cannot_control_the_terminal():
    record = record_of([2], KERNEL_PCA, model="[red]x[/red]\x1b[31m\x07\nnext", name="[bold]{}\x1b]0;owned\x07")
    text = printed(lambda c: print_audit(record, c), 200)
    assert "[red]x[/red]" in text
    assert "[bold]0" in text
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("claim", [KERNEL_PCA, OVERLAP, dataclasses.replace(LOSS, predicted=0.8)])
def test_texts_of_theories_cannot_control_the_terminal(claim):
    hostile = {name: f"{getattr(claim, name)}\x1b[31m\x07" for name in ("theory", "statistic", "statement", "note")}
    record = record_of([2], KERNEL_PCA, dataclasses.replace(claim, **hostile))
    findings = tuple(
        dataclasses.replace(f, controls=tuple(dataclasses.replace(c, name=f"{c.name}\x1b[2J") for c in f.controls))
        for f in record.findings
    )
    text = printed(lambda c: print_audit(dataclasses.replace(record, findings=findings), c), 200)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("?[31m?") > 2


def test_an_audit_without_findings_prints(record):
    text = printed(lambda c: print_audit(dataclasses.replace(record, findings=()), c), 80)
    assert "fidelity" in text


def test_a_claim_that_is_true_by_construction_is_marked(record):
    made = [dataclasses.replace(f, verdict=Verdict.TRUE_BY_CONSTRUCTION) for f in record.findings[:3]]
    mixed = tuple(judge([*made, record.findings[3]]))
    text = printed(lambda c: print_audit(dataclasses.replace(record, findings=mixed), c), 120)
    assert "= true by construction" in text


def rows_under(text, title):
    """A block's header and rows, split at two spaces or more."""
    block = text.split(f"\n{title}")[1].split("\n\n")[0]
    header, *rows = [re.split(r"\s{2,}", line.strip()) for line in block[block.index("statistic ") :].splitlines()]
    return [dict(zip(header, row, strict=False)) for row in rows]


@pytest.mark.parametrize("width", WIDTHS)
def test_other_claims_have_a_row_each_and_no_map(disputed, width):
    text = printed(lambda c: print_audit(disputed, c), width)
    (overlap,) = rows_under(text, "other claims of kernel PCA")
    (summary,) = [s for s in summarise(disputed.findings) if s.claim == OVERLAP]
    assert (overlap["statistic"], overlap["median"]) == ("subspace overlap", short(summary.median))
    assert overlap["control"] == short(summary.controls[closest_control(summary)])
    loss, eigenvalue = rows_under(text, "as published on kernel PCA")
    assert "(controls: random values, 999 draws)" in " ".join(text.split())
    assert (loss["statistic"], loss["random values"]) == ("projection loss", ".30")
    assert eigenvalue["statistic"] == "max eigenvalue"
    if width >= 80:
        assert (overlap["predicted"], loss["predicted"], eigenvalue["predicted"]) == ("1", ".80", "-")
    if width >= 120:
        assert overlap["verdict"] == summary.verdict
    assert "kernel PCA, subspace overlap" not in text
    assert "kernel PCA, captured variance" in text


def test_blocks_are_printed_only_where_there_are_other_claims(record):
    text = printed(lambda c: print_audit(record, c), 120)
    assert "other claims" not in text
    assert "as published" not in text
    assert "dispute" not in text


def test_a_dispute_is_one_paragraph(disputed):
    words = " ".join(printed(lambda c: print_audit(disputed, c), 80).split())
    assert (
        f"dispute {DISPUTE.question} On this model: Kernel PCA is partly supported in 15 of 25 heads judged;" in words
    )


def test_skipped_heads_have_one_line_for_claims_that_skip_the_same(disputed):
    text = printed(lambda c: print_audit(disputed, c), 250)
    assert text.count("skipped") == 2
    assert (
        "1 of 26 heads for kernel PCA (captured variance; subspace overlap; projection loss; max eigenvalue): keys"
        in text
    )
    none = tuple(f for f in disputed.findings if f.verdict is not Verdict.NOT_APPLICABLE)
    assert "skipped    no heads\n" in printed(
        lambda c: print_audit(dataclasses.replace(disputed, findings=none), c), 80
    )
    gone = tuple(
        dataclasses.replace(f, verdict=Verdict.NOT_APPLICABLE, reasons=(Reason(ReasonKind.UNDEFINED, "no axes"),))
        if f.claim in (OVERLAP, LOSS) and f.layer == 0
        else f
        for f in disputed.findings
    )
    text = printed(lambda c: print_audit(dataclasses.replace(disputed, findings=gone), c), 200)
    assert text.count("skipped") == 3
    expected = "6 of 26 heads for kernel PCA (subspace overlap; projection loss): no axes (5), keys are all equal (1)"
    assert expected in text


def test_a_control_with_unequal_draws_shows_the_range(record):
    first, *rest = record.findings
    fewer = dataclasses.replace(first, controls=(first.controls[0], dataclasses.replace(first.controls[1], draws=1)))
    assert control_draws([fewer, *rest]) == ["random values, 999 draws", "values of other heads, 1 to 5 draws"]
    assert control_draws([fewer]) == ["random values, 999 draws", "values of other heads, 1 draw"]
    assert control_draws([]) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.314, ".31"), (-0.286, "-.29"), (1.0, "1.00"), (-0.001, ".00"), (12.34, "12.3"), (123.4, "123"), (2.5e6, "2e6")],
)
def test_agreement_in_figures(value, text):
    assert agreement(value) == text


def test_numbers_in_figures():
    assert [number(x) for x in (0.0, 1.0, 0.3, 2.14e-7, 1e-5, float("nan"), float("-inf"))] == [
        *("0", "1", "0.300", "2.1e-7", "1e-5", "-", "-inf")
    ]
    assert [short(x) for x in (0.008, -0.12, 2e-7, 31.4)] == [".0080", "-.12", "2e-7", "31"]
    assert [duration(x) for x in (0.42, 74.2, 725.0)] == ["0.42 s", "74 s", "12 min 5 s"]
    assert [amount_of_memory(x) for x in (812_000_000, 1_940_000_000, None)] == ["812 MB", "1.9 GB", "unknown"]


def test_a_claim_that_is_true_by_construction_needs_no_table(record: AuditRecord) -> None:
    held = tuple(dataclasses.replace(finding, verdict=Verdict.TRUE_BY_CONSTRUCTION) for finding in record.findings)
    buffer = io.StringIO()
    print_audit(dataclasses.replace(record, findings=held), Console(file=buffer, width=100))
    assert f"true by construction in all {len(held)} heads" in buffer.getvalue()
    assert "agreement: 0 is the closest control" not in buffer.getvalue()
    assert f"0 / {len(held)}" not in buffer.getvalue()
    assert "nothing to judge" in render_html(dataclasses.replace(record, findings=held))
    assert "nothing to judge" not in render_html(record)
    one_free = (dataclasses.replace(held[0], verdict=Verdict.PARTLY_SUPPORTED), *held[1:])
    print_audit(dataclasses.replace(record, findings=one_free), Console(file=buffer, width=100))
    assert "agreement: 0 is the closest control" in buffer.getvalue()

"""A comparison in words, in a terminal, as JSON, on a page and in a notebook."""

import dataclasses
import html
import io
import json
import math
import re
import sys

import pytest
from rich.console import Console

from clearhead.audit.comparison import Comparison, Difference, Outcome
from clearhead.audit.findings import Verdict
from clearhead.audit.samples import ClaimSummary
from clearhead.errors import InputError
from clearhead.numerics.moments import Interval
from clearhead.report.comparison import comparison_as_json, comparison_headline, evidence_lines, print_comparison
from clearhead.report.comparison_page import render_comparison
from clearhead.theories.theory import Role, Unit

OWN = ClaimSummary(
    theory="kernel PCA", statistic="captured variance", role=Role.PRIMARY, unit=Unit.HEAD, percent=True, shared=False
)
STREAM = dataclasses.replace(OWN, theory="coding rate", statistic="rate change", shared=True)
HEADS, LAYERS = 3, 4


def difference(claim: ClaimSummary, layer: int, head: int, outcome: Outcome) -> Difference:
    known = outcome is not Outcome.NOT_MEASURED
    step = 0.125 * (head + 1) if outcome in (Outcome.CHANGED, Outcome.NO_EVIDENCE) else 0.0 if known else math.nan
    return Difference(
        claim=claim, layer=layer, name=f"block.{layer}", head=head, a=0.25, b=0.25 + step, difference=step,
        interval=Interval(step - 0.01, step + 0.01), p_value=0.001, adjusted_p_value=0.002, inputs=7, outcome=outcome,
    )  # fmt: skip


def comparison_of(outcomes: dict[tuple[ClaimSummary, int, int], Outcome], **fields: object) -> Comparison:
    differences = tuple(
        difference(claim, layer, head, outcomes.get((claim, layer, head), Outcome.IDENTICAL))
        for claim in (OWN, STREAM)
        for layer in range(LAYERS)
        for head in range(HEADS)
    )
    return Comparison(a="before", b="after", data="texts", inputs=7, differences=differences, **fields)


@pytest.fixture
def changed() -> Comparison:
    return comparison_of(
        {
            (OWN, 2, 1): Outcome.CHANGED,
            (OWN, 3, 0): Outcome.CHANGED,
            (OWN, 3, 1): Outcome.NO_EVIDENCE,
            (OWN, 3, 2): Outcome.ROUNDING,
            (STREAM, 2, 0): Outcome.CHANGED,
            (STREAM, 3, 2): Outcome.NOT_MEASURED,
        },
        tensors=("w<b>",),
        manifest=("weights: 1 of 2 tensors differs: w<b>", "torch: 1, now 2"),
        notes=("a note & more",),
    )


def printed(comparison: Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_comparison(comparison, console)
    return console.file.getvalue()


def test_the_answer_names_where_the_differences_begin(changed: Comparison) -> None:
    assert comparison_headline(changed) == "2 of 12 heads differ."
    assert evidence_lines(changed) == [
        "The differences begin in layer 2, head 1; later layers get other inputs, and 1 head there differs.",
        "1 more head differs in claims on the residual stream only, which heads of a layer share.",
        "Layers 0, 1 are identical to the last bit.",
        "1 head differs by rounding only.",
        "1 head differs by less than these inputs can show.",
    ]


def test_equal_models_have_one_sentence() -> None:
    same = comparison_of({})
    assert comparison_headline(same) == "No head differs: all values of 12 heads are identical to the last bit."
    assert evidence_lines(same) == []
    rounded = comparison_of({(OWN, 1, 1): Outcome.ROUNDING})
    assert comparison_headline(rounded) == "No head of 12 differs."
    assert evidence_lines(rounded) == ["1 head differs by rounding only."]


def test_a_change_behind_the_attention_has_no_heads() -> None:
    behind = comparison_of({(STREAM, 1, head): Outcome.CHANGED for head in range(HEADS)})
    assert evidence_lines(behind)[0] == "The differences begin in layer 1, in the residual stream behind its heads."


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_line_fits_the_terminal(changed: Comparison, width: int) -> None:
    text = printed(changed, width)
    assert max(map(len, text.splitlines())) <= width
    assert "2 of 12 heads differ." in text
    if width == 120:
        assert re.search(r"kernel PCA +captured variance +2 / 12 +8 +\.25 +\.25\n", text)
        assert re.search(r"layer 2, head 1 +captured variance +0\.250 +0\.500 +0\.250 +0\.240 to 0\.260 +\.0020", text)
        first = text.index("layer 2, head 1"), text.index("layer 2, head 0"), text.index("layer 3, head 0")
        assert list(first) == sorted(first)


def test_json_has_every_difference(changed: Comparison) -> None:
    values = comparison_as_json(changed)
    assert json.loads(json.dumps(values, allow_nan=False)) == values == changed.to_dict()
    assert values["format"] == "clearhead-comparison/1"
    assert values["heads"] == {"identical": 8, "changed": 2, "no evidence of a change": 1, "equal up to rounding": 1}
    assert len(values["differences"]) == 2 * HEADS * LAYERS
    [entry] = [d for d in values["differences"] if (d["theory"], d["layer"], d["head"]) == ("kernel PCA", 2, 1)]
    assert (entry["a"], entry["b"], entry["difference"], entry["low"], entry["outcome"]) == (
        0.25, 0.5, 0.25, 0.24, "changed",
    )  # fmt: skip
    assert [d["difference"] for d in values["differences"] if d["outcome"] == "not measured"] == [None]


def test_verdicts_are_shown_where_they_differ(changed: Comparison) -> None:
    same, other = (Verdict.NO_EVIDENCE, Verdict.NO_EVIDENCE), (Verdict.NO_EVIDENCE, Verdict.SUPPORTED)
    verdicts = {(2, 1): other, (3, 0): same}
    differences = tuple(
        dataclasses.replace(d, verdicts=verdicts.get((d.layer, d.head)) if d.claim is OWN else None)
        for d in changed.differences
    )
    judged = dataclasses.replace(changed, differences=differences)
    line = "The verdict of a primary claim differs in 1 case (kernel PCA: no evidence -> supported in 1)."
    assert evidence_lines(judged) == [*evidence_lines(changed), line]
    assert printed(judged, 200).count("no evidence -> supported") == 2
    assert "verdict A -> B" in printed(judged, 200)
    assert "verdict A -> B" not in printed(changed, 200)
    assert render_comparison(judged).count("no evidence -&gt; supported") == 2
    entries = {(d["theory"], d["layer"], d["head"]): d for d in comparison_as_json(judged)["differences"]}
    entry, unjudged = entries["kernel PCA", 2, 1], entries["coding rate", 2, 1]
    assert (entry["verdict_a"], entry["verdict_b"]) == ("no evidence", "supported")
    assert (unjudged["verdict_a"], unjudged["verdict_b"]) == (None, None)


def test_a_page_holds_all_and_runs_nothing(changed: Comparison) -> None:
    page = render_comparison(changed)
    assert "script-src 'none'" in html.unescape(page)
    assert "<script" not in page
    assert "w&lt;b&gt;" in page
    assert "w<b>" not in page
    assert "a note &amp; more" in page.lower()
    assert page.count("<rect x=") == 3 * HEADS * LAYERS  # the counts, and two primary claims
    assert "Layer 2, head 1: changed. A 0.250, B 0.500, B - A 0.250 (0.240 to 0.260)" in page
    assert "Layer 2, head 1: 1 of 1 claims changed" in page
    assert re.search(r"<tr><td>layer 2, head 1</td><td>kernel PCA</td>", page)


def test_equal_models_have_a_page_without_maps() -> None:
    page = render_comparison(comparison_of({}))
    assert 'class="map"' not in page
    assert "Every claim has the same value in both models" in page
    assert "0 changes" in page


def test_a_notebook_shows_the_answer_escaped(changed: Comparison) -> None:
    fragment = dataclasses.replace(changed, b="<b>")._repr_html_()
    assert "<b>2 of 12 heads differ.</b>" in fragment
    assert "B is &lt;b&gt;" in fragment
    assert str(changed).splitlines()[1] == "2 of 12 heads differ."
    claim = "- kernel PCA, captured variance: changed in 2 of 12, most at layer 2, head 1: 0.250 and 0.500"
    assert claim in str(changed).splitlines()


def test_a_comparison_is_a_table(changed: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    table = changed.to_pandas()
    assert len(table) == len(changed.differences)
    assert list(table["outcome"].value_counts()[["changed"]]) == [3]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="to_pandas needs pandas"):
        changed.to_pandas()

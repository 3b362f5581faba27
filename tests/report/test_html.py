import base64
import dataclasses
import hashlib
import math
import re
from html.parser import HTMLParser

import pytest

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import summarise
from clearhead.audit.shown_inputs import MOST_TOKENS
from clearhead.report import render_html
from clearhead.report.folder import write_report
from clearhead.report.head_map import shade_of
from clearhead.report.wording import number, span
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Dispute, PlainWords, Position, Role
from tests.once import once
from tests.report.synthetic import DISPUTE, EIGENVALUE, KERNEL_PCA, LOSS, OVERLAP, record_of, with_inputs

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{ 7 * 7 }}</title>&amp;\ud800"""


class Elements(HTMLParser):
    """Every element with its attributes and the text directly within it."""

    def __init__(self, page):
        super().__init__()
        self.elements = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        if self.elements:
            self.elements[-1][2] += data

    def of(self, tag):
        return [(attrs, text) for name, attrs, text in self.elements if name == tag]


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def cells_of(page):
    return [attrs for attrs, _ in Elements(page).of("g") if "head" in attrs.get("class", "").split()]


def test_the_policy_admits_exactly_the_two_inline_blocks(record):
    page = render_html(record)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page).group(1).replace("&#39;", "'")
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert policy == (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style>")


@pytest.mark.parametrize("model", ["plain", HOSTILE])
def test_nothing_is_fetched_and_nothing_runs_inline(model):
    page = render_html(record_of([3, 2], KERNEL_PCA, model=model, name=HOSTILE.replace("{{ 7 * 7 }}", "{}")))
    for tag, attrs, _ in Elements(page).elements:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
        assert "style" not in attrs
        assert not [name for name in attrs if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert attrs.get(name, "data:,") == "data:," or re.fullmatch(r"#[\w-]+", attrs[name])
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert re.findall(r"url\(.*?\)", page) == ["url(#hatch)"] * page.count("url(")


def test_external_names_are_escaped(record):
    page = render_html(record_of([3, 2], KERNEL_PCA, model=HOSTILE, name=HOSTILE.replace("{{ 7 * 7 }}", "{}")))
    calm = Elements(render_html(record_of([3, 2], KERNEL_PCA)))
    parsed = Elements(page)
    assert [tag for tag, *_ in parsed.elements] == [tag for tag, *_ in calm.elements]
    assert "<script>alert" not in page
    assert "49" not in parsed.of("h1")[0][1]
    assert parsed.of("h1")[0][1].startswith("""<script>alert(1)</script>"'><img""")
    page.encode("utf-8")


def test_every_string_of_the_record_is_escaped(disputed):
    words = ("theory", "statistic", "statement", "citation", "formula", "note")
    hostile = {
        f.claim: dataclasses.replace(f.claim, **{name: getattr(f.claim, name) + HOSTILE for name in words})
        for f in disputed.findings
    }
    findings = tuple(
        dataclasses.replace(
            f,
            claim=hostile[f.claim],
            reasons=(Reason(ReasonKind.UNDEFINED, HOSTILE),),
            controls=tuple(dataclasses.replace(c, name=c.name + HOSTILE) for c in f.controls),
        )
        for f in disputed.findings
    )
    layers = tuple(dataclasses.replace(layer, interface=HOSTILE) for layer in disputed.fidelity.layers)
    fidelity = dataclasses.replace(disputed.fidelity, layers=layers, unseen=(HOSTILE,))
    rests_on = (LOSS.statistic + HOSTILE, HOSTILE)
    dispute = Dispute(
        theory=KERNEL_PCA.theory + HOSTILE,
        question=HOSTILE,
        positions=(Position(source=HOSTILE, says=HOSTILE, rests_on=rests_on),),
    )
    texts = dict.fromkeys(("data", "version", "created"), HOSTILE)
    made = dataclasses.replace(disputed, findings=findings, fidelity=fidelity, disputes=(dispute,), **texts)
    page = render_html(made)
    assert page.count("alert(1)") > 100
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\ud800" not in page


def expected_shade(f):
    """Return the colour of a head: its agreement if the verdict has a side, and then pale at least; otherwise grey."""
    if f.verdict in (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED):
        return f"a{round(min(max(f.agreement, 0.2), 1) * 100)}"
    if f.verdict is Verdict.CONTRADICTED:
        return f"a{round(max(min(f.agreement, -0.2), -1) * 100)}"
    return "plain"


def test_only_supported_and_contradicted_heads_are_coloured(record):
    colours = {f.verdict: {shade_of(g) for g in record.findings if g.verdict is f.verdict} for f in record.findings}
    assert colours[Verdict.NO_EVIDENCE] == colours[Verdict.UNDECIDED] == {"plain"}
    assert all(shade.startswith("a-") for shade in colours[Verdict.CONTRADICTED])
    assert colours[Verdict.NOT_APPLICABLE] == {"unmeasured"}


def test_the_legend_has_every_verdict(record):
    page = render_html(record)
    legend = page[page.index('<div class="legend">') : page.index('<div class="heads-table"')]
    assert re.findall(r"</svg> ([a-z ]+)</li>", legend) == [str(verdict) for verdict in Verdict]


def test_a_theory_that_applies_nowhere_says_why_and_has_no_chart(record):
    words = PlainWords(says="It says so.", not_applicable="The mask breaks it.")
    nothing = [
        dataclasses.replace(
            f,
            value=math.nan,
            verdict=Verdict.NOT_APPLICABLE,
            reasons=(Reason(ReasonKind.NOT_COVERED, "a causal mask"),),
        )
        for f in record.findings
    ]
    page = render_html(dataclasses.replace(record, findings=tuple(nothing), words={KERNEL_PCA.theory: words}))
    card = page[page.index('<article class="claim not_applicable">') : page.index("</article>")]
    for text in ("applies to none of the 72 heads", "A causal mask.", "It says so.", "The mask breaks it."):
        assert text in card
    assert "<svg" not in card


def test_one_cell_per_head_of_each_primary_claim_with_its_agreement(disputed):
    cells = cells_of(render_html(disputed))
    findings = [f for f in disputed.findings if f.claim.role is Role.PRIMARY]
    assert len(cells) == len(findings)
    for cell, f in zip(cells, findings, strict=True):
        assert (cell["data-layer"], cell["data-head"]) == (str(f.layer), str(f.head))
        shade = cell["class"].split()[-1]
        if f.verdict is Verdict.NOT_APPLICABLE:
            assert cell["data-agreement"] == ""
            assert shade == "unmeasured"
        else:
            assert float(cell["data-agreement"]) == f.agreement
            assert shade == expected_shade(f)


def test_every_shade_has_a_distinct_colour_on_light_and_dark_pages(record):
    page = render_html(record)
    light, dark = re.search(r"(\.a-100\{.*?)@media[^{]*\{(\.a-100\{.*?)\}\s*</style>", page, re.S).groups()
    for rules in (light, dark):
        fills = dict(re.findall(r"\.(a-?\d+)\{fill:(#\w{6})\}", rules))
        assert set(fills) == {f"a{i}" for i in range(-100, 101)}
        assert len(set(fills.values())) == len(fills)


def test_a_theory_without_a_primary_claim_is_led_by_its_first():
    page = render_html(record_of([3, 2], LOSS, EIGENVALUE))
    assert len(cells_of(page)) == 5
    assert "Projection loss is " in page
    assert "for kernel PCA by projection loss" in page or "PCA by projection loss is" in page


def test_the_dispute_shows_both_sides_and_the_verdicts(disputed):
    page = render_html(disputed)
    section = page[page.index('id="dispute-1"') :]
    section = section[: section.index("</section>")]
    assert 'href="#dispute-1"' in page
    order = [
        DISPUTE.question,
        "What this model shows",
        "Kernel PCA is partly supported in 15 of 25 heads judged; ",
        "Teo and Nguyen 2024",
        LOSS.note,
        "Saritas and Yildiz 2025",
        EIGENVALUE.note,
        "a statistic of another audit",
        OVERLAP.note,
    ]
    positions = [section.index(text) for text in order]
    assert positions == sorted(positions)
    (loss,) = [s for s in summarise(disputed.findings) if s.claim == LOSS]
    for figure in (loss.median, loss.controls["random values"], loss.predicted):
        assert f">{number(figure)}<" in section
    assert 'id="dispute' not in render_html(dataclasses.replace(disputed, disputes=()))


def test_the_map_and_the_table_need_no_script(record):
    page = render_html(record)
    titles = [text for _, text in Elements(page).of("title") if text.startswith("Layer ")]
    assert len(titles) == len(record.findings)
    f = record.findings[0]
    assert titles[0] == (
        f"Layer 0, head 0: {f.verdict}. Value {f.value:.3f} ({f.interval.low:.3f} to {f.interval.high:.3f}), "
        f"values of other heads 0.320 (0.310 to 0.330, p 1e-6), predicted 1, agreement {f.agreement:.3f}, inputs 200"
    )
    table = page[page.index('<details class="findings">') : page.index("</main>")]
    assert table.count("<tr>") == len(record.findings) + 1
    assert "hidden" not in re.search(r'<div class="map"[^>]*>', page).group()


def test_the_table_has_every_number_of_a_head_in_its_column(record):
    page = render_html(record)
    table = page[page.index('<details class="findings">') : page.index("</main>")]
    titles = re.findall(r"<th>(.*?)</th>", table)
    rows = [dict(zip(titles, re.findall(r"<td>(.*?)</td>", row), strict=True)) for row in table.split("<tr>")[2:]]
    for row, f in zip(rows, record.findings, strict=True):
        control = f.deciding_control
        expected = (f.value, control.value, f.predicted, f.agreement, f.p_value, f.adjusted_p_value)
        columns = ("Value", "Control value", "Predicted", "Agreement", "p", "p adjusted")
        assert [row[column] for column in columns] == [number(value) for value in expected]
        assert (row["Layer"], row["Head"], row["Verdict"]) == (str(f.layer), str(f.head), str(f.verdict))
        assert (row["95% interval"], row["95% of draws"]) == (span(f.interval), span(control.range))
    assert any(row["p"] != row["p adjusted"] for row in rows)


def test_the_first_screen_shows_what_was_audited_and_the_verdicts(record):
    page = render_html(record)
    (summary,) = summarise(record.findings)
    for text in (
        "all-MiniLM-L6-v2",
        "reviews.txt",
        "25,131",
        "6 layers, 72 heads",
        "2025-03-01 12:00 UTC",
        "clearhead 0.1.0",
        "Kernel PCA is partly supported in 43 of 70 heads judged; ",
        f"Captured variance is {100 * summary.median:.0f}% in the median head and 32% for values of other heads; the "
        "theory predicts 100%.",
        "52 of 70 heads lie beyond every control on the theory's side (false discovery rate 5%)",
        "values of other heads: 95% of its draws lie from 31% to 33%",
        f"The 95% interval of the median is {100 * summary.interval.low:.0f}% to {100 * summary.interval.high:.0f}%",
        "Not judged: 2 heads (keys are all equal).",
        "bit-identical",
        "within the tolerance 1e-5",
        "peak memory 1.9 GB",
        KERNEL_PCA.statement.replace("'", "&#39;"),
    ):
        assert text in page


def test_a_switch_only_where_there_is_a_choice(record, disputed):
    assert 'class="switch"' not in render_html(record)
    page = render_html(disputed)
    assert page.count('<div class="map"') == 2
    groups = [attrs["label"] for attrs, _ in Elements(page).of("optgroup")]
    assert groups == ["Primary claims", "kernel PCA, other claims", "kernel PCA, as published"]
    options = [text.strip() for _, text in Elements(page).of("option")]
    assert options == [
        "kernel PCA: captured variance",
        "max margin: margin ratio",
        "subspace overlap",
        "projection loss",
        "max eigenvalue",
    ]


@once
def test_reports_of_many_claims_and_heads_stay_small(tmp_path):
    """28 claims on 270 heads, as of a vision model with 18 layers."""
    further = [dataclasses.replace(OVERLAP, statistic=f"consequence {i}") for i in range(10)]
    published = [dataclasses.replace(KERNEL_PCA, statistic=f"figure {i}", role=Role.PUBLISHED) for i in range(17)]
    written = write_report(record_of([15] * 18, KERNEL_PCA, *further, *published), tmp_path)
    assert written.page.stat().st_size < 8e6
    assert written.findings.stat().st_size < 6e6


@once
def test_a_page_with_attention_maps_stays_below_five_megabytes():
    """5 primary claims on 12 x 12 heads, 64 inputs, and as many maps as an audit records."""
    claims = [dataclasses.replace(KERNEL_PCA, theory=f"theory {i}") for i in range(5)]
    tokens = tuple(f"token{i}" for i in range(MOST_TOKENS))
    page = render_html(with_inputs(record_of([12] * 12, *claims), tokens, tokens, tokens, inputs=64))
    assert 1e6 < len(page.encode()) < 5e6


def test_pages_without_findings_and_with_many(record):
    assert "No claim was measured." in render_html(dataclasses.replace(record, findings=()))
    nothing = [dataclasses.replace(f, value=math.nan, verdict=Verdict.NOT_APPLICABLE) for f in record.findings]
    page = render_html(dataclasses.replace(record, findings=tuple(nothing)))
    assert "Kernel PCA applies to none of the 72 heads." in page
    assert "o reason was recorded (69)" in page
    assert page.count('<table class="chart">') == 1, "only the empty one of the drawer"
    assert len(cells_of(render_html(record_of([64] * 20, KERNEL_PCA)))) == 1280


def test_a_failed_check_is_shown(record):
    fidelity = dataclasses.replace(record.fidelity, swap_error=0.2, control_change=0.0, unseen=("decoder.odd",))
    page = render_html(dataclasses.replace(record, fidelity=fidelity))
    assert "which exceeds the tolerance" in page
    assert "and does not" in page
    assert "not captured (1): decoder.odd" in page

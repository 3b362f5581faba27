import base64
import dataclasses
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest

from clearhead.findings import Verdict
from clearhead.report import render_html
from tests.report.made_records import KERNEL_PCA, MAX_MARGIN, record_of

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
            assert attrs.get(name, "data:,") == "data:,"
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert re.findall(r"url\(.*?\)", page) == ["url(#hatch)"] * page.count("url(")


def test_names_from_outside_are_text(record):
    page = render_html(record_of([3, 2], KERNEL_PCA, model=HOSTILE, name=HOSTILE.replace("{{ 7 * 7 }}", "{}")))
    calm = Elements(render_html(record_of([3, 2], KERNEL_PCA)))
    parsed = Elements(page)
    assert [tag for tag, *_ in parsed.elements] == [tag for tag, *_ in calm.elements]
    assert "<script>alert" not in page
    assert "49" not in parsed.of("h1")[0][1]
    assert parsed.of("h1")[0][1].startswith("""<script>alert(1)</script>"'><img""")
    page.encode("utf-8")


def test_every_string_of_the_record_is_escaped(record):
    claim = dataclasses.replace(KERNEL_PCA, **dict.fromkeys(("theory", "statistic", "statement", "citation"), HOSTILE))
    made = record_of([3, 2, 3, 4, 3], claim)
    chance = dataclasses.replace(made.findings[0].chance, control=HOSTILE)
    findings = tuple(dataclasses.replace(f, reason=HOSTILE, chance=chance) for f in made.findings)
    layers = tuple(dataclasses.replace(layer, socket=HOSTILE) for layer in made.fidelity.layers)
    fidelity = dataclasses.replace(made.fidelity, layers=layers, unseen=(HOSTILE,))
    page = render_html(
        dataclasses.replace(made, findings=findings, fidelity=fidelity, data=HOSTILE, version=HOSTILE, created=HOSTILE)
    )
    assert "<script>alert" not in page
    assert "<img" not in page


def test_the_data_block_is_json_that_cannot_end_itself(two_claims):
    page = render_html(record_of([3, 2], KERNEL_PCA, model=HOSTILE, name=HOSTILE.replace("{{ 7 * 7 }}", "{}")))
    block = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.S).group(1)
    assert "<" not in block
    assert json.loads(block)["findings"]["0"]["name"].startswith("<script>alert(1)</script>")


def test_skipped_inputs_come_with_their_reason(record):
    page = render_html(record)
    block = json.loads(re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.S).group(1))
    told = {entry["skipped"] for entry in block["findings"].values()}
    assert told == {"0", "199 (too few tokens)", "200 (keys are all equal)"}


def test_one_cell_per_finding_with_its_agreement(two_claims):
    cells = cells_of(render_html(two_claims))
    assert len(cells) == len(two_claims.findings)
    for cell in cells:
        f = two_claims.findings[int(cell["data-index"])]
        assert (cell["data-layer"], cell["data-head"]) == (str(f.layer), str(f.head))
        if f.verdict is Verdict.NOT_APPLICABLE:
            assert cell["data-agreement"] == ""
            assert cell["fill"] == "url(#hatch)"
        else:
            assert float(cell["data-agreement"]) == f.agreement
    fills = {round(float(c["data-agreement"]), 2): c["fill"] for c in cells if c["data-agreement"]}
    assert len(set(fills.values())) == len(fills)


def test_the_map_and_the_table_need_no_script(record):
    page = render_html(record)
    titles = [text for _, text in Elements(page).of("title") if text.startswith("Layer ")]
    assert len(titles) == len(record.findings)
    f = record.findings[0]
    assert titles[0] == (
        f"Layer 0, head 0: {f.verdict}. Value {f.value:.3f} ({f.interval.low:.3f} to {f.interval.high:.3f}), "
        f"chance 0.300 (0.250 to 0.350), exact 1, agreement {f.agreement:.3f}, p 1e-6, inputs 200"
    )
    table = page[page.index('<details class="findings">') :]
    assert table.count("<tr>") == len(record.findings) + 1
    assert "hidden" not in re.search(r'<div class="map"[^>]*>', page).group()


def test_the_first_screen_says_what_and_how_it_came_out(record):
    page = render_html(record)
    for text in (
        "all-MiniLM-L6-v2",
        "reviews.txt",
        "25,131",
        "6 layers, 72 heads",
        "2025-03-01T12:00:00",
        "clearhead 0.1.0",
        "In 43 of 70 measured heads, captured variance is above chance but short of the claim.",
        "52 of 70 heads lie above chance",
        "bit-identical",
        "within the tolerance 1e-5",
        "peak memory 1.9 GB",
        KERNEL_PCA.statement.replace("'", "&#39;"),
    ):
        assert text in page


def test_a_switch_only_where_there_is_a_choice(record, two_claims):
    assert 'class="switch"' not in render_html(record)
    page = render_html(two_claims)
    assert page.count('<div class="map"') == 2
    assert f"{MAX_MARGIN.theory}: {MAX_MARGIN.statistic}</button>" in page


def test_pages_of_nothing_and_of_much(record):
    assert "No claim was measured." in render_html(dataclasses.replace(record, findings=()))
    nothing = [dataclasses.replace(f, value=math.nan, verdict=Verdict.NOT_APPLICABLE) for f in record.findings]
    assert "In no head could captured variance be measured." in render_html(
        dataclasses.replace(record, findings=tuple(nothing))
    )
    assert len(cells_of(render_html(record_of([64] * 20, KERNEL_PCA)))) == 1280


def test_a_failed_check_is_told(record):
    fidelity = dataclasses.replace(record.fidelity, swap_error=0.2, control_change=0.0, unseen=("decoder.odd",))
    page = render_html(dataclasses.replace(record, fidelity=fidelity))
    assert "which exceeds the tolerance" in page
    assert "and does not" in page
    assert "not captured (1): decoder.odd" in page

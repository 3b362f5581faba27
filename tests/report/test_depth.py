"""Curves over depth, notes, and claims of a direction or of whole layers, in the terminal, the file and the page."""

import dataclasses
import io
import json
import math
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import judge
from clearhead.audit.record import AuditRecord, DepthCurve, DepthLine
from clearhead.numerics.moments import Interval
from clearhead.report import audit_as_json, print_audit, render_html, write_json
from clearhead.report.charts import depth_chart
from clearhead.theories.theory import Direction, Role, Unit
from tests.audit.synthetic_findings import control, finding
from tests.report.synthetic import KERNEL_PCA, record_of

HOSTILE = '<script>alert(1)</script>"&'
LAYERS = (0, 2, 3)


def line(name: str, *values: float) -> DepthLine:
    return DepthLine(name=name, values=values, intervals=tuple(Interval(v - 0.5, v + 0.5) for v in values))


CURVE = DepthCurve(
    theory="coding rate",
    title="Coding rate after attention",
    quantity="nats",
    layers=LAYERS,
    lines=(line("this model", 31.25, 28.5, math.nan), line("before training", 30.0, 30.5, 29.75)),
    note="it grows with the tokens",
)
COMPRESSION = dataclasses.replace(
    KERNEL_PCA, theory="coding rate", statistic="compression", predicted=None, direction=Direction.LOWER
)
DENSITY = dataclasses.replace(COMPRESSION, statistic="density", role=Role.SECONDARY, unit=Unit.LAYER)


@pytest.fixture(scope="module")
def curved() -> AuditRecord:
    near, far = control(-0.1, 1e-9, name="near"), control(0.2, 1e-9, name="far")
    heads = [
        dataclasses.replace(
            finding(value, claim=claim, predicted=math.nan, controls=(near, far), head=0 if claim is DENSITY else h),
            layer=layer,
        )
        for claim in (COMPRESSION, DENSITY)
        for layer in range(3)
        for h, value in enumerate((-0.4, 0.05, 0.6)[layer : layer + 1] if claim is DENSITY else (-0.4, 0.05, 0.6))
    ]
    base = record_of([3] * 3, KERNEL_PCA)
    findings = (*base.findings, *judge(heads))
    return dataclasses.replace(base, findings=findings, curves=(CURVE, CURVE), notes=("not compared with that",))


def printed(record: AuditRecord, width: int = 120) -> str:
    buffer = io.StringIO()
    print_audit(record, Console(file=buffer, width=width))
    return buffer.getvalue()


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r'<svg class="lines".*?</svg>', page, re.S)]


def test_the_terminal_has_a_line_for_each_curve_and_note(curved: AuditRecord) -> None:
    text = " ".join(printed(curved).split())
    assert "Coding rate after attention, by layer: this model 31 28 -; before training 30 30 30" in text
    assert "note not compared with that" in text
    for width in (50, 80, 200):
        assert max(map(len, printed(curved, width).splitlines())) <= width


def test_the_file_reads_back(curved: AuditRecord, tmp_path) -> None:
    write_json(curved, tmp_path / "findings.json")
    back = json.loads((tmp_path / "findings.json").read_text())
    assert back == audit_as_json(curved)
    first, second = back["curves"]
    assert first == second
    assert first["layers"] == list(LAYERS)
    assert first["lines"][0]["values"] == [31.25, 28.5, None]
    assert first["lines"][1]["intervals"][0] == {"low": 29.5, "high": 30.5}
    assert back["notes"] == ["not compared with that"]
    (claim,) = [c for c in back["claims"] if c["statistic"] == "density"]
    assert (claim["direction"], claim["unit"], claim["predicted"]) == ("lower", "layer", None)
    verdicts = [f["verdict"] for f in back["findings"] if f["statistic"] == "compression"][:3]
    assert verdicts == [str(Verdict.SUPPORTED), str(Verdict.NO_EVIDENCE), str(Verdict.CONTRADICTED)]


def test_the_page_draws_every_curve_and_gives_its_numbers(curved: AuditRecord) -> None:
    page = render_html(curved)
    section = page[page.index('id="depth"') : page.index("fidelity-title")]
    assert len(charts(page)) == 2
    for chart in charts(page):
        labels = ["".join(text.itertext()) for text in chart.iter("text")]
        assert {"layer", "0", "2", "3"} <= set(labels)
        paths = {kind: [p.attrib["d"] for p in chart.iter("path") if kind in p.attrib["class"].split()]
                 for kind in ("line", "band")}  # fmt: skip
        assert [len(d.split(" L")) for d in paths["line"]] == [3, 2], "controls are drawn first, without the NaN"
        assert [d.count("Z") for d in paths["band"]] == [1, 1]
        assert "this model 31 28 -" in chart.attrib["aria-label"]
    for text in (
        "Coding rate after attention (nats)",
        "this model",
        "31.2",
        "28.5",
        "29.8",
        "it grows with the tokens",
    ):
        assert text in section
    assert '<p class="warning">not compared with that</p>' in page


def test_a_page_without_curves_has_no_section_for_them(record: AuditRecord) -> None:
    page = render_html(record)
    assert 'id="depth"' not in page
    assert not charts(page)
    assert "by layer:" not in printed(record)
    assert audit_as_json(record)["curves"] == audit_as_json(record)["notes"] == []


def test_names_are_escaped(curved: AuditRecord) -> None:
    curve = dataclasses.replace(
        CURVE, title=HOSTILE, theory=HOSTILE, quantity=HOSTILE, note=HOSTILE, lines=(line(HOSTILE, 1.0, 2.0, 3.0),)
    )
    page = render_html(dataclasses.replace(curved, curves=(curve,), notes=(HOSTILE,)))
    assert "<script>alert" not in page
    (chart,) = charts(page)
    assert HOSTILE in chart.attrib["aria-label"]


def test_the_page_names_layers_and_shows_values_where_agreement_is_undefined(curved: AuditRecord) -> None:
    page = render_html(curved)
    assert 'aria-label="Value by layer and head"' in page
    assert 'aria-label="Value by layer"' in page
    assert "<title>Layer 1: " in page
    assert "Layer 1, head 1: " in page
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', page, re.S).group(1))
    claims = {claim["statistic"]: claim for claim in facts["claims"]}
    assert [claims[name]["unit"] for name in ("compression", "density")] == ["head", "layer"]
    assert claims["compression"]["columns"]["shade"].split()[:3] == ["a50", "plain", "a-50"]
    assert 'data-agreement="nan"' not in page
    assert claims["compression"]["columns"]["text"].split()[:3] == ["-.40", ".050", ".60"]
    assert "the theory predicts a lower value than every control" in claims["compression"]["evidence"]
    assert "1 of 3 layers" in claims["density"]["headline"]


def test_points_are_in_proportion_to_their_values() -> None:
    chart = depth_chart(dataclasses.replace(CURVE, lines=(line("this model", 31.0, 27.0, 29.0),)))
    left, top, right, bottom = chart.plot
    points = [tuple(map(float, step.split())) for step in chart.lines[0].path.removeprefix("M").split(" L")]
    assert [x for x, _ in points] == pytest.approx([left, left + (right - left) * 2 / 3, right], abs=0.1)
    (_, first), (_, second), (_, third) = points
    assert top < first < third < second < bottom
    assert third - first == pytest.approx(second - third, abs=0.2)
    ticks = {float(tick.text): tick.at for tick in chart.y_ticks}
    assert ticks[31] == pytest.approx(first, abs=0.1)
    assert 3 <= len(ticks) <= 6


@pytest.mark.parametrize("values", [(1.0, 1.0, 1.0), (math.nan, math.nan, 2.0), (math.nan,) * 3, (-3e-9, 0.0, 3e-9)])
def test_charts_of_equal_missing_and_tiny_numbers_are_drawn(values: tuple[float, ...]) -> None:
    chart = depth_chart(dataclasses.replace(CURVE, lines=(dataclasses.replace(line("x", *values)),)))
    assert "nan" not in chart.lines[0].path + chart.lines[0].band
    assert bool(chart.lines[0].path) == any(map(math.isfinite, values))
    assert len(chart.y_ticks) >= 1


def test_a_missing_number_interrupts_line_and_band() -> None:
    chart = depth_chart(dataclasses.replace(CURVE, lines=(line("this model", 31.0, math.nan, 29.0),)))
    assert chart.lines[0].path.count("M") == 2
    assert chart.lines[0].band.count("M") == 2
    assert chart.lines[0].texts == ("31", "-", "29")


def test_a_deep_model_has_few_labels() -> None:
    layers = tuple(range(96))
    deep = dataclasses.replace(CURVE, layers=layers, lines=(line("this model", *map(float, layers)),))
    assert len(depth_chart(deep).x_ticks) == 12

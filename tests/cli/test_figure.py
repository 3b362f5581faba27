"""`clearhead figure`: what each kind draws, formats, and errors."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord, DepthCurve, DepthLine
from clearhead.audit.shown_inputs import ShownInput, ShownLayer
from clearhead.cli.failure import CommandError
from clearhead.cli.figure_command import draw_figure, make_figure
from clearhead.cli.options import FigureKind
from clearhead.errors import InputError
from clearhead.numerics.moments import Interval
from clearhead.report.json_file import write_json
from clearhead.theories.catalogue import TheorySource
from clearhead.theories.theory import Picture
from tests.report.synthetic import KERNEL_PCA, MAX_MARGIN, record_of

pytest.importorskip("matplotlib")
COLOURED = (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED, Verdict.CONTRADICTED)
BARS, PART = [[0.5, 0.25, 0.125], [0.75, 0.25, 0.0625]], [[0.25, 0.125, 0.0], [0.0, 0.125, 0.0625]]
HOSTILE = "$x_{$ \ud800\x1b[31m</svg>"


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    lines = tuple(
        DepthLine(name=name, values=values, intervals=tuple(Interval(v - 0.5, v + 0.25) for v in values))
        for name, values in (("this model", (3.0, 2.0, 1.5)), (HOSTILE, (3.0, 3.5, 4.0)))
    )
    curve = DepthCurve(theory="max margin", title=HOSTILE, quantity="nats", layers=(0, 2, 3), lines=lines)
    sources = [TheorySource(key=key, title=claim.theory, package="p", version="1")
        for key, claim in (("kernel-pca", KERNEL_PCA), ("max-margin", MAX_MARGIN))]  # fmt: skip
    made = record_of([12, 12, 7], KERNEL_PCA, MAX_MARGIN, model=HOSTILE)
    picture = Picture(theory="kernel PCA", title=HOSTILE, caption="", bars=np.array(BARS), part=np.array(PART))
    whole = dataclasses.replace(picture, theory="max margin", part=None)
    weights = np.zeros((2, 1, 1), dtype=np.uint8)
    shown = ShownInput(
        number=1, tokens=("a",), queries=(0,), length=1,
        layers=tuple(ShownLayer(layer=layer, weights=weights, pictures=(picture, whole)) for layer in (0, 3)),
    )  # fmt: skip
    return dataclasses.replace(made, theories=tuple(sources), curves=(curve,), shown=(shown,))


def _drawn(record: AuditRecord, kind: FigureKind) -> list[Any]:
    figure, theories = make_figure(record.to_dict(), kind, ["kernel PCA", "max margin"])
    assert figure is not None
    assert theories == (["max margin"] if kind is FigureKind.DEPTH else ["kernel PCA", "max margin"])
    return figure.axes


def test_a_heatmap_colours_the_heads_with_a_verdict_for_or_against(record: AuditRecord) -> None:
    [outlier] = [f for f in record["kernel-pca"].layer(0) if f.head == 5]
    assert outlier.verdict is Verdict.NO_EVIDENCE
    findings = tuple(dataclasses.replace(f, value=-3.0) if f is outlier else f for f in record.findings)
    record = dataclasses.replace(record, findings=findings)
    axes = _drawn(record, FigureKind.HEATMAP)[0]
    grey, coloured = (np.ma.filled(image.get_array(), np.nan) for image in axes.images)
    for finding in record["kernel-pca"]:
        value = coloured[finding.layer, finding.head]
        assert (value == finding.value) if finding.verdict in COLOURED else np.isnan(value)
        assert np.isnan(grey[finding.layer, finding.head]) == np.isnan(finding.value)
    assert np.isnan(grey[2, 7:]).all()  # the last layer has 7 heads
    values = [f.value for f in record["kernel-pca"]]
    assert axes.images[1].get_clim() == (np.nanmin(values), np.nanmax(values))


def test_the_null_is_the_deciding_control_of_every_head(record: AuditRecord) -> None:
    axes = _drawn(record, FigureKind.NULL)[1]
    findings = sorted((f for f in record["max-margin"] if f.value == f.value), key=lambda f: f.value)
    (controls, _, [ranges]), (heads, _, [intervals]) = axes.containers
    assert list(heads.get_ydata()) == [f.value for f in findings]
    assert list(controls.get_ydata()) == [f.deciding_control.value for f in findings]
    for drawn, expected in (
        (ranges, [f.deciding_control.range for f in findings]),
        (intervals, [f.interval for f in findings]),
    ):
        ends = [(low, high) for (_, low), (_, high) in drawn.get_segments()]
        for end, interval in zip(ends, expected, strict=True):
            if interval.low == interval.low:
                assert end == pytest.approx((interval.low, interval.high))
    [predicted] = [line for line in axes.lines if "predicted" in str(line.get_label())]
    assert set(predicted.get_ydata()) == {0.0}


def test_spectra_show_what_the_values_capture(record: AuditRecord) -> None:
    content = record.to_dict()

    def bars(**selected: int) -> list[tuple[str, list[float], list[float]]]:
        figure, theories = make_figure(content, FigureKind.SPECTRUM, ["kernel PCA"], **selected)
        assert figure is not None
        assert theories == ["kernel PCA"]
        return [
            (axes.get_title(loc="left"), *([bar.get_height() for bar in group] for group in axes.containers))
            for axes in figure.axes
        ]

    assert bars() == [("layer 0, head 0", BARS[0], PART[0]), ("layer 3, head 0", BARS[0], PART[0])]
    assert bars(layer=3) == [(f"layer 3, head {head}", BARS[head], PART[head]) for head in range(2)]
    assert bars(layer=0, head=1) == [("layer 0, head 1", BARS[1], PART[1])]
    assert make_figure(content, FigureKind.SPECTRUM, ["kernel PCA"], layer=7) == (None, [])
    assert make_figure(content, FigureKind.SPECTRUM, ["max margin"]) == (None, [])


def test_curves_have_one_line_per_quantity(record: AuditRecord) -> None:
    [axes] = _drawn(record, FigureKind.DEPTH)
    assert [list(line.get_ydata()) for line in axes.lines] == [[3.0, 2.0, 1.5], [3.0, 3.5, 4.0]]
    assert list(axes.lines[0].get_xdata()) == [0, 2, 3]


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_ending_selects_the_format_and_files_are_reproducible(
    record: AuditRecord, tmp_path: Path, ending: str, start: bytes
) -> None:
    write_json(record, tmp_path / "findings.json")
    contents = []
    for name in ("first", "second"):
        drawn = draw_figure(tmp_path, FigureKind.NULL, tmp_path / f"{name}.{ending}", theory="kernel-pca")
        assert drawn == ["kernel PCA"]
        contents.append((tmp_path / f"{name}.{ending}").read_bytes())
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]


@pytest.mark.parametrize("kind", FigureKind)
def test_hostile_names_are_text(record: AuditRecord, tmp_path: Path, kind: FigureKind) -> None:
    write_json(record, tmp_path / "findings.json")
    draw_figure(tmp_path / "findings.json", kind, tmp_path / "figure.svg", theory=None)
    text = (tmp_path / "figure.svg").read_text()
    assert text.count("</svg>") == 1
    assert "\x1b" not in text


def test_errors_name_what_is_possible(record: AuditRecord, tmp_path: Path) -> None:
    write_json(dataclasses.replace(record, curves=()), tmp_path / "findings.json")
    (tmp_path / "other.json").write_text("{}")
    out = tmp_path / "figure.svg"
    for source, kind, target, theory, message in (
        (tmp_path, FigureKind.NULL, tmp_path / "figure.jpg", None, r"\.svg, \.png, \.pdf"),
        (tmp_path, FigureKind.NULL, out, "magic", "'magic'.*kernel-pca, max-margin"),
        (tmp_path, FigureKind.DEPTH, out, None, "depth .*kernel PCA, max margin"),
        (tmp_path / "missing", FigureKind.NULL, out, None, "findings.json"),
        (tmp_path / "other.json", FigureKind.NULL, out, None, "findings of an audit"),
    ):
        with pytest.raises(InputError, match=message):
            draw_figure(source, kind, target, theory=theory)
    with pytest.raises(CommandError, match=r"--layer.*--head.*--kind spectrum"):
        draw_figure(tmp_path, FigureKind.NULL, out, theory=None, layer=1)
    with pytest.raises(InputError, match="cannot write"):
        draw_figure(tmp_path, FigureKind.NULL, tmp_path / "no folder" / "figure.svg", theory=None)
    assert not out.exists()

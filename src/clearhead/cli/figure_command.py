"""`clearhead figure`: the findings of a report as a figure for a paper, drawn with matplotlib (extra `plots`)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.audit.findings import Verdict
from clearhead.audit.findings_record import FindingsRecord, read_findings_file
from clearhead.audit.manifest import FINDINGS_FILE
from clearhead.cli.failure import CommandError
from clearhead.cli.options import FigureKind
from clearhead.report.plots import COLOURS, finish_panel, make_panels, plot_band, write_figure
from clearhead.report.wording import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw_figure", "make_figure"]

FORMATS = ("svg", "png", "pdf")
JUDGED = (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED, Verdict.CONTRADICTED)
"""Verdicts for or against a theory: a heat map colours these heads, the others are grey."""
GREY = "#d9dce1"


def draw_figure(
    source: Path,
    kind: FigureKind,
    out: Path,
    *,
    theory: str | None,
    layer: int | None = None,
    head: int | None = None,
) -> list[str]:
    """Write a figure of a report's findings and return the theories of its panels.

    source: findings.json, or the folder of a report. Raise CommandError if there is nothing to draw.
    layer, head: of spectra; without them, the first head of every layer
    """
    if out.suffix.removeprefix(".").lower() not in FORMATS:
        raise CommandError(f"--out {out} must end in .{', .'.join(FORMATS)}; its ending selects the format")
    content = _read(source)
    titles = {entry["key"]: entry["title"] for entry in content["theories"]}
    if kind is not FigureKind.SPECTRUM and (layer is not None or head is not None):
        raise CommandError("--layer and --head select spectra; give them with --kind spectrum")
    if theory is not None and theory not in titles:
        raise CommandError(f"{source} has no theory {theory!r}; it has {', '.join(titles) or 'none'}")
    chosen = [titles[theory]] if theory is not None else list(titles.values())
    figure, drawn = make_figure(content, kind, chosen, layer=layer, head=head)
    if figure is None:
        raise CommandError(f"{source} has nothing to draw as {kind} for {', '.join(chosen) or 'any theory'}")
    write_figure(figure, out)
    return drawn


def make_figure(
    content: Mapping[str, Any],
    kind: FigureKind,
    chosen: Sequence[str],
    *,
    layer: int | None = None,
    head: int | None = None,
) -> tuple["Figure | None", list[str]]:
    """Return the figure of the chosen theories' primary claims, curves or spectra, and the theory of each panel."""
    if kind is FigureKind.DEPTH:
        return _curves([curve for curve in content["curves"] if curve["theory"] in chosen])
    if kind is FigureKind.SPECTRUM:
        spectra = [picture for picture in content["pictures"] if picture["part"] and picture["theory"] in chosen]
        return _spectra(spectra, layer, head)
    return _claims(content, chosen, _heatmap if kind is FigureKind.HEATMAP else _null)


def _read(source: Path) -> FindingsRecord:
    path = source / FINDINGS_FILE if source.is_dir() else source
    try:
        return read_findings_file(path)
    except FileNotFoundError:
        raise CommandError(f"there is no {path}; give the findings.json or the folder of a report") from None


def _claims(content: Mapping[str, Any], chosen: Sequence[str], draw: Any) -> tuple["Figure | None", list[str]]:
    claims = [claim for claim in content["claims"] if claim["role"] == "primary" and claim["theory"] in chosen]
    groups = [
        (claim, [f for f in content["findings"] if all(f[key] == claim[key] for key in ("theory", "statistic"))])
        for claim in claims
    ]
    groups = [(claim, findings) for claim, findings in groups if any(f["value"] is not None for f in findings)]
    if not groups:
        return None, []
    title = f"{clean(content['model'])} on {clean(content['data'])}"
    figure, panels = make_panels(len(groups), title=title, columns=2)
    for panel, (claim, findings) in zip(panels, groups, strict=True):
        draw(panel, claim, findings)
    return figure, [claim["theory"] for claim, _ in groups]


def _label(text: str) -> str:
    """Return a name from outside as matplotlib shows it: dollar signs would be mathematics."""
    return clean(text).replace("$", r"\$")


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _heatmap(axes: "Axes", claim: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> None:
    """Draw the value by layer and head, coloured where the verdict is for or against the theory.

    Colours span all values that were measured, so that few coloured heads do not fill the scale.
    """
    import numpy as np
    from matplotlib.colors import ListedColormap

    layers, heads = (sorted({f[axis] for f in findings}) for axis in ("layer", "head"))
    measured = np.full((len(layers), len(heads)), math.nan)
    judged = np.full_like(measured, math.nan)
    for finding in findings:
        at = layers.index(finding["layer"]), heads.index(finding["head"])
        measured[at] = _number(finding["value"])
        judged[at] = measured[at] if finding["verdict"] in JUDGED else math.nan
    axes.imshow(np.where(np.isnan(measured), math.nan, 0), cmap=ListedColormap([GREY]), aspect="auto")
    if np.isfinite(judged).any():
        low, high = float(np.nanmin(measured)), float(np.nanmax(measured))
        image = axes.imshow(judged, cmap="viridis", aspect="auto", vmin=low, vmax=high)
        axes.get_figure(root=True).colorbar(image, ax=axes)  # type: ignore[union-attr]
    axes.scatter([], [], marker="s", s=60, color=GREY, label="measured, neither for nor against the theory")
    axes.scatter([], [], marker="s", s=60, facecolors="white", edgecolors="#8a919c", label="not applicable")
    axes.grid(False)
    finish_panel(axes, title=f"{_label(claim['theory'])}: {_label(claim['statistic'])}", x="head", y="layer")
    for axis, numbers in ((axes.xaxis, heads), (axes.yaxis, layers)):
        step = max(1, math.ceil(len(numbers) / 12))
        axis.set_ticks(range(0, len(numbers), step), [str(n) for n in numbers[::step]])


def _null(axes: "Axes", claim: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> None:
    """Draw every head's value with its interval, sorted, and the 95 % range of the control that decides."""
    rows = sorted((f for f in findings if f["value"] is not None), key=lambda f: float(f["value"]))
    ranks = list(range(1, len(rows) + 1))
    controls = [f["controls"].get(f["deciding_control"]) or {} for f in rows]
    for centres, spans, style in (
        ([_number(control.get("value")) for control in controls], [control.get("range") for control in controls], 4),
        ([float(f["value"]) for f in rows], [f["interval"] for f in rows], 0),
    ):
        reach = [[_reach(c, span, end) for c, span in zip(centres, spans, strict=True)] for end in ("low", "high")]
        label = "heads, 95 % interval" if style == 0 else "the control that decides, 95 % of its draws"
        look: dict[str, Any] = (
            {"fmt": "o", "markersize": 3, "linewidth": 1} if style == 0 else {"fmt": "_", "linewidth": 3, "alpha": 0.6}
        )
        axes.errorbar(ranks, centres, yerr=reach, color=COLOURS[style], label=label, **look)
    predicted = {f["predicted"] for f in rows if f["predicted"] is not None}
    if len(predicted) == 1:
        axes.axhline(predicted.pop(), color=COLOURS[1], linestyle=":", linewidth=1.5, label="predicted by the theory")
    axes.set_xlim(0, len(rows) + 1)
    finish_panel(axes, title=_label(claim["theory"]), x="head, sorted by value", y=_label(claim["statistic"]))


def _reach(centre: float, span: Mapping[str, Any] | None, end: str) -> float:
    """Return the distance from a value to an end of its interval; 0 without one."""
    distance = abs(_number((span or {}).get(end)) - centre)
    return 0.0 if math.isnan(distance) else distance


def _spectra(
    pictures: Sequence[Mapping[str, Any]], layer: int | None, head: int | None
) -> tuple["Figure | None", list[str]]:
    """Draw bars and their filled parts, one panel for each layer and head that is selected."""
    chosen = [
        (picture, number)
        for picture in pictures
        if layer in (None, picture["layer"])
        for number in ([head or 0] if layer is None or head is not None else range(len(picture["bars"])))
        if number < len(picture["bars"])
    ]
    if not chosen:
        return None, []
    figure, panels = make_panels(len(chosen), title=_label(chosen[0][0]["title"]), columns=3)
    for axes, (picture, number) in zip(panels, chosen, strict=True):
        bars, part = ([_number(value) for value in picture[name][number]] for name in ("bars", "part"))
        axes.bar(range(1, len(bars) + 1), bars, color=GREY, label="variance of the keys on the axis")
        axes.bar(range(1, len(part) + 1), part, color=COLOURS[0], label="captured by the values")
        axes.set_xlim(0.3, len(bars) + 0.7)
        finish_panel(axes, title=f"layer {picture['layer']}, head {number}", x="principal axis", y="share of variance")
    return figure, [chosen[0][0]["theory"]]


def _curves(curves: Sequence[Mapping[str, Any]]) -> tuple["Figure | None", list[str]]:
    if not curves:
        return None, []
    figure, panels = make_panels(len(curves), title="Curves over depth", columns=2)
    for axes, curve in zip(panels, curves, strict=True):
        for colour, line in enumerate(curve["lines"]):
            ends = [[_number(interval[end]) for interval in line["intervals"]] for end in ("low", "high")]
            values = [_number(value) for value in line["values"]]
            plot_band(axes, curve["layers"], values, *ends, label=_label(line["name"]), colour=colour % len(COLOURS))
        finish_panel(axes, title=_label(curve["title"]), x="layer", y=_label(curve["quantity"]))
    return figure, [curve["theory"] for curve in curves]

"""Figures of experiments, drawn with matplotlib (extra `plots`) as SVG text that is the same every time."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import InputError, MissingPackageError
from clearhead.numerics.moments import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f5fa8", "#b85c00", "#1b7f4d", "#7a3fa0", "#5f6672", "#b3261e")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (7, 2, 2, 2)), (0, (4, 1.5)), (0, (1, 1.5)))
"""Lines differ in more than colour."""
PANEL = (4.6, 3.1)
"""Width and height of a panel in inches."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "clearhead",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e5e9",
    "legend.frameon": False,
    "legend.handlelength": 2.6,
}
Number = float | int
Values = NDArray[np.float64]
Numbers = Sequence[Number] | Values


def make_panels(count: int, *, title: str, columns: int = 2) -> tuple["Figure", list["Axes"]]:
    """Return a figure and its panels, row by row. `title` is metadata for screen readers, not drawn."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            'figures need matplotlib, which is not installed; pip install "clearhead[plots]" and run the command again'
        ) from None
    columns = min(columns, count)
    rows = -(-count // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        figure.set_gid(title)
        axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def as_svg(figure: "Figure") -> str:
    """Return the figure as SVG text, with one legend for all panels. The same figure gives the same text."""
    content = io.BytesIO()
    _save(figure, content, "svg")
    return content.getvalue().decode()


def write_figure(figure: "Figure", path: Path) -> None:
    """Write the figure as SVG, PNG or PDF, by the ending of the path, with one legend for all panels."""
    try:
        with path.open("wb") as file:
            _save(figure, file, path.suffix.removeprefix(".").lower())
    except OSError as error:
        raise InputError(f"cannot write the figure {path}: {error.strerror}; choose another path") from None


def _save(figure: "Figure", file: io.BytesIO | io.BufferedWriter, kind: str) -> None:
    import matplotlib

    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    with matplotlib.rc_context(STYLE):
        if handles:
            columns = _legend_columns(list(handles), width=figure.get_figwidth())
            figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=columns)
        metadata = {"Creator": None, "Title": figure.get_gid() or ""}
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Producer": None}, "png": {"Software": None}}
        if kind == "png":
            del metadata["Creator"]
        figure.savefig(file, format=kind, dpi=200, metadata={**metadata, **dated[kind]})


def finish_panel(
    axes: "Axes",
    *,
    title: str,
    x: str,
    y: str,
    x_log: bool = False,
    y_log: bool = False,
    y_range: tuple[float, float] | None = None,
) -> None:
    """Set the title, the labels and the scales of a panel."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(textwrap.fill(title, 56), fontsize=10, fontweight="bold", loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_axisbelow(True)
    if x_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axes.minorticks_off()
    elif all((np.asarray(line.get_xdata(), dtype=np.float64) % 1 == 0).all() for line in axes.lines):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if y_log:
        axes.set_yscale("log")
    if y_range is not None:
        axes.set_ylim(*y_range)


def plot_band(
    axes: "Axes", x: Numbers, y: Numbers, low: Numbers, high: Numbers,
    *, label: str, colour: int,
) -> None:  # fmt: skip
    """Plot a line in a band from `low` to `high`. Gaps are NaN; without bounds there is no band."""
    style: dict[str, Any] = {"color": COLOURS[colour], "label": label}
    single = np.isfinite(np.asarray(y, dtype=np.float64)).sum() < 2
    axes.plot(x, y, linestyle=DASHES[colour], linewidth=1.8, marker="o" if single else "", markersize=4, **style)
    if len(low):
        axes.fill_between(x, low, high, color=COLOURS[colour], alpha=0.18, linewidth=0)


def plot_percentage(
    axes: "Axes", x: Sequence[Number], runs: Sequence[Sequence[bool]], *, label: str, colour: int
) -> None:
    """Plot the percentage of true flags at every x, in the band of its Wilson interval."""
    known = [(at, flags) for at, flags in zip(x, runs, strict=True) if flags]
    bounds = [wilson_interval(sum(flags), len(flags)) for _, flags in known]
    plot_band(
        axes,
        [at for at, _ in known],
        [100 * sum(flags) / len(flags) for _, flags in known],
        [100 * bound.low for bound in bounds],
        [100 * bound.high for bound in bounds],
        label=label,
        colour=colour,
    )


def _legend_columns(labels: Sequence[str], *, width: float) -> int:
    """Return how many columns of the legend fit, at about 0.075 inches per letter."""
    return max(1, min(len(labels), int(width / (0.6 + 0.075 * max(map(len, labels))))))

"""The chart of an evaluation: accuracy against the budget, one line per attack and a thick one for the worst case."""

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.numerics.moments import Interval
from clearhead.report.charts import Tick
from clearhead_lab.robustness.attack_words import AccuracyRow, accuracy_rows, budget_unit, percent
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import budget_text

WIDTH, HEIGHT = 360.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 14.0, 10.0, 42.0
"""Margins around the lines, for the labels of the axes."""
LABEL_GAP, LETTER = 6.0, 7.0
"""Space between labels of the x-axis, and the width of a letter of them."""
TOPS, STEPS = (0.25, 0.5, 1.0), 5
"""Accuracies at which the y-axis may end, and its number of steps."""
COLOURS = 6
MARKERS = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.4L4.2 3.2H-4.2z",
    "M0-4.8L4.8 0L0 4.8L-4.8 0z",
    "M-4 0H4M0-4V4",
    "M0 4.4L4.2-3.2H-4.2z",
    "M-3.2-3.2L3.2 3.2M-3.2 3.2L3.2-3.2",
)
"""SVG paths around 0: circle, square, triangle, diamond, plus, triangle upside down, cross."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackCurve:
    """One line: its name, its style's CSS class, its path, its marker and where that is drawn."""

    name: str
    style: str
    path: str
    marker: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackChart:
    """The worst case with the band of its interval, then one line per attack; sizes and ticks are in pixels.

    fewer: the attacks that were run on the first images only, with their numbers
    """

    words: str
    x_title: str
    curves: tuple[AttackCurve, ...]
    band: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    fewer: tuple[tuple[str, int], ...]
    size: tuple[float, float] = (WIDTH, HEIGHT)
    plot: tuple[float, float, float, float] = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    """Left, top, right and bottom of the area of the lines."""


def attack_chart(record: Robustness) -> AttackChart:
    """Return the chart. Every line begins at budget 0, with the clean accuracy on the images of its attack."""
    _, *attacks, worst = accuracy_rows(record)
    order = sorted(range(len(record.budgets)), key=lambda i: record.budgets[i])
    starts = [] if 0.0 in record.budgets else [0.0]
    budgets = [*starts, *(record.budgets[i] for i in order)]
    columns = [_x(eps, budgets[-1]) for eps in budgets]

    def values(row: AccuracyRow) -> list[float]:
        begin = [_clean_share(record, row.estimates[0].images) for _ in starts]
        return [*begin, *(row.estimates[i].value for i in order)]

    intervals = [*(record.clean_accuracy().interval for _ in starts), *(worst.estimates[i].interval for i in order)]
    highest = max([*(interval.high for interval in intervals), *(v for row in attacks for v in values(row))])
    top = next(top for top in TOPS if top >= highest or top == TOPS[-1])

    def curve(row: AccuracyRow, style: str, marker: str) -> AttackCurve:
        points = tuple((x, _y(value, top)) for x, value in zip(columns, values(row), strict=True))
        # At budget 0 all attacks are in the same place, where one marker is enough.
        marked = points if row is worst else points[len(starts) :]
        return AttackCurve(name=row.title, style=style, path=_path(points), marker=marker, points=marked)

    return AttackChart(
        words=_in_words(record, [*attacks, worst]),
        x_title=_x_title(record),
        curves=(
            curve(worst, "worst-line", MARKERS[0]),
            *(curve(row, f"line-{i % COLOURS}", MARKERS[(i + 1) % len(MARKERS)]) for i, row in enumerate(attacks)),
        ),
        band=_band(columns, intervals, top),
        x_ticks=_x_ticks(budgets),
        y_ticks=tuple(
            Tick(at=_y(top * i / STEPS, top), text=f"{100 * top * i / STEPS:.0f}%") for i in range(STEPS + 1)
        ),
        fewer=tuple(
            (row.title, row.estimates[0].images) for row in attacks if row.estimates[0].images < len(record.labels)
        ),
    )


def _clean_share(record: Robustness, images: int) -> float:
    """Return the accuracy without an attack on the first images."""
    pairs = zip(record.clean[:images], record.labels[:images], strict=True)
    return sum(predicted == label for predicted, label in pairs) / images


def _x(eps: float, largest: float) -> float:
    return LEFT + eps / (largest or 1.0) * (WIDTH - LEFT - RIGHT)


def _y(share: float, top: float) -> float:
    return HEIGHT - BOTTOM - share / top * (HEIGHT - TOP - BOTTOM)


def _x_title(record: Robustness) -> str:
    unit = " / 255" if _in_steps(record.budgets) else ""
    return f"budget{budget_unit(record)}{unit}"


def _in_steps(budgets: Sequence[float]) -> bool:
    """Return True if all budgets are written as multiples of 1/255."""
    return all(eps == 0 or budget_text(eps).endswith("/255") for eps in budgets)


def _x_ticks(budgets: Sequence[float]) -> tuple[Tick, ...]:
    """Return 0 and the largest budget, and the others where their labels do not overlap, large ones first."""
    steps = _in_steps(budgets)
    ticks: list[Tick] = []
    for eps in dict.fromkeys((budgets[-1], 0.0, *reversed(budgets))):
        text = budget_text(eps).removesuffix("/255") if steps else budget_text(eps)
        at, half = _x(eps, budgets[-1]), len(text) * LETTER / 2
        if all(abs(at - tick.at) >= half + len(tick.text) * LETTER / 2 + LABEL_GAP for tick in ticks):
            ticks.append(Tick(at=at, text=text))
    return tuple(sorted(ticks, key=lambda tick: tick.at))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _band(columns: Sequence[float], intervals: Sequence[Interval], top: float) -> str:
    low = [(x, _y(interval.low, top)) for x, interval in zip(columns, intervals, strict=True)]
    high = [(x, _y(interval.high, top)) for x, interval in zip(columns, intervals, strict=True)]
    return f"{_path([*low, *reversed(high)])}Z"


def _in_words(record: Robustness, rows: Sequence[AccuracyRow]) -> str:
    """Return the numbers of every line, as in "Accuracy at 2/255, 8/255: FGSM 80.0% 61.2%; worst 60.0% 15.7%"."""
    lines = (f"{row.title} {' '.join(percent(e.value) for e in row.estimates)}" for row in rows)
    return f"Accuracy at {', '.join(map(budget_text, record.budgets))}: {'; '.join(lines)}"

"""Tables in the terminal: of claims, one row per claim, and of one claim's heads, one row per layer.

The table of heads comes in blocks of heads that fit the width.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.style import Style
from rich.text import Text

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import Summary
from clearhead.numerics.moments import Interval
from clearhead.report.columns import Column, first_that_fits, print_columns, print_line, print_paragraph, text_column
from clearhead.report.grid import ClaimGrid, beyond_controls
from clearhead.report.head_map import LIGHT, as_hex
from clearhead.report.wording import MARKS, agreement, clean, control_draws, deciding_control, short


def print_leading_claims(grids: Sequence[ClaimGrid], console: Console) -> None:
    """Print the numbers of the claims that decide, with as many columns as fit."""
    print_columns(first_that_fits(_layouts(grids), width=console.width), console)


def _layouts(grids: Sequence[ClaimGrid]) -> Iterator[list[Column]]:
    """Yield sets of columns, each narrower than the one before.

    First the statistic is left out, then the prediction, then the intervals, then the theory.
    """
    summaries = [grid.summary for grid in grids]
    theory = text_column("theory", [s.claim.theory for s in summaries], right=False)
    statistic = text_column("statistic", [s.claim.statistic for s in summaries], right=False)
    median = text_column("median [95% CI]", [_with_interval(s.median, s.interval) for s in summaries])
    control = text_column("control [95%]", [_control_interval(grid) for grid in grids])
    predicted = text_column("predicted", [predicted_text(s) for s in summaries])
    counts = [_beyond(s) for s in summaries]
    heads_long = text_column("heads beyond controls (FDR 5%)", counts)
    heads = text_column("beyond", counts)
    yield [theory, statistic, median, control, predicted, heads_long]
    yield [theory, statistic, median, control, predicted, heads]
    yield [theory, median, control, predicted, heads]
    yield [theory, median, control, heads]
    median = text_column("median", [short(s.median) for s in summaries])
    control = text_column("control", [short(_control(s)) for s in summaries])
    yield [theory, median, control, heads]
    yield [median, control, heads]


def print_verdict_table(grids: Sequence[ClaimGrid], console: Console) -> None:
    """Print one row per leading claim: its verdict and numbers, with as many columns as fit."""
    summaries = [grid.summary for grid in grids]
    theory = text_column("theory", [s.claim.theory for s in summaries], right=False)
    verdict = text_column("verdict", [s.verdict for s in summaries], right=False)
    verdict = dataclasses.replace(verdict, cells=tuple(Text(cell.plain, style="bold") for cell in verdict.cells))
    median = text_column("median [95% CI]", [_with_interval(s.median, s.interval) for s in summaries])
    control = text_column("control [95%]", [_control_interval(grid) for grid in grids])
    predicted = text_column("predicted", [predicted_text(s) for s in summaries])
    short_median = text_column("median", [short(s.median) for s in summaries])
    short_control = text_column("control", [short(_control(s)) for s in summaries])
    layouts = [
        [theory, verdict, median, control, predicted],
        [theory, verdict, short_median, short_control, predicted],
        [theory, verdict, short_median, short_control],
        [theory, verdict],
        [verdict],
    ]
    print_columns(first_that_fits(layouts, width=console.width), console)


def predicted_text(summary: Summary) -> str:
    """Return the predicted value, or the side of the controls on which the theory predicts it."""
    return short(summary.predicted) if summary.claim.direction is None else str(summary.claim.direction)


def _with_interval(value: float, interval: Interval) -> str:
    return f"{short(value)} [{short(interval.low)}, {short(interval.high)}]"


def _control(summary: Summary) -> float:
    return summary.controls.get(deciding_control(summary), float("nan"))


def _control_interval(grid: ClaimGrid) -> str:
    return _with_interval(_control(grid.summary), _range(grid))


def _range(grid: ClaimGrid) -> Interval:
    return grid.control_range(deciding_control(grid.summary))


def _beyond(summary: Summary) -> str:
    """Return how many heads lie beyond every control on the theory's side; "-" where none could lie elsewhere."""
    by_construction = summary.verdicts.get(Verdict.TRUE_BY_CONSTRUCTION, 0) == summary.measured > 0
    return "-" if by_construction else f"{beyond_controls(summary)} / {summary.measured}"


def print_other_claims(grids: Sequence[ClaimGrid], console: Console) -> None:
    """Print the secondary claims of one theory, each with the control that decides."""
    if grids:
        control = text_column("control", [short(_control(grid.summary)) for grid in grids])
        _print_block(f"other claims of {_theory(grids)}", grids, [control], console)


def print_published_claims(grids: Sequence[ClaimGrid], console: Console) -> None:
    """Print the statistics that publications rest on with every control, to show what they can distinguish."""
    if not grids:
        return
    names = list(dict.fromkeys(name for grid in grids for name in grid.summary.controls))
    controls = [
        text_column(clean(name), [short(grid.summary.controls.get(name, float("nan"))) for grid in grids])
        for name in names
    ]
    draws = control_draws(cell.finding for grid in grids for cell in grid.cells)
    title = f"as published on {_theory(grids)}"
    _print_block(f"{title} (controls: {'; '.join(draws)})" if draws else title, grids, controls, console)


def _theory(grids: Sequence[ClaimGrid]) -> str:
    return clean(grids[0].claim.theory)


def _print_block(title: str, grids: Sequence[ClaimGrid], controls: Sequence[Column], console: Console) -> None:
    summaries = [grid.summary for grid in grids]
    statistic = text_column("statistic", [s.claim.statistic for s in summaries], right=False)
    median = text_column("median", [short(s.median) for s in summaries])
    predicted = text_column("predicted", [short(s.predicted) for s in summaries])
    verdict = text_column("verdict", [s.verdict for s in summaries], right=False)
    heads = [text_column(title, [_beyond(s) for s in summaries]) for title in ("beyond controls", "beyond")]
    layouts = [
        [statistic, median, *controls, predicted, verdict],
        [statistic, median, *controls, predicted, heads[0]],
        [statistic, median, *controls, predicted, heads[1]],
        [statistic, median, *controls, predicted],
        [statistic, median, *controls],
        [statistic, median, *controls[:1]],
        [statistic, median],
    ]
    console.print()
    print_paragraph("", Text(title, style="bold"), console, indent=0)
    print_columns(first_that_fits(layouts, width=console.width), console)


LABEL = "layer"
GAP = 2
DIM = (Verdict.NO_EVIDENCE, Verdict.NOT_APPLICABLE, Verdict.UNDECIDED, Verdict.NOT_JUDGED)


def print_head_table(grid: ClaimGrid, console: Console) -> None:
    """Print the agreement of every head, or its value where the theory predicts only a direction, and a legend.

    The background of a cell is the colour of its agreement. Heads without evidence are dim and have no background. The
    names of the modules follow the rows if all of them fit.
    """
    digits = max(*(len(_number(cell.finding)) for cell in grid.cells), len(str(grid.width - 1)))
    for heads in _blocks(grid, digits=digits, width=console.width):
        _print_heads(grid, heads, digits, console)
    print_paragraph("", Text(_legend(grid), style="dim"), console, indent=0)


def _blocks(grid: ClaimGrid, *, digits: int, width: int) -> Iterator[range]:
    most = max((width - len(LABEL)) // (digits + 2), 1)
    size = math.ceil(grid.width / math.ceil(grid.width / most))
    for start in range(0, grid.width, size):
        yield range(start, min(start + size, grid.width))


def _print_heads(grid: ClaimGrid, heads: range, digits: int, console: Console) -> None:
    width = len(LABEL) + len(heads) * (digits + 2) + GAP
    rows = [row for row in grid.rows if any(cell.finding.head in heads for cell in row.cells)]
    names_fit = all(width + Text(clean(row.name)).cell_len <= console.width for row in rows)
    print_line(Text(LABEL, style="dim") + Text("".join(f" {head:>{digits}} " for head in heads), style="dim"), console)
    for row in rows:
        line = Text().append(f"{row.layer:>{len(LABEL)}}", style="dim")
        findings = {cell.finding.head: cell.finding for cell in row.cells}
        for head in heads:
            line.append(" ")
            line.append(_cell(findings[head], digits) if head in findings else Text(" " * (digits + 1)))
        print_line(line.append(" " * GAP).append(clean(row.name), style="dim") if names_fit else line, console)


def _number(finding: Finding) -> str:
    if finding.verdict is Verdict.NOT_APPLICABLE:
        return "-"
    return agreement(finding.agreement) if finding.claim.direction is None else short(finding.value)


def _cell(finding: Finding, digits: int) -> Text:
    return Text(f"{_number(finding):>{digits}}{MARKS[finding.verdict] or ' '}", style=_style(finding))


def _style(finding: Finding) -> Style:
    if finding.verdict not in DIM and finding.claim.direction is not None:
        return Style(bold=finding.verdict is Verdict.SUPPORTED)
    if finding.verdict in DIM or not math.isfinite(finding.agreement):
        return Style(dim=True)
    return Style(color=LIGHT.ink(finding.agreement), bgcolor=as_hex(LIGHT.rgb(finding.agreement)))


def _legend(grid: ClaimGrid) -> str:
    verdicts = [v for v in Verdict if grid.summary.verdicts.get(v, 0)]
    marks = [f"{MARKS[v]} {v}" for v in verdicts if MARKS[v]]
    if any(_number(cell.finding) == "-" for cell in grid.cells):
        marks.append(f"- {Verdict.NOT_APPLICABLE}")
    if grid.claim.direction is None:
        scale = "agreement: 0 is the closest control, 1 is the theory"
    else:
        scale = f"{clean(grid.claim.statistic)}: the theory predicts {grid.claim.direction} values than every control"
    return "; ".join([scale, *marks])

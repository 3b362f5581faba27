"""The head table of the terminal: one number per head, one row per layer, in blocks of heads that fit the width."""

import math
from collections.abc import Iterator

from rich.console import Console
from rich.style import Style
from rich.text import Text

from clearhead.audit.findings import Finding, Verdict
from clearhead.report.colours import LIGHT, as_hex
from clearhead.report.columns import print_line, print_paragraph
from clearhead.report.grid import ClaimGrid
from clearhead.report.wording import MARKS, agreement, clean, short

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
        _print_block(grid, heads, digits, console)
    print_paragraph("", Text(_legend(grid), style="dim"), console, indent=0)


def _blocks(grid: ClaimGrid, *, digits: int, width: int) -> Iterator[range]:
    most = max((width - len(LABEL)) // (digits + 2), 1)
    size = math.ceil(grid.width / math.ceil(grid.width / most))
    for start in range(0, grid.width, size):
        yield range(start, min(start + size, grid.width))


def _print_block(grid: ClaimGrid, heads: range, digits: int, console: Console) -> None:
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

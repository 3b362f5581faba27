"""Theorem checks in a terminal of any width, and as JSON values."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from clearhead.report.columns import Column, first_that_fits, print_columns, print_line, text_column
from clearhead.report.json_file import plain
from clearhead.report.wording import clean, short
from clearhead_lab.theorems.theorem import TheoremCheck

__all__ = ["THEOREMS_FORMAT", "print_theorems", "theorems_as_json"]

THEOREMS_FORMAT = "clearhead-theorems/2"


def print_theorems(theorems: Sequence[TheoremCheck], console: Console) -> None:
    """Print each theorem check: residuals with their tolerances, citation, and the control that must fail."""
    layouts: list[tuple[list[Column], list[Text]]] = [
        (_columns(theorems), []),
        (_columns(theorems, inline=False), [_paragraph(t) for t in theorems]),
        (_source_columns(theorems, inline=False), [_paragraph(t, residuals=True) for t in theorems]),
    ]
    columns = first_that_fits([columns for columns, _ in layouts], width=console.width)
    beneath = next(texts for candidate, texts in layouts if candidate is columns)
    if theorems:
        print_columns(columns, console, beneath=beneath)
    print_line(Text(_count(theorems), style="bold"), console)


def theorems_as_json(theorems: Sequence[TheoremCheck]) -> dict[str, Any]:
    """Return the theorem checks and how many hold, do not hold, and could not be checked."""
    hold = sum(theorem.holds for theorem in theorems)
    not_checked = sum(bool(theorem.missing) for theorem in theorems)
    return {
        "format": THEOREMS_FORMAT,
        "hold": hold,
        "do_not_hold": len(theorems) - hold - not_checked,
        "not_checked": not_checked,
        "theorems": [{**plain(theorem), "holds": None if theorem.missing else theorem.holds} for theorem in theorems],
    }


def _count(theorems: Sequence[TheoremCheck]) -> str:
    """Count the statements that hold, those that do not and those that could not be checked."""
    hold = sum(theorem.holds for theorem in theorems)
    unchecked = sum(bool(theorem.missing) for theorem in theorems)
    counts = f"{hold} hold, {len(theorems) - hold - unchecked} do not hold"
    return f"{counts}, {unchecked} not checked" if unchecked else counts


def _paragraph(theorem: TheoremCheck, *, residuals: bool = False) -> Text:
    text = Text(clean(theorem.statement)).append(f"\n{clean(theorem.citation)}", style="dim")
    text.append(f"\nmust fail: {clean(theorem.control)}", style="dim")
    if theorem.missing:
        text.append(f"\n{_not_checked(theorem)}", style="bold")
    elif residuals:
        control = short(theorem.control_residual)
        text.append(f"\nfp64 {_double(theorem)}, fp32 {_single(theorem)}, control {control}", style="dim")
    return text


def _not_checked(theorem: TheoremCheck) -> str:
    return f"not checked: needs {clean(theorem.missing)}"


def _source_columns(theorems: Sequence[TheoremCheck], *, inline: bool) -> list[Column]:
    holds = tuple(
        Text(_not_checked(t) if inline else "-") if t.missing else Text("yes") if t.holds else Text("NO", "bold red")
        for t in theorems
    )
    ids = [text_column("id", [t.id for t in theorems], right=False)] if any(t.id for t in theorems) else []
    return [
        Column(title="holds", cells=holds),
        *ids,
        text_column("source", [t.source for t in theorems], right=False),
    ]


def _columns(theorems: Sequence[TheoremCheck], *, inline: bool = True) -> list[Column]:
    holds, *source = _source_columns(theorems, inline=inline)
    statement = text_column("statement", [t.statement for t in theorems], right=False)
    control = text_column("must fail", [t.control for t in theorems], right=False)
    citation = text_column("citation", [t.citation for t in theorems], right=False)
    return [
        *source,
        *([statement] if inline else []),
        text_column("fp64 (tolerance)", [_double(t) for t in theorems]),
        text_column("fp32 (tolerance)", [_single(t) for t in theorems]),
        *([control] if inline else []),
        text_column("control", [short(t.control_residual) for t in theorems]),
        holds,
        *([citation] if inline else []),
    ]


def _double(theorem: TheoremCheck) -> str:
    return f"{short(theorem.residual)} ({short(theorem.tolerance)})"


def _single(theorem: TheoremCheck) -> str:
    return f"{short(theorem.residual_single)} ({short(theorem.tolerance_single)})"

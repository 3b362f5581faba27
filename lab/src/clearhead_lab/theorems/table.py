"""The theorem checks of every theory, in a terminal of any width and as JSON values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from clearhead.report.columns import Column, first_that_fits, print_columns, print_line, text_column
from clearhead.report.json_file import plain
from clearhead.report.wording import clean, short
from clearhead.theories import coding_rate, kernel_pca, max_margin, symmetry
from clearhead_lab.theorems.coding_rate import theorems as of_coding_rate
from clearhead_lab.theorems.kernel_pca import theorems as of_kernel_pca
from clearhead_lab.theorems.max_margin import theorems as of_max_margin
from clearhead_lab.theorems.symmetry import theorems as of_symmetry
from clearhead_lab.theorems.theorem import TheoremCheck

THEOREMS_FORMAT = "clearhead-theorems/2"

THEOREMS: Mapping[str, Callable[[], Sequence[TheoremCheck]]] = {
    kernel_pca.THEORY.title: of_kernel_pca,
    max_margin.THEORY.title: of_max_margin,
    coding_rate.THEORY.title: of_coding_rate,
    symmetry.THEORY.title: of_symmetry,
}
"""The checks by the title of their theory."""


def all_theorems(progress: Callable[[str, int, int], None] = lambda theory, done, total: None) -> list[TheoremCheck]:
    """Check every proved statement of every theory.

    progress: called before each theory with its title, and with the numbers of theories done and in all
    """
    checks: list[TheoremCheck] = []
    for done, (title, theorems) in enumerate(THEOREMS.items()):
        progress(title, done, len(THEOREMS))
        checks += theorems()
    return checks


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
    stored = theorems_as_json(theorems)
    counts = f"{stored['hold']} hold, {stored['do_not_hold']} do not hold"
    return f"{counts}, {stored['not_checked']} not checked" if stored["not_checked"] else counts


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

"""Claims in a terminal, a row each: those that decide, with all they have, and those beside them, in short."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import Summary
from clearhead.report.columns import Column, first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.grid import ClaimGrid, heads_above_chance
from clearhead.report.wording import clean, drawn, short

__all__ = ["print_other_claims", "print_published_claims", "print_summaries"]


def print_summaries(summaries: Sequence[Summary], console: Console) -> None:
    """Print the claims that theories stand or fall with; the verdict stands beneath its row where it does not fit."""
    complete = _columns(summaries)
    verdict = text_column("verdict", [s.verdict for s in summaries], right=False)
    if len(first_that_fits([[*complete, verdict], []], width=console.width)):
        print_columns([*complete, verdict], console)
    else:
        columns = first_that_fits(_narrower(summaries), width=console.width)
        named = columns[0].title == "theory"
        labels = ["verdict" if named else clean(s.claim.theory) for s in summaries]
        beneath = [
            Text().append(f"{a}: ", "dim").append(s.verdict, "bold") for a, s in zip(labels, summaries, strict=True)
        ]
        print_columns(columns, console, beneath=beneath)


def _narrower(summaries: Sequence[Summary]) -> Iterator[list[Column]]:
    """Sets of columns, each narrower than the one before: first the statistic goes, then exact, then the intervals."""
    theory, statistic, median, chance, exact, above = _columns(summaries)
    heads = text_column("beyond chance", [_above(s) for s in summaries])
    yield [theory, statistic, median, chance, exact, above]
    yield [theory, median, chance, exact, above]
    yield [theory, median, chance, exact, heads]
    yield [theory, median, chance, heads]
    plain_median = text_column("median", [short(s.median) for s in summaries])
    plain_chance = text_column("chance", [short(s.chance) for s in summaries])
    yield [theory, plain_median, plain_chance, heads]
    yield [plain_median, plain_chance, heads]


def _columns(summaries: Sequence[Summary]) -> list[Column]:
    return [
        text_column("theory", [s.claim.theory for s in summaries], right=False),
        text_column("statistic", [s.claim.statistic for s in summaries], right=False),
        text_column(
            "median [95% CI]",
            [f"{short(s.median)} [{short(s.interval.low)}, {short(s.interval.high)}]" for s in summaries],
        ),
        text_column(
            "chance [95%]",
            [f"{short(s.chance)} [{short(s.chance_range.low)}, {short(s.chance_range.high)}]" for s in summaries],
        ),
        text_column("exact", [short(s.exact) for s in summaries]),
        text_column("heads beyond chance (FDR 5%)", [_above(s) for s in summaries]),
    ]


def _above(summary: Summary) -> str:
    """How many heads lie beyond chance on the theory's side; nothing where none could be elsewhere."""
    by_construction = summary.verdicts.get(Verdict.TRUE_BY_CONSTRUCTION, 0) == summary.measured > 0
    return "-" if by_construction else f"{heads_above_chance(summary)} / {summary.measured}"


def print_other_claims(grids: Sequence[ClaimGrid], console: Console) -> None:
    """Print the further consequences of one theory beside each head's hardest control."""
    _print_block(f"other claims of {_theory(grids)}", grids, ["chance"], console)


def print_published_claims(grids: Sequence[ClaimGrid], console: Console) -> None:
    """Print the statistics that publications rest on beside every control, to show what they can tell apart."""
    names = list(dict.fromkeys(name for grid in grids for name in grid.summary.controls))
    beside = drawn(cell.finding for grid in grids for cell in grid.cells)
    title = f"as published on {_theory(grids)}"
    _print_block(f"{title} (beside {'; '.join(beside)})" if beside else title, grids, names, console)


def _theory(grids: Sequence[ClaimGrid]) -> str:
    return clean(grids[0].claim.theory) if grids else ""


def _print_block(title: str, grids: Sequence[ClaimGrid], beside: Sequence[str], console: Console) -> None:
    if not grids:
        return
    summaries = [grid.summary for grid in grids]
    statistic = text_column("statistic", [s.claim.statistic for s in summaries], right=False)
    median = text_column("median", [short(s.median) for s in summaries])
    chances = [text_column(clean(name), [short(_beside(s, name)) for s in summaries]) for name in beside]
    exact = text_column("exact", [short(s.exact) for s in summaries])
    verdict = text_column("verdict", [s.verdict for s in summaries], right=False)
    heads = text_column("beyond chance", [_above(s) for s in summaries])
    layouts = [
        [statistic, median, *chances, exact, verdict],
        [statistic, median, *chances, exact, heads],
        [statistic, median, *chances, exact],
        [statistic, median, *chances],
        [statistic, median, *chances[:1]],
        [statistic, median],
    ]
    console.print()
    print_paragraph("", Text(title, style="bold"), console, indent=0)
    print_columns(first_that_fits(layouts, width=console.width), console)


def _beside(summary: Summary, name: str) -> float:
    return summary.chance if name == "chance" else summary.controls.get(name, float("nan"))

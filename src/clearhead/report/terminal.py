"""An audit and a list of checked theorems, as lines in a terminal of any width."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from clearhead.findings import Summary, Theorem, Verdict
from clearhead.record import AuditRecord, Fidelity, ModelSymmetry
from clearhead.report.columns import Column, first_that_fits, print_columns, print_line, print_paragraph
from clearhead.report.grid import ClaimGrid, arrange, heads_above_chance, skipped_heads
from clearhead.report.head_table import print_head_table
from clearhead.report.wording import amount_of_memory, clean, count_theorems, duration, short

__all__ = ["print_audit", "print_theorems"]


def print_audit(record: AuditRecord, console: Console) -> None:
    """Print what was audited, the evidence that it was seen truly, one row per claim, and one number per head.

    No line is longer than the console is wide: narrow consoles get fewer columns and the heads in blocks.
    """
    grids = arrange(record.findings)
    print_paragraph("audited", Text(_audited(record)), console)
    print_paragraph("fidelity", Text("\n".join(_fidelity(record.fidelity))), console)
    if record.fidelity.unseen:
        names = ", ".join(clean(name) for name in record.fidelity.unseen)
        print_paragraph(
            "unseen", Text(f"attention modules not captured ({len(record.fidelity.unseen)}): {names}"), console
        )
    for line in _chance(grids):
        print_paragraph("chance", Text(line), console)
    if record.symmetry is not None:
        print_paragraph("order", Text(_order(record.symmetry)), console)
    console.print()
    if grids:
        _print_summaries([grid.summary for grid in grids], console)
    for grid in grids:
        console.print()
        print_paragraph("", Text(f"{grid.claim.theory}, {grid.claim.statistic}", style="bold"), console, indent=0)
        if all(cell.finding.verdict is Verdict.BY_CONSTRUCTION for cell in grid.cells):
            print_paragraph("", Text(f"holds by construction in all {len(grid.cells)} heads"), console, indent=0)
        else:
            print_head_table(grid, console)
    console.print()
    for line in _skipped(grids):
        print_paragraph("skipped", Text(line), console)
    print_paragraph("time", Text(_time(record)), console)
    print_paragraph("memory", Text(f"peak {amount_of_memory(record.timing.peak_memory)}"), console)


def _audited(record: AuditRecord) -> str:
    return (
        f"{clean(record.model)} on {clean(record.data)}; {record.inputs:,} inputs, {record.tokens:,} tokens; "
        f"clearhead {clean(record.version)}, {clean(record.created)}, seed {record.seed}"
    )


def _fidelity(fidelity: Fidelity) -> list[str]:
    sockets = " and ".join(dict.fromkeys(clean(layer.socket) for layer in fidelity.layers))
    verdict = "within" if fidelity.swap_error <= fidelity.tolerance else "EXCEEDS"
    watched, recomputed = short(fidelity.output_difference), short(fidelity.recompute_error)
    swapped, tolerance, control = short(fidelity.swap_error), short(fidelity.tolerance), short(fidelity.control_change)
    return [
        f"{_captured(fidelity)} captured through {sockets or 'no socket'}; max |output - original| {watched}; "
        f"recompute error {recomputed}",
        f"exact softmax swapped in: error {swapped} {verdict} tolerance {tolerance}; "
        f"uniform attention (control): change {control}",
    ]


def _above(summary: Summary) -> str:
    """How many heads lie above chance; nothing where none could be elsewhere."""
    by_construction = summary.verdicts.get(Verdict.BY_CONSTRUCTION, 0) == summary.measured > 0
    return "-" if by_construction else f"{heads_above_chance(summary)} / {summary.measured}"


def _order(symmetry: ModelSymmetry) -> str:
    if not symmetry.layers:
        return f"permuted tokens not tried: {clean(symmetry.reason)}"
    layers = " ".join(short(error) for error in symmetry.layers)
    whole = f"the whole model by {short(symmetry.whole)} (an unrelated order: {short(symmetry.unrelated)})"
    if symmetry.reason:
        whole = f"the whole model: {clean(symmetry.reason)}"
    return f"permuting tokens and permuting outputs differ, by layer, {layers}; {whole}"


def _captured(fidelity: Fidelity) -> str:
    heads = sorted({layer.heads for layer in fidelity.layers}) or [0]
    width = str(heads[0]) if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
    return f"{len(fidelity.layers)} layers x {width} heads"


def _chance(grids: Sequence[ClaimGrid]) -> list[str]:
    lines: dict[str, None] = {}
    for grid in grids:
        theory = f"{clean(grid.claim.theory)}: " if len(grids) > 1 else ""
        measured = (c.finding.chance for c in grid.cells if c.finding.verdict is not Verdict.NOT_APPLICABLE)
        lines |= dict.fromkeys(f"{theory}{clean(c.control)}, {c.draws:,} draws, seed {c.seed}" for c in measured)
    return list(lines)


def _print_summaries(summaries: Sequence[Summary], console: Console) -> None:
    complete = _columns(summaries)
    verdict = _column("verdict", [s.verdict for s in summaries], right=False)
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
    heads = _column("above chance", [_above(s) for s in summaries])
    yield [theory, statistic, median, chance, exact, above]
    yield [theory, median, chance, exact, above]
    yield [theory, median, chance, exact, heads]
    yield [theory, median, chance, heads]
    plain_median = _column("median", [short(s.median) for s in summaries])
    plain_chance = _column("chance", [short(s.chance) for s in summaries])
    yield [theory, plain_median, plain_chance, heads]
    yield [plain_median, plain_chance, heads]


def _columns(summaries: Sequence[Summary]) -> list[Column]:
    return [
        _column("theory", [s.claim.theory for s in summaries], right=False),
        _column("statistic", [s.claim.statistic for s in summaries], right=False),
        _column(
            "median [95% CI]",
            [f"{short(s.median)} [{short(s.interval.low)}, {short(s.interval.high)}]" for s in summaries],
        ),
        _column(
            "chance [95%]",
            [f"{short(s.chance)} [{short(s.chance_range.low)}, {short(s.chance_range.high)}]" for s in summaries],
        ),
        _column("exact", [short(s.claim.exact) for s in summaries]),
        _column("heads above chance (FDR 5%)", [_above(s) for s in summaries]),
    ]


def _column(title: str, cells: Sequence[str], *, right: bool = True) -> Column:
    return Column(title=title, cells=tuple(Text(clean(cell)) for cell in cells), right=right)


def _skipped(grids: Sequence[ClaimGrid]) -> Iterator[str]:
    for grid in grids:
        theory = f"{clean(grid.claim.theory)}, {clean(grid.claim.statistic)}: " if len(grids) > 1 else ""
        reasons = skipped_heads(grid)
        named = ", ".join(f"{why} {count}" for why, count in reasons.items())
        yield f"{theory}{sum(reasons.values())} of {grid.summary.heads} heads" + (f" ({named})" if named else "")


def _time(record: AuditRecord) -> str:
    timing = record.timing
    phases = {"check": timing.check, "forward and capture": timing.forward, **timing.theory}
    return f"{duration(timing.total)} ({', '.join(f'{clean(name)} {duration(s)}' for name, s in phases.items())})"


def print_theorems(theorems: Sequence[Theorem], console: Console) -> None:
    """Print each statement with its residuals, what they may be, where it is said and the control that must fail."""
    layouts: list[tuple[list[Column], list[Text]]] = [
        (_theorem_columns(theorems), []),
        (_theorem_columns(theorems, inline=False), [_in_words(t) for t in theorems]),
        (_source_columns(theorems), [_in_words(t, residuals=True) for t in theorems]),
    ]
    columns = first_that_fits([columns for columns, _ in layouts], width=console.width)
    beneath = next(texts for candidate, texts in layouts if candidate is columns)
    if theorems:
        print_columns(columns, console, beneath=beneath)
    print_line(Text(count_theorems(theorems), style="bold"), console)


def _in_words(theorem: Theorem, *, residuals: bool = False) -> Text:
    text = Text(clean(theorem.statement)).append(f"\n{clean(theorem.citation)}", style="dim")
    text.append(f"\nmust fail: {clean(theorem.control)}", style="dim")
    if residuals:
        control = short(theorem.control_residual)
        text.append(f"\nfp64 {_double(theorem)}, fp32 {_single(theorem)}, control {control}", style="dim")
    return text


def _source_columns(theorems: Sequence[Theorem]) -> list[Column]:
    answers = tuple(Text("yes") if t.holds else Text("NO", style="bold red") for t in theorems)
    return [
        Column(title="holds", cells=answers),
        *_id_column(theorems),
        _column("source", [t.source for t in theorems], right=False),
    ]


def _id_column(theorems: Sequence[Theorem]) -> list[Column]:
    return [_column("id", [t.id for t in theorems], right=False)] if any(t.id for t in theorems) else []


def _theorem_columns(theorems: Sequence[Theorem], *, inline: bool = True) -> list[Column]:
    holds, *source = _source_columns(theorems)
    statement = _column("statement", [t.statement for t in theorems], right=False)
    control = _column("must fail", [t.control for t in theorems], right=False)
    citation = _column("said in", [t.citation for t in theorems], right=False)
    return [
        *source,
        *([statement] if inline else []),
        _column("fp64 (tolerance)", [_double(t) for t in theorems]),
        _column("fp32 (tolerance)", [_single(t) for t in theorems]),
        *([control] if inline else []),
        _column("control", [short(t.control_residual) for t in theorems]),
        holds,
        *([citation] if inline else []),
    ]


def _double(theorem: Theorem) -> str:
    return f"{short(theorem.residual)} ({short(theorem.tolerance)})"


def _single(theorem: Theorem) -> str:
    return f"{short(theorem.residual_single)} ({short(theorem.tolerance_single)})"

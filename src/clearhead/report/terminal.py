"""An audit and a list of checked theorems, as lines in a terminal of any width."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord, Fidelity, ModelSymmetry
from clearhead.report.claim_tables import print_other_claims, print_published_claims, print_summaries
from clearhead.report.columns import Column, first_that_fits, print_columns, print_line, print_paragraph, text_column
from clearhead.report.depth import depth_in_words
from clearhead.report.dispute import conclusion
from clearhead.report.grid import ClaimGrid, arrange, leading, others, skipped_heads
from clearhead.report.head_table import print_head_table
from clearhead.report.wording import amount_of_memory, clean, count_theorems, drawn, duration, short
from clearhead.theories.theory import Role, TheoremCheck

__all__ = ["print_audit", "print_theorems"]


def print_audit(record: AuditRecord, console: Console) -> None:
    """Print what was audited, the evidence that it was seen truly, and what was found.

    Primary claims have a row and a number for every head; the other claims have a row each.

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
    for note in record.notes:
        print_paragraph("note", Text(clean(note)), console)
    console.print()
    if grids:
        print_summaries([grid.summary for grid in leading(grids)], console)
    for grid in leading(grids):
        console.print()
        print_paragraph("", Text(f"{grid.claim.theory}, {grid.claim.statistic}", style="bold"), console, indent=0)
        if all(cell.finding.verdict is Verdict.TRUE_BY_CONSTRUCTION for cell in grid.cells):
            print_paragraph(
                "", Text(f"true by construction in all {len(grid.cells)} {grid.claim.unit}s"), console, indent=0
            )
        else:
            print_head_table(grid, console)
    for theory in dict.fromkeys(grid.claim.theory for grid in grids):
        print_other_claims(others(grids, theory, Role.SECONDARY), console)
        print_published_claims(others(grids, theory, Role.PUBLISHED), console)
    console.print()
    for curve in record.curves:
        print_paragraph("depth", Text(depth_in_words(curve)), console)
    for line in _disputed(record, grids):
        print_paragraph("dispute", Text(line), console)
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


def _chance(grids: Sequence[ClaimGrid]) -> Iterator[str]:
    """Every control of the claims that lead, with its draws; claims that share theirs share the line."""
    ahead = leading(grids)
    lines: dict[str, None] = {}
    for grid in ahead:
        measured = [c.finding for c in grid.cells if c.finding.verdict is not Verdict.NOT_APPLICABLE]
        seeds = {chance.seed for finding in measured for chance in finding.controls}
        theory = f"{clean(grid.claim.theory)}: " if len(ahead) > 1 else ""
        named = [*drawn(measured), *(f"seed {seed}" for seed in sorted(seeds))]
        lines |= {theory + "; ".join(named): None} if seeds else {}
    yield from lines


def _disputed(record: AuditRecord, grids: Sequence[ClaimGrid]) -> Iterator[str]:
    for dispute in record.disputes:
        deciding = [g.summary for g in leading(grids) if g.claim.theory == dispute.theory]
        yield " ".join([clean(dispute.question), *(conclusion(summary) for summary in deciding)])


def _skipped(grids: Sequence[ClaimGrid]) -> Iterator[str]:
    """How many heads could not be measured, and why; claims that lead each have a line, others if they differ."""
    ahead = leading(grids)
    for grid in ahead:
        theory = grid.claim.theory
        following = [g for role in Role for g in others(grids, theory, role) if skipped_heads(g) != skipped_heads(grid)]
        yield _skips([grid], named=len(ahead) > 1)
        if grid is next(g for g in ahead if g.claim.theory == theory):
            alike: dict[str, list[ClaimGrid]] = {}
            for other in following:
                alike.setdefault(str(skipped_heads(other)), []).append(other)
            yield from (_skips(group, named=True) for group in alike.values())


def _skips(alike: Sequence[ClaimGrid], *, named: bool) -> str:
    statistics = " and ".join(clean(grid.claim.statistic) for grid in alike)
    whose = f"{clean(alike[0].claim.theory)}, {statistics}: " if named else ""
    reasons = skipped_heads(alike[0])
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
    return f"{whose}{sum(reasons.values())} of {alike[0].summary.heads} {alike[0].claim.unit}s" + (
        f" ({why})" if why else ""
    )


def _time(record: AuditRecord) -> str:
    timing = record.timing
    phases = {"check": timing.check, "forward and capture": timing.forward, **timing.theory}
    return f"{duration(timing.total)} ({', '.join(f'{clean(name)} {duration(s)}' for name, s in phases.items())})"


def print_theorems(theorems: Sequence[TheoremCheck], console: Console) -> None:
    """Print each statement with its residuals, what they may be, where it is said and the control that must fail."""
    layouts: list[tuple[list[Column], list[Text]]] = [
        (_theorem_columns(theorems), []),
        (_theorem_columns(theorems, inline=False), [_in_words(t) for t in theorems]),
        (_source_columns(theorems, inline=False), [_in_words(t, residuals=True) for t in theorems]),
    ]
    columns = first_that_fits([columns for columns, _ in layouts], width=console.width)
    beneath = next(texts for candidate, texts in layouts if candidate is columns)
    if theorems:
        print_columns(columns, console, beneath=beneath)
    print_line(Text(count_theorems(theorems), style="bold"), console)


def _in_words(theorem: TheoremCheck, *, residuals: bool = False) -> Text:
    text = Text(clean(theorem.statement)).append(f"\n{clean(theorem.citation)}", style="dim")
    text.append(f"\nmust fail: {clean(theorem.control)}", style="dim")
    if theorem.missing:
        text.append(f"\n{_unchecked(theorem)}", style="bold")
    elif residuals:
        control = short(theorem.control_residual)
        text.append(f"\nfp64 {_double(theorem)}, fp32 {_single(theorem)}, control {control}", style="dim")
    return text


def _unchecked(theorem: TheoremCheck) -> str:
    return f"not checked: needs {clean(theorem.missing)}"


def _source_columns(theorems: Sequence[TheoremCheck], *, inline: bool) -> list[Column]:
    answers = tuple(
        Text(_unchecked(t) if inline else "-") if t.missing else Text("yes") if t.holds else Text("NO", "bold red")
        for t in theorems
    )
    return [
        Column(title="holds", cells=answers),
        *_id_column(theorems),
        text_column("source", [t.source for t in theorems], right=False),
    ]


def _id_column(theorems: Sequence[TheoremCheck]) -> list[Column]:
    return [text_column("id", [t.id for t in theorems], right=False)] if any(t.id for t in theorems) else []


def _theorem_columns(theorems: Sequence[TheoremCheck], *, inline: bool = True) -> list[Column]:
    holds, *source = _source_columns(theorems, inline=inline)
    statement = text_column("statement", [t.statement for t in theorems], right=False)
    control = text_column("must fail", [t.control for t in theorems], right=False)
    citation = text_column("said in", [t.citation for t in theorems], right=False)
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

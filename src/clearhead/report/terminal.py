"""An audit in a terminal of any width: all numbers, or at most forty lines with the verdicts first and last."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord, Fidelity
from clearhead.report.calibration import calibration_sentences, calibration_summary
from clearhead.report.charts import depth_in_words
from clearhead.report.columns import print_paragraph
from clearhead.report.grid import ClaimGrid, arrange, further_claims, leading, skipped_heads
from clearhead.report.terminal_tables import (
    print_head_table,
    print_leading_claims,
    print_other_claims,
    print_published_claims,
    print_verdict_table,
)
from clearhead.report.wording import (
    amount_of_memory,
    clean,
    control_draws,
    duration,
    evidence,
    headline,
    numbers,
    short,
    skip_sentence,
)
from clearhead.theories.theory import ModelValues, Role


def print_audit(record: AuditRecord, console: Console) -> None:
    """Print what was audited, the verdicts, the evidence that the capture is faithful, and the numbers of every head.

    Primary claims have a headline, a row and a number for every head; the other claims have a row each. No line is
    longer than the console is wide: narrow consoles get fewer columns and the heads in blocks.
    """
    grids = arrange(record.findings)
    leads = leading(grids)
    print_paragraph("audited", Text(_audited(record)), console)
    for grid in leads:
        text = Text().append(headline(grid.summary), style="bold").append(f" {evidence(grid.summary)}")
        print_paragraph("verdict", text, console)
    for note in record.notes:
        print_paragraph("note", Text(clean(note)), console)
    for theory, sentence in calibration_sentences(record).items():
        print_paragraph("calibrated", Text(clean(f"{theory}: {sentence}")), console)
    console.print()
    _print_checks(record, leads, console)
    console.print()
    if leads:
        print_leading_claims(leads, console)
    for grid in leads:
        console.print()
        title = f"{clean(grid.claim.theory)}, {clean(grid.claim.statistic)}"
        print_paragraph("", Text(title, style="bold"), console, indent=0)
        if all(cell.finding.verdict is Verdict.TRUE_BY_CONSTRUCTION for cell in grid.cells):
            verdict = f"{Verdict.TRUE_BY_CONSTRUCTION} in all {len(grid.cells)} {grid.claim.unit}s"
            print_paragraph("", Text(verdict), console, indent=0)
        else:
            print_head_table(grid, console)
    for theory in dict.fromkeys(grid.claim.theory for grid in grids):
        print_other_claims(further_claims(grids, theory, Role.SECONDARY), console)
        print_published_claims(further_claims(grids, theory, Role.PUBLISHED), console)
    console.print()
    for curve in record.curves:
        print_paragraph("depth", Text(depth_in_words(curve)), console)
    for line in _disputes(record, leads):
        print_paragraph("dispute", Text(line), console)
    for line in _skipped(grids):
        print_paragraph("skipped", Text(line), console)
    print_paragraph("time", Text(_time(record)), console)
    print_paragraph("memory", Text(f"peak {amount_of_memory(record.timing.peak_memory)}"), console)
    if leads:
        console.print()
        print_verdict_table(leads, console)


def _audited(record: AuditRecord) -> str:
    return (
        f"{clean(record.model)} on {clean(record.data)}; {record.inputs:,} inputs, {record.tokens:,} tokens; "
        f"{record.measured_claims} claims; clearhead {clean(record.version)}, {clean(record.created)}, "
        f"seed {record.seed}"
    )


def _print_checks(record: AuditRecord, leads: Sequence[ClaimGrid], console: Console) -> None:
    print_paragraph("fidelity", Text("\n".join(_fidelity(record.fidelity))), console)
    if record.fidelity.unseen:
        names = "; ".join(clean(name) for name in record.fidelity.unseen)
        text = f"attention modules not captured ({len(record.fidelity.unseen)}): {names}"
        print_paragraph("missing", Text(text), console)
    for line in _controls(leads):
        print_paragraph("controls", Text(line), console)
    for values in record.whole_model:
        print_paragraph("model", Text(_on_model(values)), console)


def _fidelity(fidelity: Fidelity) -> list[str]:
    interfaces = " and ".join(dict.fromkeys(clean(layer.interface) for layer in fidelity.layers))
    within = "within" if fidelity.swap_error <= fidelity.tolerance else "EXCEEDS"
    change, recomputed = short(fidelity.output_difference), short(fidelity.recompute_error)
    swapped, tolerance, control = short(fidelity.swap_error), short(fidelity.tolerance), short(fidelity.control_change)
    return [
        f"{_captured(fidelity)} captured through {interfaces or 'no interface'}; max |output - original| {change}; "
        f"recompute error {recomputed}",
        f"exact softmax swapped in: error {swapped} {within} tolerance {tolerance}; "
        f"uniform attention (control): change {control}",
    ]


def _captured(fidelity: Fidelity) -> str:
    heads = sorted({layer.heads for layer in fidelity.layers}) or [0]
    width = str(heads[0]) if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
    return f"{len(fidelity.layers)} layers x {width} heads"


def _controls(leads: Sequence[ClaimGrid]) -> Iterator[str]:
    """Yield every control of the leading claims with its draws; claims with the same controls share a line."""
    lines: dict[str, None] = {}
    for grid in leads:
        measured = [c.finding for c in grid.cells if c.finding.verdict is not Verdict.NOT_APPLICABLE]
        seeds = {control.seed for finding in measured for control in finding.controls}
        theory = f"{clean(grid.claim.theory)}: " if len(leads) > 1 else ""
        names = [*control_draws(measured), *(f"seed {seed}" for seed in sorted(seeds))]
        lines |= {theory + "; ".join(names): None} if seeds else {}
    yield from lines


def _on_model(values: ModelValues) -> str:
    quantity = clean(values.quantity)
    if not values.layers:
        return f"{quantity}: not measured, {clean(values.reason)}"
    layers = " ".join(short(value) for value in values.layers)
    whole = f"whole model {short(values.whole)} ({clean(values.control_name)} {short(values.control)})"
    if values.reason:
        whole = f"whole model: {clean(values.reason)}"
    return f"{quantity}, by layer {layers}; {whole}"


def _disputes(record: AuditRecord, leads: Sequence[ClaimGrid]) -> Iterator[str]:
    for dispute in record.disputes:
        answers = [headline(g.summary) for g in leads if g.claim.theory == dispute.theory]
        yield " ".join([clean(dispute.question), "On this model:", *(answers or ["not measured."])])


def _skipped(grids: Sequence[ClaimGrid]) -> Iterator[str]:
    """Yield how many heads could not be measured, and why; claims that skip the same heads share a line."""
    groups: dict[tuple[str, str], list[ClaimGrid]] = {}
    for grid in grids:
        if reasons := skipped_heads(grid):
            groups.setdefault((grid.claim.theory, str(reasons)), []).append(grid)
    for group in groups.values():
        reasons, summary = skipped_heads(group[0]), group[0].summary
        why = ", ".join(f"{reason} ({count})" if len(reasons) > 1 else reason for reason, count in reasons.items())
        names = "; ".join(clean(grid.claim.statistic) for grid in group)
        heads = f"{sum(reasons.values())} of {summary.heads} {summary.claim.unit}s"
        yield f"{heads} for {clean(summary.claim.theory)} ({names}): {why}"
    if not groups:
        yield "no heads"


def _time(record: AuditRecord) -> str:
    timing = record.timing
    phases = {"check": timing.check, "forward and capture": timing.forward, **timing.theory}
    return f"{duration(timing.total)} ({', '.join(f'{clean(name)} {duration(s)}' for name, s in phases.items())})"


MOST_LINES = 40
PATHS = 4
"""Lines with the files of the report, which the command prints below."""
MOST_NOTES = 2


def print_summary(record: AuditRecord, console: Console) -> None:
    """Print what was audited, the verdicts in words, the checks, and the verdicts in a table.

    In terminals too narrow for forty lines with all numbers, the verdicts in words have none: the table has them.
    """
    leads = leading(arrange(record.findings))
    for with_numbers in (True, False):
        with console.capture() as captured:
            _print_all(record, leads, console, with_numbers=with_numbers)
        text = captured.get()
        if text.count("\n") + PATHS <= MOST_LINES:
            break
    console.file.write(text)


def _print_all(record: AuditRecord, leads: Sequence[ClaimGrid], console: Console, *, with_numbers: bool) -> None:
    print_paragraph("audited", Text(_audited_briefly(record)), console)
    console.print()
    for grid in leads:
        text = Text(headline(grid.summary), style="bold")
        if with_numbers:
            text.append(f" {skip_sentence(grid.summary, grid.reasons) or numbers(grid.summary)}", style="not bold")
        print_paragraph("verdict", text, console)
    for note in record.notes[:MOST_NOTES]:
        print_paragraph("note", Text(clean(note)), console)
    if len(record.notes) > MOST_NOTES:
        print_paragraph("note", Text(f"{len(record.notes) - MOST_NOTES} more; --details prints them"), console)
    if calibration := calibration_summary(record):
        print_paragraph("calibrated", Text(clean(calibration)), console)
    console.print()
    print_paragraph("capture", Text(_fidelity_briefly(record.fidelity)), console)
    if record.fidelity.unseen:
        missing = f"{len(record.fidelity.unseen)} attention modules were not captured; --details names them"
        print_paragraph("missing", Text(missing), console)
    memory = amount_of_memory(record.timing.peak_memory)
    print_paragraph("time", Text(f"{duration(record.timing.total)}; peak memory {memory}"), console)
    if leads:
        console.print()
        print_verdict_table(leads, console)


def _audited_briefly(record: AuditRecord) -> str:
    layers = record.fidelity.layers
    return (
        f"{clean(record.model)} on {clean(record.data)}; {record.inputs:,} inputs, {record.tokens:,} tokens; "
        f"{sum(layer.heads for layer in layers):,} heads in {len(layers)} layers"
    )


def _fidelity_briefly(fidelity: Fidelity) -> str:
    within = "within" if fidelity.swap_error <= fidelity.tolerance else "EXCEEDS"
    return (
        f"changes the output by {short(fidelity.output_difference)}; recomputed attention is off by "
        f"{short(fidelity.swap_error)}, {within} tolerance {short(fidelity.tolerance)}"
    )

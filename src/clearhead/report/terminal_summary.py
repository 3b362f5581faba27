"""An audit in at most forty lines of a terminal: the verdicts first and last."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from clearhead.audit.record import AuditRecord, Fidelity
from clearhead.report.calibration import calibration_summary
from clearhead.report.claim_tables import print_verdict_table
from clearhead.report.columns import print_paragraph
from clearhead.report.grid import ClaimGrid, arrange, leading
from clearhead.report.wording import amount_of_memory, clean, duration, headline, numbers, short, skip_sentence

__all__ = ["MOST_LINES", "print_summary"]

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
    print_paragraph("audited", Text(_audited(record)), console)
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
    print_paragraph("capture", Text(_fidelity(record.fidelity)), console)
    if record.fidelity.unseen:
        missing = f"{len(record.fidelity.unseen)} attention modules were not captured; --details names them"
        print_paragraph("missing", Text(missing), console)
    memory = amount_of_memory(record.timing.peak_memory)
    print_paragraph("time", Text(f"{duration(record.timing.total)}; peak memory {memory}"), console)
    if leads:
        console.print()
        print_verdict_table(leads, console)


def _audited(record: AuditRecord) -> str:
    layers = record.fidelity.layers
    return (
        f"{clean(record.model)} on {clean(record.data)}; {record.inputs:,} inputs, {record.tokens:,} tokens; "
        f"{sum(layer.heads for layer in layers):,} heads in {len(layers)} layers"
    )


def _fidelity(fidelity: Fidelity) -> str:
    within = "within" if fidelity.swap_error <= fidelity.tolerance else "EXCEEDS"
    return (
        f"changes the output by {short(fidelity.output_difference)}; recomputed attention is off by "
        f"{short(fidelity.swap_error)}, {within} tolerance {short(fidelity.tolerance)}"
    )

"""An audit as a short text and as an HTML fragment for notebooks: the verdicts of the leading claims."""

from collections.abc import Iterator

from markupsafe import Markup

from clearhead.audit.record import AuditRecord
from clearhead.report.grid import arrange, leading
from clearhead.report.wording import clean, evidence, headline

__all__ = ["notebook_html", "summary_text"]


def summary_text(record: AuditRecord) -> str:
    """Return what was audited and one line per leading claim."""
    lines = [_audited(record), *(f"- {verdict} {numbers}" for verdict, numbers in _verdicts(record))]
    return "\n".join([*lines, *(f"note: {clean(note)}" for note in record.notes)])


def notebook_html(record: AuditRecord) -> str:
    """Return the same as an HTML fragment without scripts or styles; every string of the record is escaped."""
    verdicts = Markup("").join(
        Markup("<li><b>{}</b> {}</li>").format(verdict, numbers) for verdict, numbers in _verdicts(record)
    )
    notes = Markup("").join(Markup("<p>Note: {}</p>").format(clean(note)) for note in record.notes)
    return str(Markup("<div><p>{}</p><ul>{}</ul>{}</div>").format(_audited(record), verdicts, notes))


def _audited(record: AuditRecord) -> str:
    layers = record.fidelity.layers
    return (
        f"Audit of {clean(record.model)} on {clean(record.data)}: {len(layers)} layers, "
        f"{sum(layer.heads for layer in layers)} heads, {record.inputs:,} inputs"
    )


def _verdicts(record: AuditRecord) -> Iterator[tuple[str, str]]:
    for grid in leading(arrange(record.findings)):
        yield headline(grid.summary), evidence(grid.summary)

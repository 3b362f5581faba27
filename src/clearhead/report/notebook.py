"""An audit as a short text and as an HTML fragment for notebooks: the verdicts of the leading claims."""

from collections.abc import Iterable, Iterator

from markupsafe import Markup

from clearhead.audit.finding_table import FindingTable
from clearhead.audit.findings import Finding
from clearhead.audit.record import AuditRecord
from clearhead.rendering import renders
from clearhead.report.grid import arrange, leading
from clearhead.report.wording import clean, evidence, headline, meaning, number, span


@renders(AuditRecord, "text")
def summary_text(record: AuditRecord) -> str:
    """Return what was audited and one line per leading claim."""
    lines = [_audited(record), *(f"- {verdict} {numbers}" for verdict, numbers, _ in _verdicts(record))]
    return "\n".join([*lines, *(f"note: {clean(note)}" for note in record.notes)])


@renders(AuditRecord, "html")
def notebook_html(record: AuditRecord) -> str:
    """Return the same, and what each verdict means, as an HTML fragment without scripts or styles.

    Every string of the record is escaped.
    """
    verdicts = Markup("").join(
        Markup("<li><b>{}</b> {}{}</li>").format(verdict, numbers, Markup("<p>{}</p>").format(means) if means else "")
        for verdict, numbers, means in _verdicts(record)
    )
    notes = Markup("").join(Markup("<p>Note: {}</p>").format(clean(note)) for note in record.notes)
    return str(Markup("<div><p>{}</p><ul>{}</ul>{}</div>").format(_audited(record), verdicts, notes))


@renders(FindingTable, "html")
def findings_html(findings: FindingTable, *, limit: int = 100) -> str:
    """Return findings as an HTML table without scripts or styles, at most `limit` rows; every string is escaped."""
    names = ("theory", "statistic", "layer", "head", "value", "95 % interval", "control", "predicted", "verdict")
    rows = Markup("").join(_row("td", _cells(finding)) for finding in findings.findings[:limit])
    note = f"{len(findings) - limit:,} more rows: to_pandas() has all" if len(findings) > limit else ""
    table = Markup("<table><thead>{}</thead><tbody>{}</tbody></table>").format(_row("th", names), rows)
    return str(Markup("<div>{}{}</div>").format(table, Markup("<p>{}</p>").format(note) if note else ""))


def _row(tag: str, cells: Iterable[str]) -> Markup:
    opened, closed = Markup(f"<{tag}>"), Markup(f"</{tag}>")
    return Markup("<tr>{}</tr>").format(Markup("").join(opened + cell + closed for cell in cells))


def _cells(finding: Finding) -> tuple[str, ...]:
    control = finding.deciding_control
    return (
        clean(finding.claim.theory),
        clean(finding.claim.statistic),
        str(finding.layer),
        str(finding.head),
        number(finding.value),
        span(finding.interval),
        f"{number(control.value)} ({clean(control.name)})" if control.draws else "-",
        number(finding.predicted),
        str(finding.verdict),
    )


def _audited(record: AuditRecord) -> str:
    layers = record.fidelity.layers
    return (
        f"Audit of {clean(record.model)} on {clean(record.data)}: {len(layers)} layers, "
        f"{sum(layer.heads for layer in layers)} heads, {record.inputs:,} inputs"
    )


def _verdicts(record: AuditRecord) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict, its numbers and its meaning for each leading claim."""
    for grid in leading(arrange(record.findings)):
        means = meaning(grid.summary, record.words.get(grid.claim.theory))
        yield headline(grid.summary), evidence(grid.summary), clean(means)

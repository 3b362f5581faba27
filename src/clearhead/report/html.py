"""An audit as one page: no network, no outside file, and nothing in it can run but the page's own script."""

import base64
import hashlib
import math
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.report.depth import depth_figure
from clearhead.report.dispute import conclusion, summary_table, view_dispute
from clearhead.report.drawing import colour_bar, maps_of_heads, styles_of_shades
from clearhead.report.grid import Cell, arrange, heads_above_chance, leading, others
from clearhead.report.page_data import page_data
from clearhead.report.picture import picture_of_summary
from clearhead.report.wording import (
    amount_of_memory,
    clean,
    duration,
    hardest,
    number,
    place,
    reason,
    sentence,
    span,
)
from clearhead.theories.theory import Role

__all__ = ["render_html"]

_FILTERS = {
    "above": heads_above_chance,
    "clean": clean,
    "conclusion": conclusion,
    "duration": duration,
    "hardest": hardest,
    "memory": amount_of_memory,
    "number": number,
    "sentence": sentence,
    "span": span,
    "finite": lambda value: value if math.isfinite(value) else 0.0,
}


def render_html(record: AuditRecord) -> str:
    """Return the report as the text of an HTML file.

    Every string of the record is escaped. The content security policy admits one script and one style sheet, by their
    hashes, and no address at all; without scripts the maps, the dispute and the tables of the primary claims still
    show, and a row for every claim.
    """
    grids = arrange(record.findings)
    maps, hosts = maps_of_heads(grids)
    ahead = leading(grids)
    style = f"\n{_file('report.css')}{styles_of_shades()}\n"
    script = f"\n{_file('report.js')}"
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_file),
    )
    environment.filters.update(_FILTERS)
    return environment.get_template("template.html.j2").render(
        record=record,
        grids=grids,
        at={grid.claim: i for i, grid in enumerate(grids)},
        leading=ahead,
        maps=maps,
        pictures=[picture_of_summary(grid) for grid in ahead],
        disputes=[view_dispute(dispute, grids) for dispute in record.disputes],
        groups=[
            (theory, role, found)
            for theory in dict.fromkeys(grid.claim.theory for grid in grids)
            for role in Role
            if (found := others(grids, theory, role))
        ],
        figures=[depth_figure(curve) for curve in record.curves],
        everything=summary_table([grid.summary for grid in grids]),
        facts={cell.index: _facts(cell) for heat in maps for cell in heat.grid.cells},
        verdicts=list(Verdict),
        present={cell.finding.verdict for grid in grids for cell in grid.cells},
        colours=colour_bar(),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script=script, style=style),
        data=page_data(grids, maps, hosts),
    )


def _file(name: str) -> str:
    return (files("clearhead.report") / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(*, script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _facts(cell: Cell) -> dict[str, str]:
    """What the map and the table say of one head without a script, by the names that the page gives them."""
    finding = cell.finding
    return {
        "place": place(finding),
        "name": clean(finding.name),
        "value": number(finding.value),
        "interval": span(finding.interval),
        "chance": number(finding.chance.value),
        "range": span(finding.chance.range),
        "control": clean(finding.chance.control),
        "exact": number(finding.exact),
        "agreement": number(finding.agreement),
        "p": number(finding.p_value),
        "adjusted": number(cell.adjusted),
        "inputs": f"{finding.inputs:,}",
        "skipped": f"{finding.skipped:,}" + (f" ({reason(finding)})" if reason(finding) else ""),
        "verdict": str(finding.verdict),
    }

"""An audit as one page: no network, no outside file, and nothing in it can run but the page's own script."""

import base64
import hashlib
import json
import math
from dataclasses import astuple
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from clearhead.findings import Verdict
from clearhead.record import AuditRecord
from clearhead.report.drawing import colour_bar, map_of_heads, picture_of, picture_of_summary, styles_for_dark_pages
from clearhead.report.grid import Cell, ClaimGrid, arrange, heads_above_chance
from clearhead.report.wording import (
    RULES,
    agreement,
    amount_of_memory,
    clean,
    duration,
    number,
    reason,
    sentence,
    span,
)

__all__ = ["render_html"]

_FILTERS = {
    "agreement": agreement,
    "clean": clean,
    "duration": duration,
    "memory": amount_of_memory,
    "number": number,
    "sentence": sentence,
    "span": span,
    "finite": lambda value: value if math.isfinite(value) else 0.0,
}


def render_html(record: AuditRecord) -> str:
    """Return the report as the text of an HTML file.

    Every string of the record is escaped. The content security policy admits one script and one style sheet, by their
    hashes, and no address at all; without scripts the map and the table of findings still show.
    """
    grids = arrange(record.findings)
    maps = [map_of_heads(grid) for grid in grids]
    style = f"\n{_file('report.css')}@media (prefers-color-scheme: dark) {{{styles_for_dark_pages(maps)}}}\n"
    script = f"\n{_file('report.js')}"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(_FILTERS)
    return environment.from_string(_file("template.html.j2")).render(
        record=record,
        maps=maps,
        pictures=[picture_of_summary(grid) for grid in grids],
        above=[heads_above_chance(grid.summary) for grid in grids],
        facts={cell.index: _facts(cell) for grid in grids for cell in grid.cells},
        verdicts=list(Verdict),
        present={cell.finding.verdict for grid in grids for cell in grid.cells},
        colours=colour_bar(),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script=script, style=style),
        data=_data_block(grids),
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
    """What the tooltip, the drawer and the table say of one head, by the names that the page gives them."""
    finding = cell.finding
    return {
        "place": f"Layer {finding.layer}, head {finding.head}",
        "name": clean(finding.name),
        "value": number(finding.value),
        "interval": span(finding.interval),
        "chance": number(finding.chance.value),
        "range": span(finding.chance.range),
        "exact": number(finding.claim.exact),
        "agreement": number(finding.agreement),
        "agreement_interval": span(finding.agreement_interval),
        "p": number(finding.p_value),
        "adjusted": number(cell.adjusted),
        "inputs": f"{finding.inputs:,}",
        "skipped": f"{finding.skipped:,}" + (f" ({reason(finding)})" if reason(finding) else ""),
        "control": f"{clean(finding.chance.control)}, {finding.chance.draws:,} draws, seed {finding.chance.seed}",
        "verdict": str(finding.verdict),
    }


def _data_block(grids: list[ClaimGrid]) -> Markup:
    """The facts for the page's script, as JSON that cannot end its own element."""
    claims = [
        {name: clean(getattr(grid.claim, name)) for name in ("theory", "statistic", "statement", "formula", "citation")}
        for grid in grids
    ]
    findings: dict[int, dict[str, Any]] = {
        cell.index: {"claim": i, "picture": astuple(picture_of(cell.finding))[:-1], **_facts(cell)}
        for i, grid in enumerate(grids)
        for cell in grid.cells
    }
    rules = {str(verdict): rule for verdict, rule in RULES.items()}
    text = json.dumps({"claims": claims, "findings": findings, "rules": rules}, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))

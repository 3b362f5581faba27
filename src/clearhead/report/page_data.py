"""The findings of all claims for the page's script, in little space.

Every column is one string: the entries of all heads, in the order of the map, separated by spaces. With some thirty
claims on hundreds of heads, this takes a tenth of the space of a list of named values for each finding.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from clearhead.audit.findings import Finding, NoEvidence, Verdict
from clearhead.audit.record import AuditRecord
from clearhead.numerics.moments import Interval
from clearhead.report.grid import ClaimGrid
from clearhead.report.head_map import HeadMap, shade_of, square_text
from clearhead.report.page_inputs import extremes_of, is_grouped, shown_inputs, texts_of
from clearhead.report.rules import MARKS, RULES
from clearhead.report.wording import capitalised, clean, evidence, headline, number, skip_reason

__all__ = ["page_data"]

VERDICTS, KINDS = tuple(Verdict), tuple(NoEvidence)


def page_data(
    record: AuditRecord, grids: Sequence[ClaimGrid], maps: Sequence[HeadMap], map_of: Sequence[int]
) -> Markup:
    """Return the findings and shown inputs as JSON; `map_of` has the index of each claim's map.

    Characters that could end the element, or a line of script, are escaped; the text is ASCII.
    """
    extremes = [extremes_of(grid, record.samples) for grid in grids]
    reasons = _numbered(skip_reason(cell.finding) for grid in grids for cell in grid.cells)
    controls = _numbered(c.name for grid in grids for cell in grid.cells for c in cell.finding.controls)
    data = {
        "claims": [
            {**_claim(grid, index, reasons, controls), "extremes": column, "grouped": is_grouped(grid, record)}
            for grid, index, column in zip(grids, map_of, extremes, strict=True)
        ],
        **shown_inputs(record),
        "texts": texts_of(record, extremes),
        "maps": [_map(head_map) for head_map in maps],
        "controls": [clean(name) for name in controls],
        "reasons": list(reasons),
        "kinds": [str(kind) for kind in KINDS],
        "verdicts": [{"name": v.name.lower(), "words": str(v), "rule": RULES[v], "mark": MARKS[v]} for v in VERDICTS],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _numbered(texts: Iterable[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def _map(head_map: HeadMap) -> dict[str, Any]:
    return {
        "layer": _column(head_map.grid, lambda f: str(f.layer)),
        "head": _column(head_map.grid, lambda f: str(f.head)),
        "row": " ".join(str(i) for i, (_, squares) in enumerate(head_map.rows) for _ in squares),
        "names": [clean(row.name) for row, _ in head_map.rows],
    }


_TEXTS = ("theory", "statistic", "formula", "citation")


def _claim(grid: ClaimGrid, map_index: int, reasons: dict[str, int], controls: dict[str, int]) -> dict[str, Any]:
    def low(interval: Interval) -> str:
        return number(min(interval.low, interval.high))

    def high(interval: Interval) -> str:
        return number(max(interval.low, interval.high))

    columns: dict[str, Callable[[Finding], str]] = {
        "value": lambda f: number(f.value),
        "low": lambda f: low(f.interval),
        "high": lambda f: high(f.interval),
        "predicted": lambda f: number(f.predicted),
        "agreement": lambda f: number(f.agreement),
        "agreement_low": lambda f: low(f.agreement_interval),
        "agreement_high": lambda f: high(f.agreement_interval),
        "p": lambda f: number(f.p_value),
        "inputs": lambda f: f"{f.inputs:,}",
        "skipped": lambda f: f"{f.skipped:,}",
        "reason": lambda f: str(reasons[skip_reason(f)]),
        "verdict": lambda f: str(VERDICTS.index(f.verdict)),
        "kind": lambda f: "-" if f.no_evidence is None else str(KINDS.index(f.no_evidence)),
        "borderline": lambda f: str(int(f.borderline)),
        "closest": lambda f: str(controls[f.closest_control.name]) if f.closest_control.draws else "-",
        "deciding": lambda f: str(controls[f.deciding_control.name]) if f.deciding_control.draws else "-",
        "shade": shade_of,
        "text": lambda f: square_text(f) or "-",
    }
    return {
        **{name: clean(getattr(grid.claim, name)) for name in _TEXTS},
        "statement": capitalised(clean(grid.claim.statement)),
        "note": capitalised(clean(grid.claim.note)),
        "role": str(grid.claim.role),
        "unit": str(grid.claim.unit),
        "direction": grid.claim.direction is not None,
        "map": map_index,
        "percent": grid.claim.percent,
        "headline": headline(grid.summary),
        "evidence": evidence(grid.summary),
        "columns": {
            **{name: _column(grid, text) for name, text in columns.items()},
            "adjusted": " ".join(number(cell.finding.adjusted_p_value) for cell in grid.cells),
        },
        "controls": [_control(grid, name, i) for name, i in controls.items() if name in grid.summary.controls],
    }


def _control(grid: ClaimGrid, name: str, index: int) -> dict[str, Any]:
    """Return the columns of one control; a head without it has 0 draws."""
    controls = [next((c for c in cell.finding.controls if c.name == name), None) for cell in grid.cells]
    return {
        "control": index,
        "seed": " ".join(dict.fromkeys(str(c.seed) for c in controls if c is not None)),
        "value": " ".join("-" if c is None else number(c.value) for c in controls),
        "low": " ".join("-" if c is None else number(c.range.low) for c in controls),
        "high": " ".join("-" if c is None else number(c.range.high) for c in controls),
        "p": " ".join("-" if c is None else number(c.p_value) for c in controls),
        "draws": " ".join("0" if c is None else f"{c.draws:,}" for c in controls),
        "sample": " ".join("-" if c is None else ",".join(map(number, c.sample)) or "-" for c in controls),
    }


def _column(grid: ClaimGrid, text: Callable[[Finding], str]) -> str:
    return " ".join(text(cell.finding) for cell in grid.cells)

"""What the page's script knows: every finding of every claim, as columns of numbers that are already in words.

A column is one string with the entries of all heads, in the order of the map, separated by spaces. With some thirty
claims on hundreds of heads, this takes a tenth of what a list of named facts for each finding would.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from clearhead.audit.findings import Finding, Verdict
from clearhead.numerics.moments import Interval
from clearhead.report.drawing import HeatMap, shade_of, text_of
from clearhead.report.grid import ClaimGrid
from clearhead.report.wording import MARKS, RULES, clean, number, reason, sentence

__all__ = ["page_data"]

VERDICTS = tuple(Verdict)


def page_data(grids: Sequence[ClaimGrid], maps: Sequence[HeatMap], hosts: Sequence[int]) -> Markup:
    """Return the facts as JSON that cannot end its own element; `hosts` tells which map shows which claim."""
    reasons = _listed(reason(cell.finding) for grid in grids for cell in grid.cells)
    controls = _listed(chance.control for grid in grids for cell in grid.cells for chance in cell.finding.controls)
    data = {
        "claims": [_claim(grid, host, reasons, controls) for grid, host in zip(grids, hosts, strict=True)],
        "maps": [_places(heat) for heat in maps],
        "controls": [clean(name) for name in controls],
        "reasons": list(reasons),
        "verdicts": [{"name": v.name.lower(), "words": str(v), "rule": RULES[v], "mark": MARKS[v]} for v in VERDICTS],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _listed(texts: Iterable[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def _places(heat: HeatMap) -> dict[str, Any]:
    return {
        "layer": _column(heat.grid, lambda f: str(f.layer)),
        "head": _column(heat.grid, lambda f: str(f.head)),
        "row": " ".join(str(i) for i, (_, squares) in enumerate(heat.rows) for _ in squares),
        "names": [clean(row.name) for row, _ in heat.rows],
    }


_TEXTS = ("theory", "statistic", "statement", "formula", "citation", "note")


def _claim(grid: ClaimGrid, host: int, reasons: dict[str, int], controls: dict[str, int]) -> dict[str, Any]:
    def low(interval: Interval) -> str:
        return number(min(interval.low, interval.high))

    def high(interval: Interval) -> str:
        return number(max(interval.low, interval.high))

    columns: dict[str, Callable[[Finding], str]] = {
        "value": lambda f: number(f.value),
        "low": lambda f: low(f.interval),
        "high": lambda f: high(f.interval),
        "exact": lambda f: number(f.exact),
        "agreement": lambda f: number(f.agreement),
        "agreement_low": lambda f: low(f.agreement_interval),
        "agreement_high": lambda f: high(f.agreement_interval),
        "p": lambda f: number(f.p_value),
        "inputs": lambda f: f"{f.inputs:,}",
        "skipped": lambda f: f"{f.skipped:,}",
        "reason": lambda f: str(reasons[reason(f)]),
        "verdict": lambda f: str(VERDICTS.index(f.verdict)),
        "hardest": lambda f: str(controls[f.chance.control]) if f.chance.draws else "-",
        "shade": shade_of,
        "text": lambda f: text_of(f) or "-",
    }
    return {
        **{name: clean(getattr(grid.claim, name)) for name in _TEXTS},
        "role": str(grid.claim.role),
        "unit": str(grid.claim.unit),
        "sided": grid.claim.direction is not None,
        "map": host,
        "sentence": sentence(grid.summary),
        "columns": {
            **{name: _column(grid, words) for name, words in columns.items()},
            "adjusted": " ".join(number(cell.adjusted) for cell in grid.cells),
        },
        "controls": [_control(grid, name, i) for name, i in controls.items() if name in grid.summary.controls],
    }


def _control(grid: ClaimGrid, name: str, index: int) -> dict[str, Any]:
    """One control's columns; no draws where a head has not got it."""
    chances = [next((c for c in cell.finding.controls if c.control == name), None) for cell in grid.cells]
    return {
        "control": index,
        "seed": " ".join(dict.fromkeys(str(c.seed) for c in chances if c is not None)),
        "value": " ".join("-" if c is None else number(c.value) for c in chances),
        "low": " ".join("-" if c is None else number(c.range.low) for c in chances),
        "high": " ".join("-" if c is None else number(c.range.high) for c in chances),
        "p": " ".join("-" if c is None else number(c.p_value) for c in chances),
        "draws": " ".join("0" if c is None else f"{c.draws:,}" for c in chances),
    }


def _column(grid: ClaimGrid, words: Callable[[Finding], str]) -> str:
    return " ".join(words(cell.finding) for cell in grid.cells)

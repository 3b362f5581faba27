"""The findings of all claims and the shown inputs for the page's script, in little space.

Every column is one string: the entries of all heads, in the order of the map, separated by spaces. With some thirty
claims on hundreds of heads, this takes a tenth of the space of a list of named values for each finding.

A shown input has its tokens, its attention weights, the pictures of theories, and the extremes of each head.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from clearhead.audit.findings import Finding, NoEvidence, Verdict
from clearhead.audit.record import AuditRecord
from clearhead.audit.samples import ClaimSamples
from clearhead.audit.shown_inputs import ShownInput, ShownLayer
from clearhead.numerics.moments import Array, Interval
from clearhead.report.grid import ClaimGrid
from clearhead.report.head_map import HeadMap, shade_of, square_text
from clearhead.report.wording import MARKS, RULES, capitalised, clean, evidence, headline, number, skip_reason
from clearhead.theories.theory import Picture

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


EXTREMES = 3
"""Inputs with the highest and with the lowest values that are listed for each head."""
LINE_BREAKS = "\n\r\u2028\u2029"


def visible_text(text: str) -> str:
    """Return text from outside so that every character can be seen: control and direction characters become �.

    Tokens that are only spaces or line breaks become signs for them.
    """
    if not text.strip():
        return "".join("↵" if char in LINE_BREAKS else "␣" for char in text) or "(empty)"
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)


def shown_inputs(record: AuditRecord) -> dict[str, Any]:
    """Return the shown inputs and the titles of pictures, by theory."""
    pictures = [p for shown in record.shown for layer in shown.layers for p in layer.pictures]
    return {
        "inputs": [_input(shown, record.texts) for shown in record.shown],
        "pictures": {p.theory: {"title": p.title, "caption": p.caption, "line": p.line} for p in pictures},
    }


def _input(shown: ShownInput, texts: Sequence[str]) -> dict[str, Any]:
    text = texts[shown.number - 1] if shown.number <= len(texts) else ""
    return {
        "number": shown.number,
        "text": visible_text(text) if text else "",
        "tokens": [visible_text(token) for token in shown.tokens],
        "queries": list(shown.queries),
        "length": shown.length,
        "grid": None if shown.grid is None else list(shown.grid),
        "colours": None if shown.colours is None else _base64(shown.colours),
        "layers": {str(layer.layer): _layer(layer) for layer in shown.layers},
    }


def _layer(layer: ShownLayer) -> dict[str, Any]:
    return {
        "shape": list(layer.weights.shape),
        "weights": _base64(layer.weights),
        "pictures": {picture.theory: _bars(picture) for picture in layer.pictures},
    }


def _bars(picture: Picture) -> dict[str, Any]:
    return {"bars": _rows(picture.bars), "part": None if picture.part is None else _rows(picture.part)}


def _rows(values: Array) -> list[str]:
    """Return one string for every head."""
    return [" ".join(number(float(x), digits=2) for x in row if math.isfinite(x)) for row in values]


def _base64(array: NDArray[np.uint8]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def extremes_of(grid: ClaimGrid, samples: Sequence[ClaimSamples]) -> str:
    """Return the inputs with the highest and lowest values of every head, as in "3:0.41,0:0.38,7:0.36"; "-" if none.

    Inputs are counted from 0, highest first. With few inputs all are listed.
    """
    tables = _tables(grid, samples)
    return " ".join(_extremes(tables.get(c.finding.layer), c.finding.head) for c in grid.cells)


def is_grouped(grid: ClaimGrid, record: AuditRecord) -> bool:
    """Return whether the samples of a claim are groups of inputs."""
    return any(len(values) != record.inputs for values in _tables(grid, record.samples).values())


def _tables(grid: ClaimGrid, samples: Sequence[ClaimSamples]) -> dict[int, Array]:
    name = (grid.claim.theory, grid.claim.statistic)
    return {s.layer: s.values for s in samples if (s.claim.theory, s.claim.statistic) == name}


def _extremes(values: Array | None, head: int) -> str:
    if values is None or head >= values.shape[1]:
        return "-"
    column = values[:, head]
    order = [int(i) for i in np.argsort(-column, kind="stable") if math.isfinite(column[i])]
    chosen = order if len(order) <= 2 * EXTREMES else [*order[:EXTREMES], *order[-EXTREMES:]]
    return ",".join(f"{i}:{number(float(column[i]))}" for i in chosen) or "-"


def texts_of(record: AuditRecord, extremes: Sequence[str]) -> dict[str, str]:
    """Return the texts of the inputs that the extremes name, by number from 0."""
    entries = (entry for column in extremes for head in column.split(" ") if head != "-" for entry in head.split(","))
    wanted = sorted({int(entry.split(":")[0]) for entry in entries})
    return {str(i): visible_text(record.texts[i]) for i in wanted if i < len(record.texts) and record.texts[i]}

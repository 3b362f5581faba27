"""The inputs that a page shows, for its script: tokens, attention weights, pictures, and the extremes of each head."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.audit.record import AuditRecord
from clearhead.audit.samples import ClaimSamples
from clearhead.audit.shown_inputs import ShownInput, ShownLayer
from clearhead.numerics.moments import Array
from clearhead.report.grid import ClaimGrid
from clearhead.report.wording import number
from clearhead.theories.theory import Picture

__all__ = ["extremes_of", "is_grouped", "shown_inputs", "texts_of", "visible_text"]

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

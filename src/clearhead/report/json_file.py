"""An audit, or a list of checked theorems, as plain JSON values: the facts that the terminal and the page show."""

import dataclasses
import json
import math
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from clearhead.findings import Finding, Summary, Theorem
from clearhead.record import AuditRecord
from clearhead.report.grid import Cell, arrange, heads_above_chance

__all__ = ["AUDIT_FORMAT", "THEOREMS_FORMAT", "audit_as_json", "theorems_as_json", "write_json"]

AUDIT_FORMAT = "clearhead-audit/1"
THEOREMS_FORMAT = "clearhead-theorems/1"


def audit_as_json(record: AuditRecord) -> dict[str, Any]:
    """Return the whole record as values that any JSON reader takes.

    NaN and infinities become null, verdicts their text, intervals {"low", "high"}. Findings keep the record's order and
    carry what the record only implies: the agreement, its interval, and the p-value adjusted among the claim's heads.
    """
    grids = arrange(record.findings)
    cells = sorted((cell for grid in grids for cell in grid.cells), key=lambda cell: cell.index)
    return {
        "format": AUDIT_FORMAT,
        **{name: _plain(getattr(record, name)) for name in _SCALARS},
        "summaries": [_summary(grid.summary) for grid in grids],
        "findings": [_finding(cell) for cell in cells],
        "fidelity": _plain(record.fidelity),
        "symmetry": _plain(record.symmetry),
        "timing": _plain(record.timing),
    }


_SCALARS = ("model", "data", "version", "created", "seed", "inputs", "tokens")


def _finding(cell: Cell) -> dict[str, Any]:
    finding: Finding = cell.finding
    return {
        **_plain(finding),
        "agreement": _plain(finding.agreement),
        "agreement_interval": _plain(finding.agreement_interval),
        "p_value_adjusted": _plain(cell.adjusted),
    }


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        **_plain(summary),
        "measured": summary.measured,
        "above_chance": heads_above_chance(summary),
        "verdict": summary.verdict,
    }


def theorems_as_json(theorems: Sequence[Theorem]) -> dict[str, Any]:
    """Return the theorems, whether each holds, and how many do."""
    hold = sum(theorem.holds for theorem in theorems)
    return {
        "format": THEOREMS_FORMAT,
        "hold": hold,
        "do_not": len(theorems) - hold,
        "theorems": [{**_plain(theorem), "holds": theorem.holds} for theorem in theorems],
    }


def write_json(record: AuditRecord, path: str | Path) -> None:
    """Write the record to a file that ends in a line break."""
    text = json.dumps(audit_as_json(record), indent=1, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value

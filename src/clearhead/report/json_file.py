"""An audit, or a list of checked theorems, as plain JSON values: the facts that the terminal and the page show."""

import dataclasses
import json
import math
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from clearhead.audit.findings import Chance, Finding
from clearhead.audit.judging import Summary
from clearhead.audit.record import AuditRecord
from clearhead.report.grid import Cell, arrange, heads_above_chance
from clearhead.report.wording import hardest
from clearhead.theories.theory import Claim, TheoremCheck

__all__ = ["AUDIT_FORMAT", "THEOREMS_FORMAT", "audit_as_json", "audit_as_text", "theorems_as_json", "write_json"]

AUDIT_FORMAT = "clearhead-audit/2"
THEOREMS_FORMAT = "clearhead-theorems/1"


def audit_as_json(record: AuditRecord) -> dict[str, Any]:
    """Return the whole record as values that any JSON reader takes.

    NaN and infinities become null, verdicts and roles their text, intervals {"low", "high"}. Claims are listed once;
    summaries and findings name theirs by theory and statistic. Findings keep the record's order and carry what the
    record only implies: the hardest control (`chance`), the combined p-value and the same adjusted among the claim's
    heads, the agreement and its interval. Summaries name the controls that are `decisive`. Numbers of findings have
    the seven digits of single precision. Curves over depth have their model's line first.
    """
    grids = arrange(record.findings)
    cells = sorted((cell for grid in grids for cell in grid.cells), key=lambda cell: cell.index)
    return {
        "format": AUDIT_FORMAT,
        **{name: _plain(getattr(record, name)) for name in _SCALARS},
        "claims": [_plain(grid.claim) for grid in grids],
        "disputes": _plain(record.disputes),
        "summaries": [_summary(grid.summary) for grid in grids],
        "fidelity": _plain(record.fidelity),
        "symmetry": _plain(record.symmetry),
        "curves": _plain(record.curves),
        "notes": list(record.notes),
        "timing": _plain(record.timing),
        "findings": [_finding(cell) for cell in cells],
    }


_SCALARS = ("model", "data", "version", "created", "seed", "inputs", "tokens")


def _finding(cell: Cell) -> dict[str, Any]:
    finding: Finding = cell.finding
    entry = {
        **_name(finding.claim),
        "layer": finding.layer,
        "name": finding.name,
        "head": finding.head,
        "value": _plain(finding.value),
        "interval": _plain(finding.interval),
        "exact": _plain(finding.exact),
        "chance": finding.chance.control if finding.chance.draws else None,
        "controls": {chance.control: _control(chance) for chance in finding.controls},
        "p_value": _plain(finding.p_value),
        "p_value_adjusted": _plain(cell.adjusted),
        "agreement": _plain(finding.agreement),
        "agreement_interval": _plain(finding.agreement_interval),
        "inputs": finding.inputs,
        "skipped": finding.skipped,
        "reason": finding.reason,
        "verdict": str(finding.verdict),
    }
    return {name: _rounded(value) for name, value in entry.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _control(chance: Chance) -> dict[str, Any]:
    return {name: entry for name, entry in _plain(chance).items() if name not in ("control", "decisive")}


def _name(claim: Claim) -> dict[str, Any]:
    return {"theory": claim.theory, "statistic": claim.statistic}


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        **_name(summary.claim),
        **{name: entry for name, entry in _plain(summary).items() if name != "claim"},
        "hardest_control": hardest(summary) or None,
        "measured": summary.measured,
        "above_chance": heads_above_chance(summary),
        "verdict": summary.verdict,
    }


def theorems_as_json(theorems: Sequence[TheoremCheck]) -> dict[str, Any]:
    """Return the theorems, whether each holds, and how many do; one that could not be checked is neither."""
    hold = sum(theorem.holds for theorem in theorems)
    unchecked = sum(bool(theorem.missing) for theorem in theorems)
    return {
        "format": THEOREMS_FORMAT,
        "hold": hold,
        "do_not": len(theorems) - hold - unchecked,
        "not_checked": unchecked,
        "theorems": [{**_plain(theorem), "holds": None if theorem.missing else theorem.holds} for theorem in theorems],
    }


def audit_as_text(record: AuditRecord) -> str:
    """Return the record as JSON text: indented, but with one line for each finding, of which there are many."""
    values = audit_as_json(record)
    findings = values.pop("findings")
    head = json.dumps(values, indent=1, allow_nan=False).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in findings)
    return f'{head},\n "findings": [\n{lines}\n ]\n}}'


def write_json(record: AuditRecord, path: str | Path) -> None:
    """Write the record to a file that ends in a line break."""
    Path(path).write_text(audit_as_text(record) + "\n", encoding="utf-8")


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

"""An audit as plain JSON values: the facts that the terminal and the page show."""

import dataclasses
import json
import math
from enum import Enum
from pathlib import Path
from typing import Any

from clearhead.audit.findings import ControlResult, Finding
from clearhead.audit.findings_record import AUDIT_FORMAT
from clearhead.audit.record import AuditRecord
from clearhead.numerics.moments import Array
from clearhead.rendering import renders
from clearhead.report.grid import Cell, ClaimGrid, arrange, beyond_controls
from clearhead.report.wording import closest_control, deciding_control, evidence, headline
from clearhead.theories.theory import Claim, ModelValues

__all__ = ["audit_as_json", "audit_as_text", "plain", "write_json"]


@renders(AuditRecord, "values")
def audit_as_json(record: AuditRecord) -> dict[str, Any]:
    """Return the whole record as values that any JSON reader accepts, at full precision.

    NaN and infinities become null, verdicts and roles their text, intervals {"low", "high"}. Claims are listed once;
    summaries and findings name theirs by theory and statistic. Findings keep the order of the record. Each has its
    closest control, the one that decides, the combined p-value and the same adjusted over the heads of its claim, the
    agreement and its interval. In summaries, `control` is the median of the closest control over heads, and
    `deciding_control` the one that headlines name. Curves over depth have the line of the model first.
    """
    grids = arrange(record.findings)
    cells = sorted((cell for grid in grids for cell in grid.cells), key=lambda cell: cell.index)
    return {
        "format": AUDIT_FORMAT,
        **{name: plain(getattr(record, name)) for name in _SCALARS},
        "claims": [plain(grid.claim) for grid in grids],
        "disputes": plain(record.disputes),
        "summaries": [_summary(grid) for grid in grids],
        "fidelity": plain(record.fidelity),
        "whole_model": [_on_model(values) for values in record.whole_model],
        "theories": plain(record.theories),
        "curves": plain(record.curves),
        "pictures": _pictures(record),
        "notes": list(record.notes),
        "baselines": dict(record.baselines),
        "timing": plain(record.timing),
        "findings": [_finding(cell) for cell in cells],
    }


_SCALARS = ("model", "data", "version", "created", "seed", "measured_claims", "inputs", "tokens")


def _pictures(record: AuditRecord) -> list[dict[str, Any]]:
    """Return the theories' pictures of the first input that the report shows, such as spectra, by layer."""
    return [
        {
            **{name: plain(getattr(picture, name)) for name in ("theory", "title", "caption", "line")},
            "input": shown.number,
            "layer": layer.layer,
            "bars": _rounded(picture.bars),
            "part": None if picture.part is None else _rounded(picture.part),
        }
        for shown in record.shown[:1]
        for layer in shown.layers
        for picture in layer.pictures
    ]


def _on_model(values: ModelValues) -> dict[str, Any]:
    names = {"control": "unrelated"}
    shown = ("theory", "layers", "whole", "control", "inputs", "draws", "reason")
    return {names.get(name, name): plain(getattr(values, name)) for name in shown}


def _rounded(numbers: Array) -> Any:
    """Return numbers that are only drawn, to four digits."""
    return plain([[float(f"{number:.4g}") for number in row] for row in numbers.tolist()])


def _claim_name(claim: Claim) -> dict[str, Any]:
    return {"theory": claim.theory, "statistic": claim.statistic}


def _summary(grid: ClaimGrid) -> dict[str, Any]:
    summary = grid.summary
    closest = closest_control(summary)
    return {
        **_claim_name(summary.claim),
        "headline": headline(summary),
        "evidence": evidence(summary),
        "verdict": summary.verdict,
        "verdicts": plain(summary.verdicts),
        "no_evidence": plain(summary.no_evidence),
        "borderline": summary.borderline,
        "detectable": plain(summary.detectable),
        "heads": summary.heads,
        "measured": summary.measured,
        "beyond_controls": beyond_controls(summary),
        "median": plain(summary.median),
        "interval": plain(summary.interval),
        "predicted": plain(summary.predicted),
        "closest_control": closest or None,
        "control": plain(summary.controls.get(closest)),
        "deciding_control": deciding_control(summary) or None,
        "controls": plain(summary.controls),
        "control_ranges": {name: plain(grid.control_range(name)) for name in summary.controls},
        "decisive": list(summary.decisive),
    }


def _finding(cell: Cell) -> dict[str, Any]:
    finding: Finding = cell.finding
    return {
        **_claim_name(finding.claim),
        "layer": finding.layer,
        "name": finding.name,
        "head": finding.head,
        "value": plain(finding.value),
        "interval": plain(finding.interval),
        "predicted": plain(finding.predicted),
        "closest_control": finding.closest_control.name if finding.closest_control.draws else None,
        "deciding_control": finding.deciding_control.name if finding.deciding_control.draws else None,
        "controls": {control.name: _control(control) for control in finding.controls},
        "p_value": plain(finding.p_value),
        "p_value_adjusted": plain(finding.adjusted_p_value),
        "agreement": plain(finding.agreement),
        "agreement_interval": plain(finding.agreement_interval),
        "inputs": finding.inputs,
        "skipped": finding.skipped,
        "reason": finding.reason,
        "verdict": str(finding.verdict),
        "no_evidence": None if finding.no_evidence is None else str(finding.no_evidence),
        "borderline": finding.borderline,
        "detectable": plain(finding.detectable),
    }


def _control(control: ControlResult) -> dict[str, Any]:
    return {
        name: value for name, value in plain(control).items() if name in ("value", "range", "draws", "seed", "p_value")
    }


def audit_as_text(record: AuditRecord) -> str:
    """Return the record as JSON text: indented, with one line for each of the many findings."""
    values = audit_as_json(record)
    findings = values.pop("findings")
    head = json.dumps(values, indent=1, allow_nan=False).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in findings)
    return f'{head},\n "findings": [\n{lines}\n ]\n}}'


def write_json(record: AuditRecord, path: str | Path) -> None:
    """Write the record to a JSON file that ends in a line break."""
    Path(path).write_text(audit_as_text(record) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """Return a value as JSON values: NaN and infinities as None, enums as their text, dataclasses as mappings."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value

"""The record findings.json, as far as commands read it back: `figure`, `rerun` and `compare`."""

from pathlib import Path
from typing import TypedDict

from clearhead.audit.findings import Verdict
from clearhead.errors import InputError
from clearhead.records import RecordError, read_record
from clearhead.storage import parse_json, read_bytes

__all__ = ["AUDIT_FORMAT", "FindingsRecord", "read_findings_file"]

AUDIT_FORMAT = "clearhead-audit/3"
MAX_FINDINGS_BYTES = 2**30
MAX_CELLS = 2**20
"""Layers times heads."""
REMEDY = "audit the model again"


class SpanEntry(TypedDict):
    """An interval; None for an end without a number."""

    low: float | None
    high: float | None


class ControlEntry(TypedDict):
    """A control of a finding."""

    value: float | None
    range: SpanEntry | None


class FindingEntry(TypedDict):
    """One claim at one head."""

    theory: str
    statistic: str
    layer: int
    head: int
    verdict: Verdict
    value: float | None
    interval: SpanEntry | None
    predicted: float | None
    controls: dict[str, ControlEntry]
    deciding_control: str | None


class ClaimEntry(TypedDict):
    """A claim of a theory."""

    theory: str
    statistic: str
    role: str


class TheoryEntry(TypedDict):
    """A theory of the audit."""

    key: str
    title: str


class LineEntry(TypedDict):
    """One line of a curve: a value and an interval for each layer."""

    name: str
    values: list[float | None]
    intervals: list[SpanEntry]


class CurveEntry(TypedDict):
    """A curve over depth."""

    theory: str
    title: str
    quantity: str
    layers: list[int]
    lines: list[LineEntry]


class PictureEntry(TypedDict):
    """A picture of a layer: bars of every head, and the part of each that is filled."""

    theory: str
    title: str
    layer: int
    bars: list[list[float | None]]
    part: list[list[float | None]] | None


class FindingsRecord(TypedDict):
    """The entries of findings.json that commands use. There are others."""

    format: str
    model: str
    data: str
    seed: int
    inputs: int
    theories: list[TheoryEntry]
    claims: list[ClaimEntry]
    findings: list[FindingEntry]
    curves: list[CurveEntry]
    pictures: list[PictureEntry]


def read_findings_file(path: Path) -> FindingsRecord:
    """Return the content of findings.json. Raise FileNotFoundError without it, InputError if it is something else."""
    content = parse_json(read_bytes(path, max_bytes=MAX_FINDINGS_BYTES), path)
    if not isinstance(content, dict) or content.get("format") != AUDIT_FORMAT:
        raise InputError(f"{path} does not hold the findings of an audit ({AUDIT_FORMAT}); {REMEDY}")
    record = read_record(FindingsRecord, content, path, remedy=REMEDY)
    _require_fitting(record, path)
    return record


def _require_fitting(record: FindingsRecord, path: Path) -> None:
    """Raise RecordError if lists that belong together are of different lengths, or a map of heads were huge."""
    layers, heads = ({finding[key] for finding in record["findings"]} for key in ("layer", "head"))
    if len(layers) * len(heads) > MAX_CELLS:
        raise RecordError(f"{path} cannot be read: {len(layers)} layers and {len(heads)} heads are too many; {REMEDY}")
    for curve in record["curves"]:
        lengths = {len(line[key]) for line in curve["lines"] for key in ("values", "intervals")}
        if not lengths <= {len(curve["layers"])}:
            raise RecordError(
                f"{path} cannot be read: the curve {curve['title']} has values for other layers; {REMEDY}"
            )
    for picture in record["pictures"]:
        if picture["part"] is not None and len(picture["part"]) != len(picture["bars"]):
            raise RecordError(f"{path} cannot be read: a picture is filled for other heads than it has; {REMEDY}")

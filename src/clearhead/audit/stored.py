"""An audit read back from the folder of its report, as far as a comparison needs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from clearhead.audit.findings import Verdict
from clearhead.audit.findings_record import FindingsRecord, read_findings_file
from clearhead.audit.manifest import FINDINGS_FILE, MANIFEST_FILE, Manifest
from clearhead.audit.samples import SAMPLES_FILE, ClaimSamples, read_samples
from clearhead.errors import InputError
from clearhead.records import read_record
from clearhead.storage import sha256_of_file
from clearhead.stored_json import read_json

__all__ = ["StoredAudit", "VerdictTable", "read_audit", "read_findings", "read_manifest", "report_folder_of"]

VerdictTable = dict[tuple[str, str, int, int], Verdict]
"""Verdicts by theory, statistic, layer and head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAudit:
    """What was audited, its manifest, the values input by input, and the verdicts."""

    model: str
    data: str
    seed: int
    inputs: int
    manifest: Manifest
    samples: tuple[ClaimSamples, ...]
    verdicts: VerdictTable


class _Listed(TypedDict):
    files: dict[str, str]


def report_folder_of(path: Path) -> Path | None:
    """Return the report folder that a path is or whose file it is; None if it is neither."""
    folder = path.parent if path.is_file() and path.name in (FINDINGS_FILE, MANIFEST_FILE, SAMPLES_FILE) else path
    return folder if all((folder / name).is_file() for name in (MANIFEST_FILE, FINDINGS_FILE)) else None


def read_audit(path: str | Path) -> StoredAudit:
    """Read the audit of a report folder, or of a file in it. Raise InputError if a file is missing or damaged."""
    folder = report_folder_of(Path(path))
    if folder is None:
        raise InputError(f"{path} is not the report of an audit; clearhead audit writes one, with {MANIFEST_FILE}")
    manifest, files = read_manifest(folder)
    content = read_findings(folder, files)
    check_file(folder, SAMPLES_FILE, files)
    return StoredAudit(
        model=content["model"],
        data=content["data"],
        seed=content["seed"],
        inputs=content["inputs"],
        manifest=manifest,
        samples=read_samples(folder / SAMPLES_FILE),
        verdicts={(f["theory"], f["statistic"], f["layer"], f["head"]): f["verdict"] for f in content["findings"]},
    )


def read_manifest(folder: Path) -> tuple[Manifest, dict[str, str]]:
    """Return the manifest of a report folder, and the checksums of the other files."""
    try:
        stored = read_json(folder / MANIFEST_FILE)
    except FileNotFoundError:
        raise InputError(
            f"there is no manifest {folder / MANIFEST_FILE}; clearhead audit writes one into its report folder"
        ) from None
    listed = read_record(_Listed, stored, folder / MANIFEST_FILE, remedy="audit the model again")
    return Manifest.from_dict(stored), listed["files"]


def read_findings(folder: Path, files: dict[str, str]) -> FindingsRecord:
    """Return the content of findings.json, which must be the file that the manifest lists."""
    check_file(folder, FINDINGS_FILE, files)
    return read_findings_file(folder / FINDINGS_FILE)


def check_file(folder: Path, name: str, files: dict[str, str]) -> None:
    """Raise InputError if a file of a report is missing or not the one that the manifest lists."""
    try:
        fits = sha256_of_file(folder / name) == files.get(name)
    except FileNotFoundError:
        raise InputError(f"{folder / name} is missing; restore it, or audit the model again") from None
    if not fits:
        raise InputError(
            f"{folder / name} does not match {MANIFEST_FILE}: it was edited or belongs to another audit; restore it"
        )

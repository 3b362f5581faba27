"""`clearhead rerun`: repeat the audit of a manifest, say what it depends on that changed, and compare all findings."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.audit.manifest import MANIFEST_FILE, Manifest
from clearhead.cli.audit_command import AuditRequest, run_audit
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError
from clearhead.report.folder import FINDINGS_FILE, WrittenReport
from clearhead.report.json_file import audit_as_json
from clearhead.report.repetition import Repetition, compare_findings
from clearhead.report.wording import clean
from clearhead.storage import parse_json, read_bytes, sha256_of_file
from clearhead.stored_json import read_json

__all__ = ["Rerun", "print_rerun", "run_again"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A repeated audit: what differs in its manifest and in its findings, and its own report."""

    differences: list[str]
    repetition: Repetition
    report: WrittenReport


def run_again(path: Path, *, out: Path, model: str | None, text: Path | None, bar: ProgressBar) -> Rerun:
    """Repeat the audit of a manifest. `model` and `text` replace the paths in it, for another machine."""
    path = path / MANIFEST_FILE if path.is_dir() else path
    stored = _read(path)
    before = Manifest.from_dict(stored)
    if before.command is None:
        raise CommandError(
            f"{path} is of an audit from Python, which only Python can repeat: call clearhead.audit with the same "
            "model and batches, and print manifest.differences(record.manifest)"
        )
    findings = _findings(path, stored)
    request = AuditRequest.from_dict(before.command.get("options", {}))
    request = dataclasses.replace(request, out=out, model=model or request.model, text=text or request.text)
    if out.resolve() == path.parent.resolve():
        raise CommandError(f"--out is the folder of {path}, which would be overwritten; choose another folder")
    result = run_audit(request, bar)
    after = result.record.manifest
    assert after is not None
    return Rerun(
        differences=before.differences(after),
        repetition=compare_findings(findings, audit_as_json(result.record)["findings"]),
        report=result.report,
    )


def print_rerun(rerun: Rerun) -> bool:
    """Print what differs, one line each, and whether all findings are the same. Return whether they are."""
    repetition = rerun.repetition
    lines = [f"differs   {clean(line)}" for line in rerun.differences]
    if repetition.identical:
        lines.append(f"bit-identical: {repetition.findings:,} findings")
    else:
        lines += [
            f"{repetition.different:,} of {repetition.findings:,} findings differ, {repetition.verdicts:,} of them in "
            "their verdict",
            f"largest   {clean(repetition.largest)}",
        ]
    lines.append(f"report    {rerun.report.page}")
    with printing() as console:
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)
    return repetition.identical


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise CommandError(f"there is no manifest {path}; clearhead audit writes one into its report folder") from None


def _findings(path: Path, stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings next to a manifest. Raise CommandError if they are missing or not those of the manifest."""
    file, files = path.parent / FINDINGS_FILE, stored.get("files")
    try:
        fits = isinstance(files, dict) and sha256_of_file(file) == files.get(FINDINGS_FILE)
    except FileNotFoundError:
        raise CommandError(f"{file} is missing, so there is nothing to compare with; restore it") from None
    if not fits:
        raise CommandError(f"{file} does not match {path.name}: it was edited or belongs to another audit; restore it")
    findings: list[dict[str, Any]] = parse_json(read_bytes(file), file)["findings"]
    return findings

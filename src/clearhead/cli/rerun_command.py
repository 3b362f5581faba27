"""`clearhead rerun`: repeat the audit of a manifest, say what it depends on that changed, and compare all findings."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.audit.manifest import MANIFEST_FILE
from clearhead.audit.stored import read_findings, read_manifest
from clearhead.cli.audit_command import run_audit
from clearhead.cli.confirmed import Typed, confirm, require_other_folder
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError
from clearhead.cli.request import AuditRequest
from clearhead.report.folder import WrittenReport
from clearhead.report.json_file import audit_as_json
from clearhead.report.repetition import Repetition, compare_findings
from clearhead.report.wording import clean

__all__ = ["Rerun", "print_rerun", "run_again"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A repeated audit: what differs in its manifest and in its findings, and its own report."""

    differences: list[str]
    repetition: Repetition
    report: WrittenReport


def run_again(path: Path, *, out: Path, typed: Typed, machine: Mapping[str, Any], bar: ProgressBar) -> Rerun:
    """Repeat the audit of a manifest. What the user typed replaces what it names; --text also images or sound.

    machine: the device and the number of workers, if they are others now
    """
    folder = path.parent if path.name == MANIFEST_FILE else path
    before, files = read_manifest(folder)
    stored = AuditRequest.of_manifest(before)
    if stored is None:
        raise CommandError(
            f"{folder} is of an audit from Python, which only Python can repeat: call clearhead.audit with the same "
            "model and batches, and print manifest.differences(record.manifest)"
        )
    findings = read_findings(folder, files)["findings"]
    kind = next((name for name in ("images", "audio") if getattr(stored, name) is not None), "text")
    typed = dataclasses.replace(
        typed, values={**typed.values, "text": None, kind: typed.values["text"]}, options={kind: "--text"}
    )
    require_other_folder(out, folder)
    confirmed = confirm(stored.with_values(machine), path, typed)
    result = run_audit(dataclasses.replace(confirmed, out=out), bar)
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

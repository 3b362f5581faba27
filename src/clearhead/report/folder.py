"""The report on disk: written completely, or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clearhead.audit.record import AuditRecord
from clearhead.errors import InputError
from clearhead.report.html import render_html
from clearhead.report.json_file import write_json

__all__ = ["ReportFolder", "WrittenReport", "report_folder", "write_report"]


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """Paths of the files of a report."""

    page: Path
    findings: Path


class ReportFolder:
    """A folder for a report. Files are written to a temporary folder inside it and moved when they are complete."""

    def __init__(self, target: Path, temporary: Path) -> None:
        self._target = target
        self._temporary = temporary

    def write(self, record: AuditRecord) -> WrittenReport:
        """Render the record and write its files. Other files in the folder are left alone."""
        names = ("findings.json", "index.html")
        write_json(record, self._temporary / names[0])
        (self._temporary / names[1]).write_text(render_html(record), encoding="utf-8")
        for name in names:
            (self._temporary / name).replace(self._target / name)
        return WrittenReport(page=self._target / "index.html", findings=self._target / "findings.json")


@contextmanager
def report_folder(target: Path) -> Iterator[ReportFolder]:
    """Check before the audit runs that a report can be written, and remove created folders that stay empty."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; choose a folder for the report with --out")
    created = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        try:
            target.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".clearhead-", dir=target))
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot write a report to {target}: {reason}; choose another folder with --out") from None
        try:
            yield ReportFolder(target, temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    finally:
        for folder in created:
            # rmdir removes only empty folders: those of a report that was never written.
            with suppress(OSError):
                folder.rmdir()


def write_report(record: AuditRecord, target: str | Path) -> WrittenReport:
    """Write `index.html` and `findings.json` of an audit to a folder."""
    with report_folder(Path(target)) as folder:
        return folder.write(record)

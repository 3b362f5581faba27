"""The report on disk: written whole, or not at all."""

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
    """Where the files of a report are."""

    page: Path
    findings: Path


class ReportFolder:
    """A folder that will hold a report: files are made in a workshop inside it and take their places once complete."""

    def __init__(self, target: Path, workshop: Path) -> None:
        self._target = target
        self._workshop = workshop

    def write(self, record: AuditRecord) -> WrittenReport:
        """Render the record and put its files into the folder. Other files there are left alone."""
        names = ("findings.json", "index.html")
        write_json(record, self._workshop / names[0])
        (self._workshop / names[1]).write_text(render_html(record), encoding="utf-8")
        for name in names:
            (self._workshop / name).replace(self._target / name)
        return WrittenReport(page=self._target / "index.html", findings=self._target / "findings.json")


@contextmanager
def report_folder(target: Path) -> Iterator[ReportFolder]:
    """Make sure before the work begins that a report can be written, and leave nothing behind if none is."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; choose a folder for the report with --out")
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        try:
            target.mkdir(parents=True, exist_ok=True)
            workshop = Path(tempfile.mkdtemp(prefix=".clearhead-", dir=target))
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot write a report to {target}: {reason}; choose another folder with --out") from None
        try:
            yield ReportFolder(target, workshop)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
    finally:
        for folder in made:
            # A folder made for a report that never came is empty, and one that holds a report is not.
            with suppress(OSError):
                folder.rmdir()


def write_report(record: AuditRecord, target: str | Path) -> WrittenReport:
    """Write `index.html` and `findings.json` of an audit to a folder."""
    with report_folder(Path(target)) as folder:
        return folder.write(record)

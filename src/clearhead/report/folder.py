"""The report on disk: written completely, or not at all."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clearhead import stored_json
from clearhead.audit.comparison import Comparison
from clearhead.audit.manifest import FINDINGS_FILE, MANIFEST_FILE
from clearhead.audit.record import AuditRecord
from clearhead.audit.samples import SAMPLES_FILE, write_samples
from clearhead.errors import InputError
from clearhead.report.comparison import comparison_as_json
from clearhead.report.comparison_page import render_comparison
from clearhead.report.html import render_html
from clearhead.report.json_file import write_json
from clearhead.storage import sha256_of_file
from clearhead.temporary_folder import temporary_folder

PAGE_FILE, COMPARISON_FILE = "index.html", "comparison.json"

ATTEMPTS = 10
"""Attempts to create a folder that shards of the same audit remove while it is empty."""


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """Paths of the files of a report. `manifest` is None if the record has none."""

    page: Path
    findings: Path
    manifest: Path | None = None


@dataclass(frozen=True, slots=True)
class WrittenComparison:
    """Paths of the files of a comparison."""

    page: Path
    differences: Path


class ReportFolder:
    """A folder for a report. Files are written to a temporary folder inside it and moved when they are complete.

    complete: True once all files were moved
    """

    def __init__(self, target: Path, temporary: Path) -> None:
        self.complete = False
        self._target = target
        self._temporary = temporary

    def write(self, record: AuditRecord) -> WrittenReport:
        """Render the record and write its files. Other files in the folder are left alone."""
        write_json(record, self._temporary / FINDINGS_FILE)
        (self._temporary / PAGE_FILE).write_text(render_html(record), encoding="utf-8")
        names = [FINDINGS_FILE, PAGE_FILE]
        if record.manifest is not None:
            write_samples(self._temporary / SAMPLES_FILE, record.samples)
            names.append(SAMPLES_FILE)
            files = {name: sha256_of_file(self._temporary / name) for name in names}
            stored_json.write_json(self._temporary / MANIFEST_FILE, {**record.manifest.to_dict(), "files": files})
            names.append(MANIFEST_FILE)
        self._move_all(names)
        return WrittenReport(
            page=self._target / PAGE_FILE,
            findings=self._target / FINDINGS_FILE,
            manifest=None if record.manifest is None else self._target / MANIFEST_FILE,
        )

    def write_comparison(self, comparison: Comparison) -> WrittenComparison:
        """Render a comparison and write its files."""
        text = json.dumps(comparison_as_json(comparison), indent=1, allow_nan=False)
        (self._temporary / COMPARISON_FILE).write_text(text + "\n", encoding="utf-8")
        (self._temporary / PAGE_FILE).write_text(render_comparison(comparison), encoding="utf-8")
        self._move_all([COMPARISON_FILE, PAGE_FILE])
        return WrittenComparison(page=self._target / PAGE_FILE, differences=self._target / COMPARISON_FILE)

    def _move_all(self, names: Sequence[str]) -> None:
        try:
            self._move(names)
        except KeyboardInterrupt:
            self._move(names)  # files of two audits would not fit each other
            raise

    def _move(self, names: Sequence[str]) -> None:
        for name in names:
            if (self._temporary / name).exists():
                (self._temporary / name).replace(self._target / name)
        self.complete = True


@contextmanager
def report_folder(target: Path) -> Iterator[ReportFolder]:
    """Check before the audit runs that a report can be written, and remove created folders that stay empty."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; choose a folder for the report with --out")
    created = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        with ExitStack() as stack:
            try:
                temporary = _make_folders(target, stack)
            except OSError as error:
                reason = error.strerror or str(error)
                raise InputError(
                    f"cannot write a report to {target}: {reason}; choose another folder with --out"
                ) from None
            yield ReportFolder(target, temporary)
    finally:
        for folder in created:
            # rmdir removes only empty folders: those of a report that was never written.
            with suppress(OSError):
                folder.rmdir()


def _make_folders(target: Path, stack: ExitStack) -> Path:
    """Create the folder and a temporary one in it. Another shard may remove the folder in between, if it is empty."""
    for _ in range(ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            target.mkdir(parents=True, exist_ok=True)
            return stack.enter_context(temporary_folder(target))
    target.mkdir(parents=True, exist_ok=True)
    return stack.enter_context(temporary_folder(target))


def write_report(record: AuditRecord, target: str | Path) -> WrittenReport:
    """Write `index.html`, `findings.json`, `samples.safetensors` and `manifest.json` of an audit to a folder."""
    with report_folder(Path(target)) as folder:
        return folder.write(record)

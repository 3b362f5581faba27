"""`clearhead compare`: read or run two audits on the same inputs, compare them, write the page and print the answer."""

import dataclasses
import json
from pathlib import Path

from clearhead.audit.comparison import Audited, Comparison, compare
from clearhead.audit.manifest import Manifest
from clearhead.audit.stored import StoredAudit, read_audit, report_folder_of
from clearhead.cli.audit_command import run_audit
from clearhead.cli.confirmed import Typed, confirm, require_other_folder
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError
from clearhead.cli.request import AuditRequest
from clearhead.report.comparison import comparison_as_json, print_comparison
from clearhead.report.folder import WrittenComparison, report_folder
from clearhead.storage import lock_folder

__all__ = ["ComparedResult", "print_compared", "run_comparison"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparedResult:
    """A finished comparison and its files."""

    comparison: Comparison
    report: WrittenComparison


def run_comparison(a: str, b: str | None, request: AuditRequest, typed: Typed, bar: ProgressBar) -> ComparedResult:
    """Compare A and B, each the report of an audit or a model that is audited now.

    `request` has the options for models; a model is audited like a report that it is compared with, with what the user
    typed in place of what the report names. `request.swap` is for B, which is A if it is None.
    """
    if b is None and request.swap is None:
        raise CommandError("give two reports or models to compare, or one model and --swap")
    first = _stored(a)
    second = None if b is None else _stored(b)
    if second is not None and request.swap is not None:
        raise CommandError(f"--swap needs a model, and {b} is a report; give the model")
    like = first or second
    if like is not None and (first is None or second is None):
        report, model = (a, b) if first is not None else (str(b), a)
        stored = dataclasses.replace(_options(like.manifest, report), swap=None)
        typed = dataclasses.replace(typed, values={**typed.values, "model": model}, options={"model": ""})
        confirmed = confirm(stored, Path(report), typed)
        request = dataclasses.replace(confirmed, swap=request.swap, out=request.out)
    for path in (path for path, audit in ((a, first), (b, second)) if path is not None and audit is not None):
        require_other_folder(request.out, report_folder_of(Path(path)) or Path(path))
    model = request.model if first is not None else a
    with report_folder(request.out) as folder, lock_folder(request.out):
        before: Audited = first or _audit(request, model=a, swap=None, name="a", bar=bar)
        after: Audited = second or _audit(request, model=b or model, swap=request.swap, name="b", bar=bar)
        comparison = compare(before, after)
        return ComparedResult(comparison=comparison, report=folder.write_comparison(comparison))


def print_compared(result: ComparedResult, *, as_json: bool) -> None:
    """Print the comparison, and where its page is."""
    with printing() as console:
        if as_json:
            print(json.dumps(comparison_as_json(result.comparison), indent=1, allow_nan=False), file=console.file)
            return
        print_comparison(result.comparison, console)
        for line in (f"report    {result.report.page}", f"numbers   {result.report.differences}"):
            console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False, emoji=False)


def _stored(name: str) -> StoredAudit | None:
    """Return the audit of a report folder; None for a model."""
    return None if report_folder_of(Path(name)) is None else read_audit(name)


def _options(manifest: Manifest, name: str) -> AuditRequest:
    """Return the request of the audit that wrote a manifest."""
    request = AuditRequest.of_manifest(manifest)
    if request is None:
        raise CommandError(
            f"{name} is of an audit from Python, so its inputs are not known here; compare with clearhead.compare"
        )
    return request


def _audit(request: AuditRequest, *, model: str, swap: str | None, name: str, bar: ProgressBar) -> Audited:
    """Audit a model into a folder inside that of the comparison."""
    bar.notice(f"auditing {name.upper()}: {model}")
    return run_audit(dataclasses.replace(request, model=model, swap=swap, out=request.out / name), bar).record

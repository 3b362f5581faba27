"""`clearhead audit`: load the model and its inputs, run the audit, write the report and print it."""

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path

from clearhead._swap import SwapWarning, load_swaps, swap
from clearhead.audit.baseline import BASELINE_DRAWS, BASELINE_INPUTS
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.checksums import text_checksum
from clearhead.audit.estimate import Estimate, estimate
from clearhead.audit.manifest import Manifest
from clearhead.audit.measuring import measure_part
from clearhead.audit.options import AuditOptions, layer_numbers
from clearhead.audit.part import Part, Shard
from clearhead.audit.record import AuditRecord
from clearhead.audit.usable import usable_options
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import RunInterruptedError, TerminatedError
from clearhead.cli.import_path import allow_current_folder
from clearhead.cli.inputs import Inputs, Source, find_source, make_inputs
from clearhead.cli.models import load_named_model
from clearhead.cli.request import AuditRequest
from clearhead.loading.huggingface import tokenizer_files
from clearhead.loading.model import LoadedModel
from clearhead.report.folder import ReportFolder, WrittenReport, report_folder
from clearhead.report.json_file import audit_as_text
from clearhead.report.terminal import print_audit, print_summary
from clearhead.report.wording import amount_of_memory, duration
from clearhead.storage import lock_folder, sha256_of_file

__all__ = [
    "AuditResult", "check_request", "measure_request", "print_estimate", "print_result", "run_audit", "run_estimate",
]  # fmt: skip

_PHASES = {"check": "checking the capture", "measure": "measuring inputs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """A finished audit and the files of its report."""

    record: AuditRecord
    report: WrittenReport


class _Phases:
    """Shows the phases of an audit. All runs of the baseline are one phase, so that its time left is that of all."""

    def __init__(self, bar: ProgressBar, inputs: int | None) -> None:
        self._bar, self._inputs, self._runs = bar, inputs, 0

    def __call__(self, phase: str, done: int) -> None:
        if phase != "baseline":
            self._bar.update(_PHASES[phase], done, self._inputs)
            return
        self._runs += done == 0
        of_run = min(self._inputs or BASELINE_INPUTS, BASELINE_INPUTS)
        finished = (self._runs - 1) * of_run + min(done, of_run)
        # Every model is measured with its own norms and with those of the audited model.
        self._bar.update("measuring the baseline", finished, max(2 * BASELINE_DRAWS * of_run, finished))


def run_audit(request: AuditRequest, bar: ProgressBar) -> AuditResult:
    """Run the audit and write its report. Bad options are refused before the model is loaded.

    An audit of the same request that was interrupted is continued.
    """
    folder: ReportFolder | None = None
    file = request.out / Shard().file_name
    try:
        source = check_request(request)
        with report_folder(request.out):
            pass  # a report can be written there
        checkpoint = Checkpoint(file)
        with lock_folder(request.out), checkpoint.locked():
            record = checkpoint.finish(measure_request(request, source, bar, Shard(), checkpoint))
            with report_folder(request.out) as folder:
                report = folder.write(record)
            checkpoint.remove()
        return AuditResult(record=record, report=report)
    except (KeyboardInterrupt, TerminatedError) as signal:
        if folder is not None and folder.complete:
            outcome = f"the report in {request.out} is complete"
        else:
            outcome = "the same command continues it" if file.exists() else "no report was written"
        raise RunInterruptedError(outcome, signal) from None


def check_request(request: AuditRequest) -> Source:
    """Check the options before the model is loaded, and read its inputs. Raise InputError for a bad option."""
    usable_options(dataclasses.replace(request.options, loss=None))  # a loss is code, and imported after the model
    return find_source(request)


def measure_request(request: AuditRequest, source: Source, bar: ProgressBar, shard: Shard, file: Checkpoint) -> Part:
    """Load the model and measure a shard of the audit; all of it is shard 1/1."""
    loaded, inputs = _load(request, source, bar)
    total = inputs.count if shard.count == 1 else None
    return measure_part(
        loaded.model,
        inputs.batches,
        _options(request),
        name=loaded.name,
        data=inputs.name,
        decode=loaded.decode,
        progress=_Phases(bar, total),
        checkpoint=file,
        shard=shard,
        complete_manifest=lambda manifest: _with_command(manifest, request, loaded, inputs),
        notice=bar.notice,
    )


def run_estimate(request: AuditRequest, bar: ProgressBar) -> Estimate:
    """Load the model, measure its first inputs, and return what the audit would take."""
    loaded, inputs = _load(request, check_request(request), bar)
    bar.update("measuring the first inputs", 0, None)
    return estimate(loaded.model, inputs.batches, _options(request))


def _options(request: AuditRequest) -> AuditOptions:
    """Return the options of the audit, which does not measure what the request swaps."""
    return request.options if request.swap is None else dataclasses.replace(request.options, allow_swapped=True)


def print_estimate(found: Estimate) -> None:
    """Print the time and memory that an audit would take."""
    with printing() as console:
        parts = {**found.theories, "forward passes": found.forward, "baseline": found.baseline}
        shares = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items() if seconds >= 1)
        memory = amount_of_memory(found.memory)
        for line in (
            f"estimate  about {duration(found.seconds)} for {found.inputs:,} inputs, from {found.tried} of them",
            f"time      {shares or 'less than a second each'}",
            f"memory    about {memory} at the peak",
        ):
            console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def print_result(result: AuditResult, *, as_json: bool, details: bool = False) -> None:
    """Print the verdicts, with `details` every number, or all findings as JSON; and where the report is."""
    with printing() as console:
        if as_json:
            print(audit_as_text(result.record), file=console.file)
            return
        (print_audit if details else print_summary)(result.record, console)
        report = result.report
        repeat = f"repeat    clearhead rerun {report.manifest}"
        for line in ("", f"report    {report.page}", f"findings  {report.findings}", repeat):
            console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False, emoji=False)


def _load(request: AuditRequest, source: Source, bar: ProgressBar) -> tuple[LoadedModel, Inputs]:
    """Load the model, and allow imports from the current folder for the functions that the request names."""
    bar.update("loading the model", 0, None)
    loaded = load_named_model(request.model, max_tokens=request.max_tokens)
    if request.swap is not None:
        loaded = _swapped(loaded, request.swap)
    if objects := [path for path in (request.batches, request.options.loss) if isinstance(path, str)]:
        allow_current_folder(objects)
    return loaded, make_inputs(request, loaded, source)


def _swapped(loaded: LoadedModel, description: str) -> LoadedModel:
    """Apply a swap: the folder that save_swaps wrote, or the name of an operator with layers, such as symmetric:0-2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SwapWarning)  # the comparison names the operator and its layers
        if Path(description).is_dir():
            load_swaps(loaded.model, description)
        else:
            name, _, layers = description.partition(":")
            swap(loaded.model, name, layers=layer_numbers(layers, "--swap") if layers else "all")
    return dataclasses.replace(loaded, name=f"{loaded.name} with {description}")


def _with_command(manifest: Manifest, request: AuditRequest, loaded: LoadedModel, inputs: Inputs) -> Manifest:
    """Add to the manifest what only the command knows: its inputs, the text and the tokenizer."""
    files = [] if loaded.folder is None or not (loaded.encode or loaded.processor) else tokenizer_files(loaded.folder)
    return dataclasses.replace(
        manifest,
        tokenizer=text_checksum(f"{file.name} {sha256_of_file(file)}" for file in files) if files else None,
        text=inputs.checksum,
        command={"name": "audit", "options": request.to_dict()},
    )

"""`clearhead audit`: load the model and its inputs, run the audit, write the report and print it."""

import dataclasses
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clearhead._swap import SwapWarning, load_swaps, swap
from clearhead.audit.baseline import BASELINE_DRAWS, BASELINE_INPUTS
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.checksums import text_checksum
from clearhead.audit.estimate import Estimate, estimate
from clearhead.audit.manifest import Manifest
from clearhead.audit.parts import Part, Shard
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import measure_audit, usable_device
from clearhead.audit.workers import usable_workers
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError, RunInterruptedError, TerminatedError
from clearhead.cli.import_path import allow_current_folder
from clearhead.cli.inputs import Inputs, Source, find_source, make_inputs
from clearhead.cli.models import load_named_model
from clearhead.cli.options import Baseline
from clearhead.cli.request import AuditRequest
from clearhead.interfaces import AttentionSpec, read_descriptions
from clearhead.loading.huggingface import tokenizer_files
from clearhead.loading.model import LoadedModel
from clearhead.loading.objects import load_function
from clearhead.report.folder import ReportFolder, WrittenReport, report_folder
from clearhead.report.json_file import audit_as_text
from clearhead.report.terminal import print_audit, print_summary
from clearhead.report.wording import amount_of_memory, duration
from clearhead.storage import lock_folder, sha256_of_file
from clearhead.theories.catalogue import find_theories

__all__ = [
    "AuditResult", "CheckedRequest", "check_request", "measure_request", "print_estimate", "print_result", "run_audit",
    "run_estimate",
]  # fmt: skip

_BASELINES: dict[Baseline, Literal["auto", "all"] | None] = {
    Baseline.AUTO: "auto",
    Baseline.ALL: "all",
    Baseline.NONE: None,
}
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
        checked = check_request(request)
        with report_folder(request.out):
            pass  # a report can be written there
        checkpoint = Checkpoint(file)
        with lock_folder(request.out), checkpoint.locked():
            record = checkpoint.finish(measure_request(checked, bar, Shard(), checkpoint))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request whose options were checked, with the files that they name."""

    request: AuditRequest
    layers: set[int] | None
    describe: list[AttentionSpec]
    source: Source


def check_request(request: AuditRequest) -> CheckedRequest:
    """Check the options before the model is loaded. Raise InputError for a bad one."""
    layers = None if request.layers is None else _layer_numbers(request.layers)
    find_theories(request.theories)
    usable_workers(request.workers, usable_device(request.device))
    describe = [] if request.describe is None else read_descriptions(request.describe)
    return CheckedRequest(request=request, layers=layers, describe=describe, source=find_source(request))


def measure_request(checked: CheckedRequest, bar: ProgressBar, shard: Shard, checkpoint: Checkpoint) -> Part:
    """Load the model and measure a shard of the audit; all of it is shard 1/1."""
    request = checked.request
    bar.update("loading the model", 0, None)
    loaded = _load(request)
    inputs = make_inputs(request, loaded, checked.source)
    total = inputs.count if shard.count == 1 else None
    return measure_audit(
        loaded.model,
        inputs.batches,
        **_options(checked),
        name=loaded.name,
        data=inputs.name,
        decode=loaded.decode,
        progress=_Phases(bar, total),
        checkpoint=checkpoint,
        shard=shard,
        complete_manifest=lambda manifest: _with_command(manifest, request, loaded, inputs),
        notice=bar.notice,
    )


def run_estimate(request: AuditRequest, bar: ProgressBar) -> Estimate:
    """Load the model, measure its first inputs, and return what the audit would take."""
    checked = check_request(request)
    bar.update("loading the model", 0, None)
    loaded = _load(request)
    inputs = make_inputs(request, loaded, checked.source)
    bar.update("measuring the first inputs", 0, None)
    return estimate(
        loaded.model,
        inputs.batches,
        **_options(checked),
    )


def _options(checked: CheckedRequest) -> dict[str, Any]:
    """Return the options of the request that `audit` takes too."""
    request = checked.request
    return {
        "theories": request.theories,
        "claims": request.claims.value,
        "layers": checked.layers,
        "seed": request.seed,
        "describe": checked.describe,
        "allow_unseen": request.allow_unseen,
        "allow_swapped": request.swap is not None,
        "baseline": _BASELINES[request.baseline],
        "loss": None if request.loss is None else load_function(request.loss),
        "device": request.device,
        "workers": request.workers,
    }


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


def _load(request: AuditRequest) -> LoadedModel:
    """Load the model, and allow imports from the current folder for the functions that the request names."""
    loaded = load_named_model(request.model, max_tokens=request.max_tokens)
    if request.swap is not None:
        loaded = _swapped(loaded, request.swap)
    if objects := [path for path in (request.batches, request.loss) if path is not None]:
        allow_current_folder(objects)
    return loaded


def _swapped(loaded: LoadedModel, description: str) -> LoadedModel:
    """Apply a swap: the folder that save_swaps wrote, or the name of an operator with layers, such as symmetric:0-2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SwapWarning)  # the comparison names the operator and its layers
        if Path(description).is_dir():
            load_swaps(loaded.model, description)
        else:
            name, _, layers = description.partition(":")
            swap(loaded.model, name, layers=sorted(_layer_numbers(layers, "--swap")) if layers else "all")
    return dataclasses.replace(loaded, name=f"{loaded.name} with {description}")


def _with_command(manifest: Manifest, request: AuditRequest, loaded: LoadedModel, inputs: Inputs) -> Manifest:
    """Add to the manifest what only the command knows: its options, the text and the tokenizer.

    The theories are named, so that a theory installed later is not part of a rerun.
    """
    files = [] if loaded.folder is None or not (loaded.encode or loaded.processor) else tokenizer_files(loaded.folder)
    request = dataclasses.replace(request, theories=tuple(manifest.plugins))
    return dataclasses.replace(
        manifest,
        tokenizer=text_checksum(f"{file.name} {sha256_of_file(file)}" for file in files) if files else None,
        text=inputs.checksum,
        command={"name": "audit", "options": request.to_dict()},
    )


def _layer_numbers(text: str, option: str = "--layers") -> set[int]:
    """Return the layers of a list such as 0,2,5 or 0-3."""
    layers: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", item)
        if match is None:
            raise CommandError(f"{option} takes numbers of at most four digits, such as 0,2,5 or 0-3, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise CommandError(f"{option} {item.strip()} runs backwards; give {last}-{first}")
        layers.update(range(first, last + 1))
    return layers

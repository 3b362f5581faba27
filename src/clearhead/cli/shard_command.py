"""`clearhead audit --shard`, an audit under torchrun, and `clearhead merge`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.part import Part, Shard
from clearhead.audit.shards import merge_parts, read_shards, shard_from_environment
from clearhead.cli.audit_command import AuditResult, check_request, measure_request
from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import RunInterruptedError, TerminatedError
from clearhead.cli.ranks import collect_parts, process_group
from clearhead.cli.request import AuditRequest
from clearhead.report.folder import report_folder
from clearhead.storage import lock_folder

__all__ = ["merge_folder", "parse_shard", "print_shard", "run_ranks", "run_shard"]


def parse_shard(text: str) -> Shard:
    """Return the shard of i/n, or with "auto" the one that the launcher gives this process."""
    return shard_from_environment() if text == "auto" else Shard.parse(text)


def run_shard(request: AuditRequest, shard: Shard, bar: ProgressBar) -> Part:
    """Measure one shard of the audit and write its file to the folder of the report.

    Other shards may be written there at the same time, but no report, and this shard once.
    """
    with _only_writer(request, shard) as checkpoint:
        return _measure_shard(request, shard, checkpoint, bar)


@contextmanager
def _only_writer(request: AuditRequest, shard: Shard) -> Iterator[Checkpoint]:
    checkpoint = Checkpoint(request.out / shard.file_name)
    with report_folder(request.out):
        pass  # files can be written there
    with lock_folder(request.out, shared=True), checkpoint.locked():
        yield checkpoint


def _measure_shard(request: AuditRequest, shard: Shard, checkpoint: Checkpoint, bar: ProgressBar) -> Part:
    file = request.out / shard.file_name
    try:
        return measure_request(request, check_request(request), bar, shard, checkpoint)
    except (KeyboardInterrupt, TerminatedError) as signal:
        outcome = "the same command continues it" if file.exists() else "nothing was written"
        raise RunInterruptedError(outcome, signal) from None


def run_ranks(request: AuditRequest, bar: ProgressBar) -> AuditResult | None:
    """Measure the shard of this process of torchrun. The first process merges all and returns the result."""
    with process_group():
        shard = Shard(dist.get_rank() + 1, dist.get_world_size())
        with _only_writer(request, shard) as checkpoint:
            _measure_shard(request, shard, checkpoint, bar)
            file = request.out / shard.file_name
            parts = collect_parts(file)
            result = None if parts is None else _write(parts, request.out)
            dist.barrier()  # shards are removed when the report is written
            file.unlink()
    return result


def merge_folder(folder: Path, out: Path) -> AuditResult:
    """Merge the shards of a folder and write the report."""
    with lock_folder(out):
        return _write(read_shards(folder), out)


def _write(parts: Sequence[Part], out: Path) -> AuditResult:
    with report_folder(out) as folder:
        record = merge_parts(parts)
        return AuditResult(record=record, report=folder.write(record))


def print_shard(part: Part, folder: Path) -> None:
    """Print what was measured and how to merge it."""
    lines = [
        f"shard     {folder / part.shard.file_name}",
        f"measured  {part.audited.inputs:,} of {sum(part.sizes):,} inputs",
        f"merge     clearhead merge {folder}",
    ]
    with printing() as console:
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)

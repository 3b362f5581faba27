"""Shards: an audit whose batches are divided among processes or machines, and the merging of what they measured.

Each process measures consecutive batches and writes one file. Merging needs the files and no model. What is measured
once for an audit and not for each input (the whole model under symmetries) is in the first shard.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.audit.checkpoint import Checkpoint, read_part
from clearhead.audit.finishing import finish_audit
from clearhead.audit.measuring import measure_part
from clearhead.audit.options import takes_options
from clearhead.audit.part import Part, Shard
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import options_and_baseline
from clearhead.errors import InputError
from clearhead.loading.encoding import Decode

__all__ = ["audit_shard", "merge_parts", "merge_shards", "read_shards", "shard_from_environment"]


@takes_options
def audit_shard(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    shard: str,
    folder: str | Path,
    decode: Decode | None = None,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
    **options: Any,
) -> Path:
    """Measure one shard of an audit and write its file, to be merged by `merge_shards`.

    An interrupted shard goes on when it is called again.

    batches: all batches of the audit, the same in every shard; not an iterator
    shard: such as 2/4, the second of four
    decode, name, data, progress: as for `clearhead.audit`

    The options are the same in every shard:
    """
    wanted = Shard.parse(shard)
    path = Path(folder) / wanted.file_name
    checkpoint = Checkpoint(path)
    chosen, baseline = options_and_baseline(options)
    with checkpoint.locked():
        measure_part(
            model,
            batches,
            chosen,
            shard=wanted,
            checkpoint=checkpoint,
            baseline=baseline,
            decode=decode,
            name=name,
            data=data,
            progress=progress or (lambda phase, done: None),
        )
    return path


def merge_shards(folder: str | Path) -> AuditRecord:
    """Return the record of an audit from the files of all its shards: the record of an audit without shards.

    Raise InputError that names the shards which are missing, not finished, or of another audit.
    """
    return merge_parts(read_shards(Path(folder)))


def merge_parts(parts: Sequence[Part]) -> AuditRecord:
    """Return the record of an audit from all its shards. Raise InputError unless each input is in one of them."""
    _require_all(parts)
    _require_one_audit(parts)
    _require_each_input_once(parts)
    return finish_audit(sorted(parts, key=lambda part: part.shard.number))


def read_shards(folder: Path) -> list[Part]:
    """Return the shards of a folder. Raise InputError if a file has not exactly the name of the shard that it holds."""
    files = sorted(folder.glob("shard-*.safetensors"))
    if not files:
        raise InputError(f"there are no shards in {folder}; clearhead audit --shard i/n --out {folder} writes them")
    parts = [read_part(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        if file.name != part.shard.file_name:
            raise InputError(
                f"{file} holds {part.shard.file_name}, copied or renamed; remove it, or give it that name back"
            )
    return parts


def _require_all(parts: Sequence[Part]) -> None:
    """Raise InputError if the shards are of several numbers of shards, or one is missing or there twice."""
    counts = sorted({part.shard.count for part in parts})
    if len(counts) > 1:
        raise InputError(
            f"there are shards of {' and of '.join(map(str, counts))}: of two audits; give each its own folder"
        )
    numbers = [part.shard.number for part in parts]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise InputError(f"{Shard(twice[0], counts[0]).file_name} is there twice; merge each shard once")
    missing = sorted(set(range(1, counts[0] + 1)) - set(numbers))
    if missing:
        names = ", ".join(Shard(number, counts[0]).file_name for number in missing)
        raise InputError(f"the audit lacks {names}; run {_commands(missing, counts[0])}")


def _require_one_audit(parts: Sequence[Part]) -> None:
    """Raise InputError if a shard is not finished or is of another audit than the first."""
    unfinished = [part.shard for part in parts if not part.complete]
    if unfinished:
        names = ", ".join(shard.file_name for shard in unfinished)
        numbers = [shard.number for shard in unfinished]
        raise InputError(f"{names} is not finished; run {_commands(numbers, unfinished[0].count)} again to continue")
    first, *others = parts
    for part in others:
        different = first.differences(part)
        if different:
            raise InputError(
                f"{part.shard.file_name} is of another audit than {first.shard.file_name}: {'; '.join(different[:3])}; "
                "run it again with the same model, inputs, options and versions"
            )


def _require_each_input_once(parts: Sequence[Part]) -> None:
    """Raise InputError if a shard covers other inputs than those of its number."""
    sizes = parts[0].sizes
    for part in parts:
        batches = part.shard.batches(len(sizes))
        inputs = sum(sizes[batches.start : batches.stop])
        audited = part.audited
        if part.sizes != sizes or (audited.inputs, audited.next_batch) != (inputs, batches.stop):
            first = sum(sizes[: batches.start]) + 1
            raise InputError(
                f"{part.shard.file_name} does not cover the inputs {first:,} to {first + inputs - 1:,} of "
                f"{sum(sizes):,}, those of its number; run {_commands([part.shard.number], part.shard.count)} again"
            )


def _commands(numbers: Sequence[int], count: int) -> str:
    shown = " and ".join(f"--shard {number}/{count}" for number in numbers[:3])
    return f"clearhead audit with {shown}{' and others' if len(numbers) > 3 else ''}"


def shard_from_environment(environment: Mapping[str, str] = os.environ) -> Shard:
    """Return the shard that the launcher of this process has given it. Raise InputError if it has given none.

    Read are RANK and WORLD_SIZE (torchrun and others), or SLURM_ARRAY_TASK_ID with SLURM_ARRAY_TASK_COUNT and
    SLURM_ARRAY_TASK_MIN (job arrays of Slurm, which may start at any number in steps of one).
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        number, count = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        number += 1
    elif "SLURM_ARRAY_TASK_ID" in environment:
        number, least, count = (_number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "MIN", "COUNT"))
        number += 1 - least
    else:
        raise InputError(
            "--shard auto needs a launcher that sets RANK and WORLD_SIZE, or SLURM_ARRAY_TASK_ID, "
            "SLURM_ARRAY_TASK_MIN and SLURM_ARRAY_TASK_COUNT; give --shard i/n"
        )
    if not 1 <= number <= count:
        raise InputError(
            f"the launcher gives this process shard {number} of {count}; tasks must be numbered without gaps"
        )
    return Shard(number, count)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        got = environment.get(name)
        raise InputError(f"the launcher's {name} is {got!r}, not a number; give --shard i/n") from None

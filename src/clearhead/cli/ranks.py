"""The processes of one `torchrun`: each measures one shard, and the first merges them.

Clearhead has no launcher of its own. Under torchrun it joins the process group (gloo, on the CPU) to collect the
shards, which therefore need no common disk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from clearhead.audit.checkpoint import read_part
from clearhead.audit.part import Part
from clearhead.temporary_folder import temporary_folder

__all__ = ["collect_parts", "process_group"]

LONGEST_WAIT = timedelta(days=30)
"""Shards may take very different times, and a process that waits must not give up."""


@contextmanager
def process_group() -> Iterator[None]:
    """Join the group of all processes, unless the model's own code has done so."""
    joined = dist.is_initialized()
    if not joined:
        dist.init_process_group("gloo", timeout=LONGEST_WAIT)
    try:
        yield
    finally:
        if not joined:
            dist.destroy_process_group()


def collect_parts(file: Path) -> list[Part] | None:
    """Send this process's shard to the first one. Return all shards there, and None in the others."""
    first = dist.get_rank() == 0
    contents: list[bytes] | None = [b""] * dist.get_world_size() if first else None
    dist.gather_object(file.read_bytes(), contents)
    if contents is None:
        return None
    with temporary_folder(file.parent) as folder:
        parts = []
        for number, content in enumerate(contents):
            copy = folder / f"{number}.safetensors"
            copy.write_bytes(content)
            parts.append(read_part(copy))
    return parts

"""Computations that build large matrices: an error with the bytes and the remedy where memory does not suffice.

Neither check alone is enough. Linux promises more memory than it has and kills the process that uses it, so the bytes
are compared with the free memory first; they are a lower bound, and so nothing that fits is refused. macOS, GPUs and
limits of a process (ulimit) report nothing in advance, and steps may need more than the bound: there the allocator's
error is caught.
"""

import ctypes
import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from clearhead.errors import NotEnoughMemoryError
from clearhead.private_names import jit_tracing

T = TypeVar("T")

SMALL = 2**30
"""Bytes that are not compared with the free memory first, which takes 0.1 ms."""

MOST_KEPT = 2**26
"""Freed bytes that `return_freed_memory` leaves to the process: using them again is faster than asking for new ones."""
SMALL_PROCESS = 3 * 2**28
"""Bytes, in use and freed, up to which a process keeps all: short calls need them again soon."""
_TRIED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMG]iB)", re.IGNORECASE)
_SAID = re.compile(r"DefaultCPUAllocator: can't allocate memory|\w+( backend)? out of memory")
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "anon"),  # version 2
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "rss"),  # version 1
)
_MEMINFO = Path("/proc/meminfo")


def run_within_memory(compute: Callable[[], T], *, task: str, remedy: str, device: torch.device, needed: int = 0) -> T:
    """Return `compute()`. Raise `NotEnoughMemoryError`, of torch's type too, if its matrices do not fit into memory.

    task: the subject of the error, such as "attention with a soft cap"
    remedy: what to do, such as "pass fewer tokens at once"
    needed: lower bound of the bytes, see `bytes_of_matrices`; 0 if it is not known
    """
    if torch.compiler.is_compiling() or jit_tracing():  # sizes are symbols there
        return compute()
    if device.type == "cpu" and needed > SMALL:
        free = free_memory()
        if free is not None and needed > free:
            raise NotEnoughMemoryError(
                f"{task} would run out of memory. It needs at least {format_bytes(needed)} of memory, and "
                f"{format_bytes(free)} are free; {remedy}"
            )
    try:
        return compute()
    except NotEnoughMemoryError:
        raise
    except (RuntimeError, MemoryError) as error:
        if not is_allocation_error(error):
            raise
        tried = _tried_bytes(error) or needed
        said = _SAID.search(str(error))
        message = (
            f"{task} ran out of memory. It tried to allocate {format_bytes(tried) if tried else 'more'}"
            f"{f' ({said[0]})' if said else ''}; {remedy}"
        )
        if isinstance(error, torch.OutOfMemoryError):
            raise OutOfDeviceMemoryError(message) from None
        raise NotEnoughMemoryError(message) from None


class OutOfDeviceMemoryError(NotEnoughMemoryError, torch.OutOfMemoryError):
    """A computation that does not fit into the memory of a GPU, where torch raises its `OutOfMemoryError`."""


def bytes_of_matrices(shape: Sequence[int], dtype: torch.dtype, *, count: int = 2) -> int:
    """Return the bytes of `count` matrices. Two is the least: a step holds its operand and its result."""
    return count * math.prod(shape) * dtype.itemsize


def format_bytes(size: int) -> str:
    """Write bytes, as in 812 MB or 1.9 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def return_freed_memory() -> None:
    """Return freed memory to the system if it is more than `MOST_KEPT`; do nothing where the allocator is not glibc's.

    Blocks that are in use between freed ones let glibc keep those: while a model is captured, more than is in use. A
    `SMALL_PROCESS` keeps them.
    """
    allocator = _glibc()
    if allocator is None:
        return
    held = allocator.mallinfo2()
    if held.freed > MOST_KEPT and held.heap + held.mapped > SMALL_PROCESS:
        allocator.malloc_trim(0)


class _Blocks(ctypes.Structure):
    """`struct mallinfo2` of malloc.h; `heap` is its arena, `mapped` its hblkhd and `freed` its fordblks."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("heap", *"bcd", "mapped", *"fgh", "freed", "top")]


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc 2.33 or newer."""
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Blocks
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError, TypeError):  # macOS, musl, Windows
        return None
    return library


def peak_memory() -> int | None:
    """Return the peak memory of the process in bytes; None where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


def free_memory() -> int | None:
    """Return the bytes that this process can still use, with swap, within its control group; None if not on Linux."""
    try:
        lines = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        free = sum(int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    return min([free, *_free_in_cgroups()])


def _free_in_cgroups() -> list[int]:
    """Return the limit of each control group minus its memory, without the cache of files, which can be dropped."""
    free = []
    for folder, limit, used in _CGROUPS:
        try:
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(int((folder / limit).read_text()) - int(statistics[used]))
        except (OSError, KeyError, ValueError):  # "max" is no limit
            continue
    return free


def is_allocation_error(error: BaseException) -> bool:
    """Return whether an error of torch or Python says that memory ran out."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error) or "out of memory" in str(error)


def _tried_bytes(error: BaseException) -> int:
    """Return the bytes that the allocator's error names; 0 if it names none."""
    match = _TRIED.search(str(error))
    return round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0

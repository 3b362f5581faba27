"""Load the compiled kernel when it is first asked for, and say in words why there is none.

torch comes first: it brings its OpenMP runtime, whose name the kernel asks for too, so both share one pool of threads.
"""

import ctypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch  # noqa: F401  its OpenMP runtime is to be in the process before the kernel asks for one

from clearhead.errors import InputError
from clearhead.kernels.build import COMMAND, LIBRARY, SOURCES

__all__ = ["ABI", "INSTRUCTIONS", "Instructions", "Kernel", "KernelStatus", "kernel", "status"]

ABI = 2
"""The number that `clearhead_abi` must give: raised there and here whenever the C interface changes."""

Instructions = Literal["generic", "avx2", "avx512"]

INSTRUCTIONS: dict[Instructions, int] = {"generic": 1, "avx2": 2, "avx512": 4}
"""Sets of instructions, from the least to the most, and the bit of each in `clearhead_instructions`."""

VARIABLE = "CLEARHEAD_KERNEL"
"""Environment variable, read when the kernel is first asked for: `off`, or the set of instructions to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A loaded kernel.

    handle: its C functions
    instructions: the set to call it with, which this processor has: the best one, or the one that was asked for
    openmp: whether it was built with OpenMP; without, it runs on one thread
    """

    handle: ctypes.CDLL
    instructions: Instructions
    openmp: bool
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStatus:
    """The kernel, or None and the reason in one line."""

    kernel: Kernel | None
    reason: str = ""


_loading = threading.Lock()
_loaded: list[KernelStatus] = []


def kernel() -> Kernel | None:
    """The kernel of this process, loaded once; None where there is none, see `status`."""
    return status().kernel


def status() -> KernelStatus:
    """The kernel of this process or why there is none, found out once.

    Raises ValueError if CLEARHEAD_KERNEL asks for what is not known or not there.
    """
    with _loading:
        if not _loaded:
            _loaded.append(load(SOURCES / LIBRARY, wanted=os.environ.get(VARIABLE, "")))
        return _loaded[0]


def load(path: Path, *, wanted: str = "") -> KernelStatus:
    """Load the library at this path. `wanted` is `off`, a set of instructions, or empty for the best one."""
    if wanted and wanted != "off" and wanted not in INSTRUCTIONS:
        raise InputError(f"{VARIABLE}={wanted} is not known; it takes off, {', '.join(INSTRUCTIONS)}, or nothing")
    if wanted == "off":
        return KernelStatus(kernel=None, reason=f"switched off by {VARIABLE}=off; unset it to use the kernel")
    found = _open(path)
    if isinstance(found, str):
        if wanted:
            raise InputError(f"{VARIABLE}={wanted} asks for the compiled kernel, but it is {found}")
        return KernelStatus(kernel=None, reason=found)
    mask = found.clearhead_instructions()
    there = [name for name, bit in INSTRUCTIONS.items() if mask & bit]
    if wanted and wanted not in there:
        raise InputError(
            f"{VARIABLE}={wanted} asks for instructions that this processor or this build of the kernel is without; "
            f"it takes {' or '.join(there)}"
        )
    chosen = next(name for name in reversed(there) if wanted in ("", name))
    openmp = bool(found.clearhead_openmp())
    return KernelStatus(kernel=Kernel(handle=found, instructions=chosen, openmp=openmp, path=path))


def _open(path: Path) -> ctypes.CDLL | str:
    """The library, its version checked; or what is wrong with it and what to do."""
    if not path.exists():
        return f"not built; {COMMAND} builds it"
    try:
        library = ctypes.CDLL(str(path))
        abi = library.clearhead_abi()
    except OSError as error:
        why = " ".join(str(error).split()).removeprefix(f"{path}: ")
        return f"built, but this machine does not load it ({why}); {COMMAND} builds it again"
    except AttributeError:
        abi = None
    if abi != ABI:
        return f"built from the sources of another version; {COMMAND} builds it again"
    return library

"""Load the compiled kernel on first use, or report why it is missing.

torch is imported first: the kernel then shares its OpenMP runtime and pool of threads.
"""

import ctypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch  # noqa: F401  loads its OpenMP runtime before the kernel needs one

from clearhead.errors import InputError
from clearhead.kernels.build import CHECKSUM, COMMAND, LIBRARY, SOURCES, checksum_line

ABI = 4
"""Expected result of `clearhead_abi`: incremented there and here whenever the C interface changes."""

Instructions = Literal["generic", "avx2", "avx512"]

INSTRUCTIONS: dict[Instructions, int] = {"generic": 1, "avx2": 2, "avx512": 4}
"""Instruction sets, smallest first, with their bits in `clearhead_instructions`."""

VARIABLE = "CLEARHEAD_KERNEL"
"""Environment variable, read on first use: `off`, or the instruction set to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A loaded kernel.

    handle: its C functions
    instructions: the instruction set in use: the best of this processor, or the one set by CLEARHEAD_KERNEL
    openmp: True if built with OpenMP; without it the kernel runs on one thread
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
    """Return the kernel of this process, loaded once, or None; `status` has the reason."""
    return status().kernel


def status() -> KernelStatus:
    """Return the kernel of this process or the reason why it is missing, determined once.

    Raises `InputError` if CLEARHEAD_KERNEL names an unknown or unavailable instruction set.
    """
    if not _loaded:
        with _loading:
            if not _loaded:
                _loaded.append(load(SOURCES / LIBRARY, wanted=os.environ.get(VARIABLE, "")))
    return _loaded[0]


def load(path: Path, *, wanted: str = "") -> KernelStatus:
    """Load the library at this path. `wanted` is `off`, an instruction set, or empty for the best one."""
    if wanted and wanted != "off" and wanted not in INSTRUCTIONS:
        raise InputError(f"{VARIABLE}={wanted} is not known; set it to off, {', '.join(INSTRUCTIONS)}, or unset it")
    if wanted == "off":
        return KernelStatus(kernel=None, reason=f"switched off by {VARIABLE}=off; unset it to use the kernel")
    library = _open(path)
    if isinstance(library, str):
        if wanted:
            raise InputError(f"{VARIABLE}={wanted} needs the compiled kernel, but it is {library}")
        return KernelStatus(kernel=None, reason=library)
    mask = library.clearhead_instructions()
    available = [name for name, bit in INSTRUCTIONS.items() if mask & bit]
    if wanted and wanted not in available:
        raise InputError(
            f"{VARIABLE}={wanted} names instructions that this processor or this build of the kernel does not have; "
            f"set it to {' or '.join(available)}"
        )
    chosen = next(name for name in reversed(available) if wanted in ("", name))
    openmp = bool(library.clearhead_openmp())
    return KernelStatus(kernel=Kernel(handle=library, instructions=chosen, openmp=openmp, path=path))


def _open(path: Path) -> ctypes.CDLL | str:
    """Return the library after a check of its content and its version; or an error with its remedy."""
    if not path.exists():
        return f"not built; {COMMAND} builds it"
    try:
        if not _is_intact(path):
            return f"built, but its content does not match {CHECKSUM}; {COMMAND} builds it again"
        library = ctypes.CDLL(str(path))
        abi = library.clearhead_abi()
    except OSError as error:
        why = " ".join(str(error).split()).removeprefix(f"{path}: ")
        return f"built, but cannot be loaded here ({why}); {COMMAND} builds it again"
    except AttributeError:
        abi = None
    if abi != ABI:
        return f"built from the sources of another version; {COMMAND} builds it again"
    return library


def _is_intact(path: Path) -> bool:
    """Return True if the library matches its checksum. A part of a library can end the process when it is loaded."""
    checksum = path.with_name(CHECKSUM)
    return checksum.exists() and checksum.read_bytes() == checksum_line(path.read_bytes()).encode()

r"""LAPACK's reduction of a symmetric matrix to tridiagonal form and what goes with it, for many threads at a time.

scipy's wrappers keep Python's interpreter lock while LAPACK works, so that two threads take as long as one. scipy also
publishes the routines as C functions, with their types; called through ctypes, which gives the lock away, they run side
by side. Where the types are not the ones expected the wrappers are used: slower, and the same result.

LAPACK stores columns one after another and numpy rows: what is a matrix here is its transpose there.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from clearhead.errors import InputError
from clearhead.private_names import lapack_capsules

__all__ = ["Reduction", "eigenvalues_of_tridiagonal", "reduce", "rotate_back"]

Array = NDArray[Any]

LETTER = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
"""What LAPACK's names for a precision begin with."""
ARGUMENTS = {"sytrd": "cirirrrrii", "sterf": "irri", "ormqr": "cciiirirririi"}
"""By routine, the types of its arguments, all by address: c a letter, i an integer, r a number in the precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Q^T A Q = T of a symmetric A, with T tridiagonal and Q a product of reflections that leave the first entry."""

    diagonal: Array
    beside: Array
    reflectors: Array
    tau: Array


def reduce(matrix: Array) -> Reduction:
    """The tridiagonal form of a symmetric matrix in single or double precision, of which the upper half is read."""
    n = len(matrix)
    reflectors = np.array(matrix, order="C")
    kind, lwork = LETTER[reflectors.dtype], 16 * n  # LAPACK then works on 16 columns at a time
    routine = _routine(kind + "sytrd")
    if routine is None:
        done, diagonal, beside, tau, info = getattr(lapack, kind + "sytrd")(reflectors.T, lower=1, lwork=lwork)
        _require(info, "sytrd")
        return Reduction(diagonal=diagonal, beside=beside, reflectors=np.ascontiguousarray(done.T), tau=tau)
    diagonal, beside, tau, work = (np.empty(size, reflectors.dtype) for size in (n, n - 1, n - 1, lwork))
    routine(b"L", n, reflectors, n, diagonal, beside, tau, work, lwork)
    return Reduction(diagonal=diagonal, beside=beside, reflectors=reflectors, tau=tau)


def eigenvalues_of_tridiagonal(diagonal: Array, beside: Array) -> Array:
    """All eigenvalues of a tridiagonal symmetric matrix, smallest first."""
    values, beside = np.array(diagonal, order="C"), np.array(beside, order="C")
    kind = LETTER[values.dtype]
    routine = _routine(kind + "sterf")
    if routine is None:
        values[:], info = getattr(lapack, kind + "sterf")(values, beside)
        _require(info, "sterf")
        return values
    routine(len(values), values, beside)
    return values


def rotate_back(reduction: Reduction, vectors: Array) -> Array:
    """Q x for every row x of (count, n) vectors of T: vectors of A."""
    out = np.array(vectors, dtype=reduction.reflectors.dtype, order="C")
    count, n = out.shape
    kind, lwork = LETTER[out.dtype], 64 * (count + 65)  # LAPACK then applies 64 reflections at a time
    routine = _routine(kind + "ormqr")
    if routine is None:
        reflectors = reduction.reflectors[:-1, 1:].T
        out[:, 1:].T[:], _, info = getattr(lapack, kind + "ormqr")(
            "L", "N", reflectors, reduction.tau, out[:, 1:].T, lwork
        )
        _require(info, "ormqr")
        return out
    work = np.empty(lwork, out.dtype)
    reflectors, rotated = reduction.reflectors[:, 1:], out[:, 1:]
    routine(b"L", b"N", n - 1, count, n - 1, reflectors, n, reduction.tau, rotated, n, work, lwork)
    return out


@cache
def _routine(name: str) -> Callable[..., None] | None:
    """The routine without its last argument, which says what went wrong; None if its types are not those expected."""
    capsule = lapack_capsules().get(name)
    if capsule is None or _types(_signature(capsule), name[0]) != ARGUMENTS[name[1:]]:
        return None
    types = ARGUMENTS[name[1:]]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(types))(_address(capsule))

    def call(*arguments: bytes | int | Array) -> None:
        info = ctypes.c_int(0)
        kept = [ctypes.c_int(x) if isinstance(x, int) else x for x in arguments]
        function(*[_pointer(x) for x in kept], ctypes.addressof(info))
        _require(info.value, name[1:])

    return call


def _pointer(x: bytes | ctypes.c_int | Array) -> Any:
    if isinstance(x, np.ndarray):
        return x.ctypes.data
    return x if isinstance(x, bytes) else ctypes.addressof(x)


def _require(info: int, routine: str) -> None:
    if info:
        raise InputError(f"expected a finite symmetric matrix; LAPACK's {routine} failed with info={info}")


def _types(signature: str, kind: str) -> str:
    """The types of a routine that returns nothing, as in `ARGUMENTS`, with ? for what is not among them."""
    if not (signature.startswith("void (") and signature.endswith(")")):
        return "?"
    named = {"char *": "c", "int *": "i", f"{ {'s': 'float', 'd': 'double'}[kind] } *": "r"}
    parts = signature[len("void (") : -1].split(", ")
    ours = f"cython_lapack_{kind} *"  # how scipy names a number of that precision
    return "".join("r" if part.endswith(ours) else named.get(part, "?") for part in parts)


def _signature(capsule: object) -> str:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return bytes(name(capsule)).decode()


def _address(capsule: object) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, _signature(capsule).encode()))

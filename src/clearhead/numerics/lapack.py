r"""LAPACK's reduction of a symmetric matrix to tridiagonal form, its eigenvalues and back-transformation, in threads.

scipy's wrappers hold Python's interpreter lock, so that two threads take as long as one. scipy also provides the
routines as typed C functions; ctypes releases the lock, so these run in parallel. If their types are not the expected
ones, the wrappers are used: slower, with the same result.

LAPACK is column-major and numpy row-major: a matrix here is its transpose there.
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

Array = NDArray[Any]

LETTER = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
"""First letter of LAPACK's routines by dtype."""
ARGUMENTS = {"sytrd": "cirirrrrii", "sterf": "irri", "ormqr": "cciiirirririi"}
"""Types of the arguments of each routine, all pointers: c character, i integer, r real number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Q^T A Q = T of a symmetric A, with T tridiagonal and Q a product of reflections that fix the first coordinate."""

    diagonal: Array
    off_diagonal: Array
    reflectors: Array
    tau: Array


def reduce(matrix: Array) -> Reduction:
    """Reduce a symmetric matrix in single or double precision, of which the upper half is read, to tridiagonal form."""
    n = len(matrix)
    reflectors = np.array(matrix, order="C")
    kind, lwork = LETTER[reflectors.dtype], 16 * n  # for blocks of 16 columns
    routine = _routine(kind + "sytrd")
    if routine is None:
        done, diagonal, off_diagonal, tau, info = getattr(lapack, kind + "sytrd")(reflectors.T, lower=1, lwork=lwork)
        _require(info, "sytrd")
        return Reduction(diagonal=diagonal, off_diagonal=off_diagonal, reflectors=np.ascontiguousarray(done.T), tau=tau)
    diagonal, off_diagonal, tau, work = (np.empty(size, reflectors.dtype) for size in (n, n - 1, n - 1, lwork))
    routine(b"L", n, reflectors, n, diagonal, off_diagonal, tau, work, lwork)
    return Reduction(diagonal=diagonal, off_diagonal=off_diagonal, reflectors=reflectors, tau=tau)


def eigenvalues_of_tridiagonal(diagonal: Array, off_diagonal: Array) -> Array:
    """Return all eigenvalues of a tridiagonal symmetric matrix, smallest first."""
    values, off_diagonal = np.array(diagonal, order="C"), np.array(off_diagonal, order="C")
    kind = LETTER[values.dtype]
    routine = _routine(kind + "sterf")
    if routine is None:
        values[:], info = getattr(lapack, kind + "sterf")(values, off_diagonal)
        _require(info, "sterf")
        return values
    routine(len(values), values, off_diagonal)
    return values


def rotate_back(reduction: Reduction, vectors: Array) -> Array:
    """Return Q x for each row x of `vectors` (count, n): eigenvectors of A from those of T."""
    out = np.array(vectors, dtype=reduction.reflectors.dtype, order="C")
    count, n = out.shape
    kind, lwork = LETTER[out.dtype], 64 * (count + 65)  # for blocks of 64 reflections
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
    """Return the routine without its last argument, the error code; None if its types are not the expected ones."""
    capsule = lapack_capsules().get(name)
    if capsule is None or _types(_signature(capsule), name[0]) != ARGUMENTS[name[1:]]:
        return None
    types = ARGUMENTS[name[1:]]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(types))(_address(capsule))

    def call(*arguments: bytes | int | Array) -> None:
        info = ctypes.c_int(0)
        held = [ctypes.c_int(x) if isinstance(x, int) else x for x in arguments]  # alive during the call
        function(*[_pointer(x) for x in held], ctypes.addressof(info))
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
    """Return the argument types of a routine as in `ARGUMENTS`, with ? for others."""
    if not (signature.startswith("void (") and signature.endswith(")")):
        return "?"
    named = {"char *": "c", "int *": "i", f"{ {'s': 'float', 'd': 'double'}[kind] } *": "r"}
    parts = signature[len("void (") : -1].split(", ")
    scipy_type = f"cython_lapack_{kind} *"  # scipy's alias of the number type
    return "".join("r" if part.endswith(scipy_type) else named.get(part, "?") for part in parts)


def _signature(capsule: object) -> str:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return bytes(name(capsule)).decode()


def _address(capsule: object) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, _signature(capsule).encode()))

"""LAPACK calls without the interpreter lock give the results of scipy's wrappers."""

import numpy as np
import pytest
import torch
from scipy.linalg import cython_lapack
from scipy.linalg import lapack as wrapped

from clearhead.numerics import lapack
from clearhead.numerics.lapack import Array, eigenvalues_of_tridiagonal, reduce, rotate_back
from clearhead.numerics.precision import tolerance
from tests.numerics.test_krylov import normal

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def symmetric(n: int, dtype: type) -> Array:
    rows = normal(n, n)
    return (rows + rows.mT).numpy().astype(dtype)


def within(matrix: Array) -> float:
    return tolerance(torch.from_numpy(matrix).dtype) * float(np.abs(np.linalg.eigvalsh(matrix)).max())


@DTYPES
@pytest.mark.parametrize("n", [2, 3, 61, 131])
def test_results_equal_those_of_scipys_wrappers(n: int, dtype: type) -> None:
    matrix, kind = symmetric(n, dtype), "s" if dtype is np.float32 else "d"
    result = reduce(matrix)
    want = getattr(wrapped, kind + "sytrd")(matrix.T, lower=1, lwork=16 * n)
    assert np.abs(result.diagonal - want[1]).max() <= within(matrix)
    assert np.abs(result.off_diagonal - want[2]).max() <= within(matrix)
    assert np.abs(result.reflectors.T - want[0]).max() <= within(matrix)
    values = eigenvalues_of_tridiagonal(result.diagonal, result.off_diagonal)
    assert np.abs(values - getattr(wrapped, kind + "sterf")(want[1], want[2])[0]).max() <= within(matrix)
    vectors = normal(7, n, seed=1).numpy().astype(dtype)
    back = vectors.copy()
    back[:, 1:].T[:], _, info = getattr(wrapped, kind + "ormqr")(
        "L", "N", want[0][1:, :-1], want[3], vectors[:, 1:].T, 64 * 72
    )
    assert info == 0
    assert np.abs(rotate_back(result, vectors) - back).max() <= within(matrix)
    assert result.diagonal.dtype == values.dtype == rotate_back(result, vectors).dtype == dtype


@DTYPES
def test_the_factors_reproduce_the_matrix_and_leave_it_unchanged(dtype: type) -> None:
    matrix = symmetric(61, dtype)
    given = matrix.copy()
    result = reduce(matrix)
    small = np.diag(result.diagonal) + np.diag(result.off_diagonal, 1) + np.diag(result.off_diagonal, -1)
    turned = rotate_back(result, np.eye(61)).T
    assert np.abs(turned @ small @ turned.T - matrix).max() <= within(matrix)
    assert np.abs(small - matrix).max() > within(matrix)
    assert np.array_equal(given, matrix)


@DTYPES
def test_scipys_wrappers_are_used_without_function_addresses(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, vectors = symmetric(61, dtype), normal(7, 61, seed=1).numpy().astype(dtype)
    result = reduce(matrix)
    values, back = eigenvalues_of_tridiagonal(result.diagonal, result.off_diagonal), rotate_back(result, vectors)
    monkeypatch.setattr(lapack, "_routine", lambda _: None)
    again = reduce(matrix)
    assert np.abs(again.reflectors - result.reflectors).max() <= within(matrix)
    assert np.abs(eigenvalues_of_tridiagonal(again.diagonal, again.off_diagonal) - values).max() <= within(matrix)
    assert np.abs(rotate_back(again, vectors) - back).max() <= within(matrix)


def test_routines_with_unexpected_signatures_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    find = lapack._routine.__wrapped__
    assert all(find(kind + name) for kind in "sd" for name in lapack.ARGUMENTS)
    assert lapack._types("void (int *, double *, x_cython_lapack_d *, int *)", "d") == "irri"
    for other in ("void (long *, double *, double *, int *)", "int (int *, double *, double *, int *)", "void (int *)"):
        assert lapack._types(other, "d") != "irri"
    assert lapack._types("void (int *, float *, float *, int *)", "d") == "i??i"
    monkeypatch.setitem(lapack.ARGUMENTS, "sterf", "irr")
    assert find("dsterf") is None
    monkeypatch.delattr(cython_lapack, "__pyx_capi__")
    assert find("dsytrd") is None


def test_lapack_errors_are_raised() -> None:
    matrix, room = symmetric(3, np.float64), np.empty(48)
    call = lapack._routine("dsytrd")
    with pytest.raises(ValueError, match="sytrd failed with info=-1"):
        call(b"X", 3, matrix, 3, np.empty(3), np.empty(2), np.empty(2), room, 48)

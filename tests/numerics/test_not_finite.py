"""NaN, infinity, overflow and empty inputs raise a clear error or stay visible in the result."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import (
    class_rates,
    coding_rate,
    numerical_rank,
    predicted_excess,
    rate_gradient,
    subspace_rates,
)
from clearhead.numerics.eigenpairs import dense_eigenpairs, krylov_eigenpairs
from clearhead.numerics.gram import tiled_gram
from clearhead.numerics.least_distance import least_distance
from clearhead.numerics.logdet import log_det, log_det_gradient
from clearhead.numerics.moments import RunningMoments, false_discovery_rate, prediction_p_value
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.numerics.partial import all_eigenvalues, leading_eigenpairs
from clearhead.numerics.spectrum import captured_fraction, features_from_log_kernel, orthonormal_basis
from tests.numerics.stored_rows import StoredRows

BAD = [math.nan, math.inf, -math.inf]


def _unit(z: Tensor) -> StoredRows:
    return StoredRows(torch.nn.functional.normalize(z, dim=-1).double().numpy())


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "coding_rate": coding_rate,
    "rate_gradient": rate_gradient,
    "numerical_rank": numerical_rank,
    "class_rates": lambda z: class_rates(z, labels=torch.zeros(len(z), dtype=torch.int64)),
    "subspace_rates": lambda z: subspace_rates(z, torch.eye(4)[None]),
    "log_det": log_det,
    "log_det_gradient": log_det_gradient,
    "predicted_excess": lambda z: predicted_excess(z, dtype=torch.float32, eps=0.5),
    "dense_eigenpairs": lambda z: dense_eigenpairs(z @ z.mT, 2),
    "leading_eigenpairs": lambda z: leading_eigenpairs((z @ z.mT)[None], 2),
    "all_eigenvalues": lambda z: all_eigenvalues((z @ z.mT)[None]),
    "tiled_gram": lambda z: tiled_gram(z, scale=0.5),
    "features_from_log_kernel": lambda z: features_from_log_kernel(z @ z.mT),
    "orthonormal_basis": orthonormal_basis,
    "captured_fraction": lambda z: captured_fraction(z, torch.eye(4)[:, :2]),
    "nonnegative_qp": lambda z: NonnegativeQP(StoredRows(z.double().numpy())).solve(np.ones(len(z))),
    "least_distance": lambda z: least_distance(StoredRows(z.double().numpy()), np.ones(len(z)), guess=np.ones(len(z))),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("function", REFUSED)
def test_non_finite_numbers_raise_a_named_error(function: str, bad: float) -> None:
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    REFUSED[function](z / 2)
    z[2, 1] = bad
    with pytest.raises(InputError, match="finite"):
        REFUSED[function](z)


def test_overflowing_products_raise_a_named_error() -> None:
    with pytest.raises(InputError, match="finite rows and products"):
        captured_fraction(1e38 * torch.ones(5, 4), torch.eye(4)[:, :2])


def test_empty_inputs() -> None:
    nothing = torch.zeros(0, 4)
    assert log_det(nothing) == 0
    assert log_det_gradient(nothing).shape == (0, 4)
    assert log_det(torch.zeros(3, 0, 4)).tolist() == [0, 0, 0]
    assert orthonormal_basis(nothing).shape == (0, 4)
    assert dense_eigenpairs(torch.zeros(2, 0, 0), 3).values.shape == (2, 0)
    result = least_distance(_unit(nothing), np.zeros(0), guess=np.zeros(0))
    assert result is not None
    assert result.exists
    for call in (
        lambda: coding_rate(nothing),
        lambda: predicted_excess(nothing, dtype=torch.float32, eps=0.5),
        lambda: tiled_gram(nothing, scale=1.0),
        lambda: krylov_eigenpairs(lambda x: x, torch.zeros(0, 2), 1),
        lambda: features_from_log_kernel(torch.zeros(0, 0)),
        lambda: leading_eigenpairs(torch.zeros(1, 0, 0), 1),
    ):
        with pytest.raises(InputError, match="expected"):
            call()


@pytest.mark.parametrize("count", [0, 3, 4])
def test_a_count_of_n_or_more_eigenpairs_raises_an_error(count: int) -> None:
    with pytest.raises(InputError, match="below n = 3"):
        leading_eigenpairs(torch.eye(3)[None], count)


def test_statistics_of_few_samples_are_nan() -> None:
    assert math.isnan(prediction_p_value(1.0, np.zeros(0)))
    assert math.isnan(prediction_p_value(1.0, np.zeros(1)))
    assert np.isnan(RunningMoments((2,)).p_value()).all()
    assert np.isnan(false_discovery_rate(np.array([math.nan]))).all()
    with pytest.raises(InputError, match="between 0 and 1"):
        false_discovery_rate(np.array([0.5, 1.5]))

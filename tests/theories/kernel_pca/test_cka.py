"""Centred kernel alignment by its definition, and the bias of the usual estimate."""

import pytest
import torch
from torch import Tensor

from clearhead.theories.kernel_pca.cka import Gram, biased_cka, gaussian_gram, linear_gram, unbiased_cka
from tests.theories.kernel_pca.drawing import normal

TOKENS, LEFT, RIGHT = 23, 7, 11


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-2, keepdim=True)


def test_linear_cka_is_the_norm_of_the_cross_covariance() -> None:
    x, y = _centred(normal(3, TOKENS, LEFT, seed=0)), _centred(normal(3, TOKENS, RIGHT, seed=1))
    cross, left, right = (torch.linalg.matrix_norm(a.mT @ b) for a, b in ((x, y), (x, x), (y, y)))
    cka = biased_cka(linear_gram(x + 5), linear_gram(y - 3))
    assert torch.allclose(cka, cross**2 / (left * right), rtol=1e-9)


def test_the_unbiased_estimate_is_the_sum_over_distinct_tokens() -> None:
    """Song et al.: the average over distinct i, j, q, r of k_ij (l_ij + l_qr - 2 l_iq), up to a factor."""
    n = 6
    k, other = (normal(n, n, seed=s) for s in (0, 1))
    k, other = k @ k.T, other @ other.T

    def hsic(a: Tensor, b: Tensor) -> float:
        distinct = [
            (i, j, q, r)
            for i in range(n) for j in range(n) for q in range(n) for r in range(n) if len({i, j, q, r}) == 4
        ]  # fmt: skip
        terms = [float(a[i, j] * (b[i, j] + b[q, r] - 2 * b[i, q])) for i, j, q, r in distinct]
        return sum(terms) / len(terms)

    expected = hsic(k, other) / (hsic(k, k) * hsic(other, other)) ** 0.5
    assert float(unbiased_cka(Gram.of(k), Gram.of(other))) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gram", [linear_gram, gaussian_gram])
def test_cka_is_one_for_rotations_and_shifts_and_less_for_unrelated_sets(gram: object) -> None:
    x = normal(TOKENS, LEFT, seed=0)
    rotated = 2 * x @ torch.linalg.qr(normal(LEFT, LEFT, seed=1))[0] + 4
    for cka in (biased_cka, unbiased_cka):
        assert float(cka(gram(x), gram(rotated))) == pytest.approx(1, abs=1e-9)  # type: ignore[operator]
        other = cka(gram(x), gram(normal(TOKENS, LEFT, seed=2)))  # type: ignore[operator]
        assert float(other) < 0.9


@pytest.mark.parametrize("gram", [linear_gram, gaussian_gram])
def test_only_the_unbiased_estimate_averages_to_zero_for_unrelated_sets(gram: object) -> None:
    x, y = gram(normal(400, TOKENS, LEFT, seed=0)), gram(normal(400, TOKENS, RIGHT, seed=1))  # type: ignore[operator]
    unbiased, biased = unbiased_cka(x, y), biased_cka(x, y)
    assert abs(unbiased.mean()) < 4 * unbiased.std() / 20
    assert biased.mean() > 20 * biased.std() / 20


def test_the_width_of_the_gaussian_kernel_is_the_median_distance() -> None:
    x = normal(TOKENS, LEFT, seed=0)
    distance = torch.cdist(x, x).square()
    first, second = torch.triu_indices(TOKENS, TOKENS, offset=1)
    median = distance[first, second].median()
    expected = (-distance / (2 * median)).exp()
    assert torch.allclose(gaussian_gram(x).entries, expected, atol=1e-9)
    assert torch.allclose(gaussian_gram(1e150 * x).entries, expected, atol=1e-9)


def test_cka_is_nan_for_constant_sets_and_for_too_few_tokens() -> None:
    x, constant = normal(TOKENS, LEFT, seed=0), torch.ones(TOKENS, LEFT, dtype=torch.float64)
    assert torch.isnan(biased_cka(linear_gram(x), linear_gram(0 * constant)))
    assert torch.isnan(unbiased_cka(linear_gram(x[:3]), linear_gram(x[:3])))

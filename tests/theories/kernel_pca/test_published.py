"""Published statistics by their definitions, and the weakness of each."""

import itertools

import pytest
import torch

from clearhead.theories.kernel_pca.cka import biased_cka, linear_gram
from clearhead.theories.kernel_pca.published import (
    gammas,
    published_values,
    standardised,
    token_cosine,
    top_eigenvalues,
)
from clearhead.theories.kernel_pca.space import key_space, principal_axes
from tests.theories.kernel_pca.drawing import HEADS, SCALE, TOKENS, VALUES, normal, space_of


def test_gammas_by_their_definition_over_all_pairs() -> None:
    space, _ = space_of()
    v = normal(HEADS, TOKENS, VALUES, seed=1)
    kernel = (SCALE * space.k @ space.k.mT).exp()
    g = kernel.sum(-1)
    centring = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    gram = centring @ (kernel / g.unsqueeze(-1) / g.unsqueeze(-2)) @ centring
    a = centring @ (g.unsqueeze(-1) * v)
    gamma = gram @ a / (TOKENS * a)
    pairs = torch.tensor(list(itertools.combinations(range(TOKENS), 2)))
    difference = (gamma[:, pairs[:, 0]] - gamma[:, pairs[:, 1]]).abs()
    result = gammas(space, v)
    assert torch.allclose(result.difference, difference.mean(1), rtol=1e-9)
    assert torch.allclose(result.deviation, difference.std(1, correction=0), rtol=1e-6)
    centre = gamma.mean(1).abs()
    assert torch.allclose(result.relative, difference.mean(1) / centre, rtol=1e-9)
    assert torch.allclose(result.relative_deviation, difference.std(1, correction=0) / centre, rtol=1e-6)


def test_gammas_are_constant_for_eigenvectors_and_small_for_any_values() -> None:
    space, principal = space_of()
    exact, other = gammas(space, principal.values), gammas(space, normal(HEADS, TOKENS, VALUES, seed=1))
    largest = top_eigenvalues(principal.energy, space.log_unit)["max"]
    assert (exact.difference < 1e-9 * largest.unsqueeze(-1)).all()
    assert (exact.relative < 1e-9).all()
    assert (other.relative.mean(dim=-1) > 0.1).all()
    # The weakness: in absolute terms random values look like eigenvectors.
    assert (other.difference < 0.01).all()


def test_the_token_cosine_depends_on_arbitrary_signs() -> None:
    space, principal = space_of()
    theorem = published_values(space, principal)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    assert token_cosine(theorem, theorem).min() == pytest.approx(1, abs=1e-12)
    assert (token_cosine(theorem, theorem * signs) < 0.9).all()
    assert torch.allclose(
        biased_cka(linear_gram(theorem), linear_gram(theorem * signs)).min(), torch.tensor(1.0).double()
    )
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    assert token_cosine(theorem, theorem[:, order]).min() == pytest.approx(1, abs=1e-12)


def test_published_values_are_eigenvectors_over_g() -> None:
    space, principal = space_of()
    ratio = published_values(space, principal) * space.log_g.exp().unsqueeze(-1) / principal.vectors
    assert torch.allclose(ratio, ratio[:, :1, :1].expand_as(ratio), rtol=1e-9)


def test_eigenvalues_are_those_of_the_gram_matrix_and_within_their_bound() -> None:
    space, principal = space_of()
    kernel = (SCALE * space.k @ space.k.mT).exp()
    g = kernel.sum(-1)
    centring = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    energy = torch.linalg.eigvalsh(centring @ (kernel / g.unsqueeze(-1) / g.unsqueeze(-2)) @ centring)
    energy = energy.flip(-1)[:, :VALUES]
    result = top_eigenvalues(principal.energy, space.log_unit)
    for name, expected in {
        "max": energy[:, 0],
        "mean": energy.mean(-1),
        "median": energy.median(-1).values,
        "min": energy[:, -1],
    }.items():
        assert torch.allclose(result[name], expected, rtol=1e-9), name
    bound = (-SCALE * space.k.square().sum(-1)).exp().sum(-1)
    assert (result["mean"] * VALUES <= bound).all()


def test_the_length_of_standardised_keys_bounds_their_spectrum() -> None:
    """|k|^2 = D - 1 for every token, so that the trace is at most N exp(-s (D - 1))."""
    width = 17
    k = 3 + 2 * normal(HEADS, TOKENS, width, seed=0)
    result = standardised(k, scale=width**-0.5, sinks=None, count=VALUES)
    assert (result["mean"] * VALUES <= TOKENS * torch.tensor(-(width - 1) * width**-0.5).exp()).all()
    expected_keys = (k - k.mean(-1, keepdim=True)) / k.std(-1, keepdim=True)
    for keys, same in ((expected_keys, True), (k, False)):
        space = key_space(keys, scale=width**-0.5)
        expected = top_eigenvalues(principal_axes(space, VALUES).energy, space.log_unit)
        assert all(torch.allclose(result[name], expected[name], rtol=1e-9) for name in result) is same


def test_a_constant_token_cannot_be_standardised() -> None:
    k = normal(HEADS, TOKENS, 7, seed=0)
    k[1, 3] = 2.0
    result = standardised(k, scale=0.4, sinks=None, count=VALUES)
    assert [bool(x) for x in torch.isnan(result["max"])] == [False, True, False]

"""Every consequence of the theory holds for the theorem's values and fails for random ones."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.theories.kernel_pca.published import (
    axes_not_orthogonal,
    axis_coefficients,
    best_assignment,
    eigenvector_residual,
    matched_cosine,
    mean_of_weighted_values,
    participation,
)
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space, principal_axes
from clearhead.theories.kernel_pca.spans import captured_variance, span_of, span_variance, subspace_overlap
from tests.theories.kernel_pca.drawing import HEADS, SCALE, TOKENS, VALUES, mixing, normal, space_of

Statistic = Callable[[KeySpace, Principal, Tensor], Tensor]

STATISTICS: dict[str, tuple[Statistic, float, bool]] = {
    "captured": (lambda s, p, v: span_variance(s, p, span_of(s, v)), 1.0, True),
    "overlap": (lambda s, p, v: subspace_overlap(p, span_of(s, v)), 1.0, True),
    "mean": (lambda s, p, v: mean_of_weighted_values(s, v), 0.0, False),
    "orthogonal": (lambda s, p, v: axes_not_orthogonal(s, v), 0.0, False),
    "residual": (eigenvector_residual, 0.0, False),
    "matched": (lambda s, p, v: matched_cosine(p, v), 1.0, False),
}
"""The statistic, its predicted value, and whether it is invariant to mixing the values."""


@pytest.mark.parametrize("name", STATISTICS)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([0.3, 1.0, 2.0]))
def test_exact_for_the_theorems_values_and_not_for_others(name: str, seed: int, size: float) -> None:
    statistic, predicted, _ = STATISTICS[name]
    space, principal = space_of(seed, size=size)
    result = statistic(space, principal, principal.values)
    assert result.shape == (HEADS,)
    assert (result - predicted).abs().max() < 1e-9
    other = statistic(space, principal, normal(HEADS, TOKENS, VALUES, seed=seed + 1))
    assert (other - predicted).abs().min() > 1e-3


@pytest.mark.parametrize("name", STATISTICS)
def test_mixing_values_changes_only_statistics_of_single_columns(name: str) -> None:
    statistic, _, invariant = STATISTICS[name]
    space, principal = space_of()
    v = normal(HEADS, TOKENS, VALUES, seed=1)
    original, mixed = (statistic(space, principal, x) for x in (v, v @ mixing(VALUES, 2)))
    assert bool(torch.allclose(original, mixed, rtol=1e-9)) is invariant


@pytest.mark.parametrize("name", STATISTICS)
def test_a_batch_of_draws_equals_the_draws_one_by_one(name: str) -> None:
    statistic, _, _ = STATISTICS[name]
    space, principal = space_of()
    v = normal(7, HEADS, TOKENS, VALUES, seed=1)
    together = statistic(space, principal, v)
    assert together.shape == (7, HEADS)
    for draw, result in zip(v, together, strict=True):
        assert torch.allclose(statistic(space, principal, draw), result, rtol=1e-9)


def test_both_functions_give_the_same_captured_variance() -> None:
    space, principal = space_of()
    v = normal(HEADS, TOKENS, VALUES, seed=1)
    from_keys = captured_variance(space.k, v, scale=SCALE)
    assert torch.allclose(span_variance(space, principal, span_of(space, v)), from_keys, rtol=1e-12)


def test_principal_axes_are_those_of_the_gram_matrix() -> None:
    """The centred Gram matrix is computed directly; its entries are moderate here."""
    space, principal = space_of()
    kernel = (SCALE * space.k @ space.k.mT).exp()
    g = kernel.sum(-1)
    centring = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    gram = centring @ (kernel / g.unsqueeze(-1) / g.unsqueeze(-2)) @ centring
    energy = principal.energy * (2 * space.log_unit).exp().unsqueeze(-1)
    assert torch.allclose(gram @ principal.vectors, principal.vectors * energy.unsqueeze(-2), atol=1e-15)
    values = principal.values * principal.log_values.exp()[:, None, None]
    axes = values.mT @ kernel @ values
    assert torch.allclose(axes, torch.eye(VALUES, dtype=torch.float64).expand_as(axes), atol=1e-10)
    assert bool((principal.vectors.gather(-2, principal.vectors.abs().argmax(-2, keepdim=True)) > 0).all())


def test_axes_beyond_the_rank_are_not_known() -> None:
    k = normal(1, 4, 11, seed=0).repeat(1, 5, 1)
    principal = principal_axes(key_space(k, scale=SCALE), 7)
    assert principal.known.sum().item() == 3
    for tensor in (principal.energy, principal.vectors, principal.directions, principal.values):
        assert torch.isfinite(tensor).all()
        assert not tensor[..., 3:].any()
    of_equal_keys = principal_axes(key_space(torch.ones(1, 9, 11), scale=SCALE), 7)
    assert not of_equal_keys.known.any()
    assert torch.isnan(subspace_overlap(of_equal_keys, span_of(key_space(torch.ones(1, 9, 11), scale=SCALE), k[:, :9])))


def test_the_weighted_mean_by_its_definition() -> None:
    space, _ = space_of()
    v = normal(HEADS, TOKENS, VALUES, seed=1)
    w = v * space.log_g.exp().unsqueeze(-1)
    expected = (w.sum(-2).abs() / w.abs().sum(-2)).mean(-1)
    assert torch.allclose(mean_of_weighted_values(space, v), expected, rtol=1e-12)
    ratio = axis_coefficients(space, v) / w
    assert torch.allclose(ratio, ratio[..., :1, :1].expand_as(ratio), rtol=1e-12)


def test_the_eigenvector_residual_by_its_definition() -> None:
    space, principal = space_of()
    v = normal(HEADS, TOKENS, VALUES, seed=1)
    kernel = (SCALE * space.k @ space.k.mT).exp()
    g = kernel.sum(-1)
    centring = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    gram = centring @ (kernel / g.unsqueeze(-1) / g.unsqueeze(-2)) @ centring
    energy = torch.linalg.eigvalsh(gram)
    b = centring @ (g.unsqueeze(-1) * v)
    b = b / b.norm(dim=-2, keepdim=True)
    residual = gram @ b - (b * (gram @ b)).sum(dim=-2, keepdim=True) * b
    expected = residual.norm(dim=-2).mean(dim=-1) / (energy[:, -1] - energy[:, -VALUES])
    assert torch.allclose(eigenvector_residual(space, principal, v), expected, rtol=1e-9)


def test_participation_counts_tokens() -> None:
    v = torch.zeros(TOKENS, 3, dtype=torch.float64)
    v[4, 0], v[:, 1], v[:7, 2] = -2.0, 1e-9, 1e200
    assert participation(v[:, :1]).item() == pytest.approx(1)
    assert participation(v[:, 1:2]).item() == pytest.approx(TOKENS)
    assert participation(v[:, 2:]).item() == pytest.approx(7)
    assert participation(v).item() == pytest.approx((1 + TOKENS + 7) / 3)
    assert participation(torch.stack([v[:, 0], 0 * v[:, 0]], dim=-1)).item() == pytest.approx(1)


def test_zero_columns_are_left_out() -> None:
    space, principal = space_of()
    v = normal(HEADS, TOKENS, 3, seed=1)
    v[..., 1], wider = 2 * v[..., 0], torch.zeros(HEADS, TOKENS, 5, dtype=torch.float64)
    wider[..., :3] = v
    assert torch.allclose(axes_not_orthogonal(space, wider[..., [0, 1, 4]]), torch.ones(HEADS, dtype=torch.float64))
    for statistic in (
        lambda x: axes_not_orthogonal(space, x),
        lambda x: mean_of_weighted_values(space, x),
        lambda x: eigenvector_residual(space, principal, x),
        participation,
    ):
        assert torch.allclose(statistic(wider), statistic(v), rtol=1e-12)
        assert torch.isnan(statistic(0 * v)).all()


def test_the_best_assignment_is_the_best_of_all_orders() -> None:
    gain = normal(4, 4, seed=0)
    orders = torch.cartesian_prod(*[torch.arange(4)] * 4)
    orders = orders[(orders.sort(dim=-1).values == torch.arange(4)).all(dim=-1)]
    best = max(float(gain[torch.arange(4), order].sum()) for order in orders)
    assert len(orders) == 24
    assert float(best_assignment(gain)) == pytest.approx(best)
    assert torch.isnan(best_assignment(gain * torch.nan))


def test_the_matched_cosine_ignores_signs_and_order() -> None:
    _, principal = space_of()
    order = torch.randperm(VALUES, generator=torch.Generator().manual_seed(0))
    assert matched_cosine(principal, -3 * principal.values[..., order]).min() > 1 - 1e-12


def test_keys_of_any_length_stay_finite() -> None:
    for size in (6.0, 40.0):
        space, principal = space_of(size=size)
        v = normal(HEADS, TOKENS, VALUES, seed=1)
        for name, (statistic, _, _) in STATISTICS.items():
            assert torch.isfinite(statistic(space, principal, v)).all(), name

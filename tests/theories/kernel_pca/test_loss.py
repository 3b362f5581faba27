"""The projection loss: the true residual by its definition, and the weakness of the published form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.theories.kernel_pca.loss import (
    Queries,
    explained_fraction,
    log_output_square,
    log_true_loss,
    queries_in_space,
)
from clearhead.theories.kernel_pca.space import KeySpace, key_space
from clearhead.theories.kernel_pca.spans import span_of
from tests.theories.kernel_pca.drawing import HEADS, SCALE, TOKENS, VALUES, WIDTH, mixing, normal, space_of

QUERIES = 7


def _seen(space: KeySpace, seed: int = 3, size: float = 1.0) -> Queries:
    return queries_in_space(space, size * normal(HEADS, 1, QUERIES, WIDTH, seed=seed))


def _by_definition(space: KeySpace, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean |phi(q)|^2 and J_true with h^T (V^T K V)^+ h."""
    scores = SCALE * q @ space.k.mT
    g = scores.exp().sum(-1)
    square = (SCALE * q.square().sum(-1)).exp() / g**2
    h = scores.softmax(-1) @ v
    kernel = (SCALE * space.k @ space.k.mT).exp()
    explained = ((h @ torch.linalg.pinv(v.mT @ kernel @ v, hermitian=True)) * h).sum(-1)
    return square.mean(-1), (square - explained).mean(-1)


@given(st.integers(0, 2**31))
def test_the_true_loss_by_its_definition(seed: int) -> None:
    space, _ = space_of(seed)
    q, v = normal(HEADS, QUERIES, WIDTH, seed=seed + 1), normal(HEADS, TOKENS, VALUES, seed=seed + 2)
    queries = queries_in_space(space, q.unsqueeze(1))
    total, loss = _by_definition(space, q, v)
    explained = explained_fraction(queries, span_of(space, v)).squeeze(-1)
    assert torch.allclose(queries.log_mean_square.squeeze(-1).exp(), total, rtol=1e-9)
    assert torch.allclose(1 - explained, loss / total, rtol=1e-6)
    assert torch.allclose(log_true_loss(queries, explained.unsqueeze(-1)).squeeze(-1).exp(), loss, rtol=1e-6)


def test_the_explained_fraction_is_between_0_and_1_and_invariant_to_mixing() -> None:
    space, _ = space_of()
    queries, v = _seen(space), normal(HEADS, TOKENS, VALUES, seed=1)
    original = explained_fraction(queries, span_of(space, v))
    assert ((original > 0) & (original < 1)).all()
    assert torch.allclose(explained_fraction(queries, span_of(space, v @ mixing(VALUES, 2))), original, rtol=1e-9)
    # The published form is not: larger values make it negative.
    published = [queries.log_mean_square.exp() - log_output_square(queries, x).exp() for x in (v, 10 * v)]
    assert (published[1] < published[0]).all()
    assert (published[1] < 0).all()


def test_both_forms_agree_for_the_theorems_values_only() -> None:
    space, principal = space_of()
    queries = _seen(space)
    total = queries.log_mean_square.exp()
    output = (log_output_square(queries, principal.values) + 2 * principal.log_values.unsqueeze(-1)).exp()
    explained = explained_fraction(queries, principal.directions)
    assert torch.allclose(total - output, log_true_loss(queries, explained).exp(), rtol=1e-9)
    assert torch.allclose(explained_fraction(queries, span_of(space, principal.values)), explained, rtol=1e-9)
    v = normal(HEADS, TOKENS, VALUES, seed=1)
    other = total - log_output_square(queries, v).exp()
    assert not torch.allclose(other, log_true_loss(queries, explained_fraction(queries, span_of(space, v))).exp())


def test_keys_as_queries_lie_in_the_span_of_the_keys() -> None:
    space, _ = space_of()
    queries = queries_in_space(space, space.k.unsqueeze(1))
    whole = torch.eye(TOKENS, dtype=torch.float64).expand(HEADS, -1, -1)
    assert torch.allclose(explained_fraction(queries, whole), torch.ones(HEADS, 1, dtype=torch.float64), atol=1e-9)
    far = queries_in_space(space, 3 * normal(HEADS, 1, QUERIES, WIDTH, seed=5))
    assert (explained_fraction(far, whole) < 0.5).all()


def test_equal_keys_share_a_coordinate() -> None:
    k = normal(1, 11, WIDTH, seed=0)
    k[:, 7] = k[:, 2]
    q = normal(1, 1, QUERIES, WIDTH, seed=1)
    double, single = (key_space(x, scale=SCALE) for x in (k, torch.cat([k[:, :7], k[:, 8:]], dim=1)))
    span = torch.eye(11, dtype=torch.float64)
    whole = explained_fraction(queries_in_space(double, q), span.unsqueeze(0))
    assert torch.isfinite(whole).all()
    shares = [queries_in_space(space, q).directions.square().sum(-1) for space in (double, single)]
    assert torch.allclose(shares[0], shares[1], rtol=1e-9)
    assert not queries_in_space(double, q).directions[..., -1].any(), "no key introduces the last coordinate"


@pytest.mark.parametrize("size", [3.0, 6.0, 40.0])
def test_finite_for_keys_whose_kernel_overflows(size: float) -> None:
    space, principal = space_of(size=size)
    queries = _seen(space, size=size)
    for span in (principal.directions, span_of(space, normal(HEADS, TOKENS, VALUES, seed=1))):
        explained = explained_fraction(queries, span)
        assert torch.isfinite(explained).all()
        assert torch.isfinite(log_true_loss(queries, explained)).all()
    assert torch.isfinite(queries.log_mean_square).all()


def test_query_heads_that_share_keys_are_measured_separately() -> None:
    space, _ = space_of()
    q, v = normal(HEADS, 2, QUERIES, WIDTH, seed=3), normal(HEADS, TOKENS, VALUES, seed=1)
    span = span_of(space, v)
    together = explained_fraction(queries_in_space(space, q), span)
    for head in range(2):
        alone = explained_fraction(queries_in_space(space, q[:, head : head + 1]), span)
        assert torch.allclose(together[:, head], alone.squeeze(-1), rtol=1e-12)


def test_a_sink_reduces_weights_and_lengths() -> None:
    k, q = normal(1, TOKENS, WIDTH, seed=0), normal(1, 1, QUERIES, WIDTH, seed=1)
    without, with_sink = (
        queries_in_space(key_space(k, scale=SCALE, sinks=s), q)
        for s in (None, torch.tensor([2.0], dtype=torch.float64))
    )
    g = (SCALE * q[0, 0] @ k[0].T).exp().sum(-1)
    log_factor = (g / (g + torch.tensor(2.0, dtype=torch.float64).exp())).log()
    assert torch.allclose(with_sink.log_square[0, 0], without.log_square[0, 0] + 2 * log_factor, rtol=1e-9)
    assert torch.allclose(with_sink.weights.sum(-1)[0, 0], log_factor.exp(), rtol=1e-9)

"""Properties of general attention that hold for some similarities and not for others."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    embedded_gaussian,
    gaussian,
    gaussian_distance,
    general_attention,
)
from clearhead.operators.softmax import softmax_attention
from clearhead.testing import require_close
from clearhead.testing.operators import WIDTH
from tests.operators.similarities import COUNTED, EXPONENTIAL, SIMILARITIES, VALUES, WEIGHT, random_operands, rotate


def weights(q: Tensor, k: Tensor, **options) -> Tensor:
    """Return the weight of each value, from the output for one-hot values."""
    return general_attention(q, k, torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-1], -1), **options)


def outside_the_hull(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity) -> float:
    out = general_attention(q, k, v, similarity=similarity)
    above, below = out - v.amax(dim=-2, keepdim=True), v.amin(dim=-2, keepdim=True) - out
    return float(torch.maximum(above, below).max())


@pytest.mark.parametrize("name", EXPONENTIAL)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_outputs_divided_by_the_sum_lie_in_the_hull_of_the_values(name: str, seed: int) -> None:
    assert outside_the_hull(*random_operands(seed=seed), SIMILARITIES[name]) <= tolerance(torch.float64)


@pytest.mark.parametrize("name", COUNTED)
def test_outputs_divided_by_the_count_leave_the_hull_of_the_values(name: str) -> None:
    assert max(outside_the_hull(*random_operands(seed=seed), SIMILARITIES[name]) for seed in range(10)) > 0.1


@pytest.mark.parametrize("name", SIMILARITIES)
def test_weights_sum_to_one_only_if_divided_by_their_sum(name: str) -> None:
    q, k, _ = random_operands()
    shares = weights(q, k, similarity=SIMILARITIES[name])
    sums_to_one = bool(((shares.sum(dim=-1) - 1).abs() <= tolerance(torch.float64)).all())
    assert sums_to_one == (name in EXPONENTIAL)
    assert bool((shares >= 0).all()) == (name != "dot product")


def test_the_normaliser_depends_on_the_query() -> None:
    q, k, _ = random_operands()
    similarity = gaussian()
    normalisers = similarity.scores(q, k).exp().sum(dim=-1)
    assert (normalisers.amax(dim=-1) > 2 * normalisers.amin(dim=-1)).all()
    want = similarity.scores(q, k).exp() / normalisers[..., None]
    require_close(weights(q, k), want, within=tolerance(torch.float64), what="weights")
    one = similarity.scores(q, k).exp() / normalisers.mean(dim=-1)[..., None, None]
    with pytest.raises(AssertionError, match="relative error"):
        require_close(weights(q, k), one, within=tolerance(torch.float64), what="one normaliser for all queries")


def test_dot_products_cannot_be_divided_by_their_sum() -> None:
    def worst(similarity: Similarity) -> float:
        cancelled = []
        for seed in range(50):
            f = similarity.scores(*random_operands(seed=seed)[:2])
            cancelled.append(float((f.abs().sum(dim=-1) / f.sum(dim=-1).abs()).max()))
        return max(cancelled)

    assert worst(dot_product()) > 100
    exponential = gaussian()
    positive = Similarity(
        pair=exponential.pair, scores=lambda q, k: exponential.scores(q, k).exp(), exponential=False
    )  # control: the sum of positive similarities never cancels
    assert worst(positive) <= 1 + tolerance(torch.float64)


def test_zero_concatenation_weights_give_zero_outputs() -> None:
    q, k, v = (x.abs() for x in random_operands())
    cut = concatenation(-torch.ones(2 * WIDTH, dtype=torch.float64))
    assert (cut.scores(q, k).sum(dim=-1) == 0).all()
    assert (general_attention(q, k, v, similarity=cut) == 0).all()
    kept = concatenation(torch.ones(2 * WIDTH, dtype=torch.float64))
    assert (general_attention(q, k, v, similarity=kept) > 0).all()


@pytest.mark.parametrize("name", SIMILARITIES)
def test_repeating_every_key_changes_nothing(name: str) -> None:
    q, k, v = random_operands()
    attend = functools.partial(general_attention, similarity=SIMILARITIES[name])
    twice = [x.repeat_interleave(2, dim=-2) for x in (k, v)]
    require_close(attend(q, *twice), attend(q, k, v), within=tolerance(torch.float64), what="all keys twice")
    once_more = [torch.cat([x, x[..., :1, :]], dim=-2) for x in (k, v)]
    with pytest.raises(AssertionError, match="relative error"):
        require_close(attend(q, *once_more), attend(q, k, v), within=1e-3, what="one key twice")


def test_outputs_divided_by_the_count_scale_with_the_queries() -> None:
    q, k, v = random_operands()
    attend = functools.partial(general_attention, k=k, v=v, similarity=dot_product())
    require_close(attend(2 * q), 2 * attend(q), within=tolerance(torch.float64), what="dot product")
    assert outside_the_hull(100 * q, k, v, gaussian()) <= tolerance(torch.float64)


def test_only_linear_value_maps_commute_with_the_mean() -> None:
    q, k, v = random_operands()
    inside = functools.partial(general_attention, q, k, v)
    linear, squared = VALUES["linear"], torch.square
    require_close(inside(value=linear), linear(inside()), within=tolerance(torch.float64), what="linear")
    with pytest.raises(AssertionError, match="relative error"):
        require_close(inside(value=squared), squared(inside()), within=0.1, what="square")


def test_without_a_similarity_it_is_softmax_attention_without_scale() -> None:
    operands = random_operands()
    want = softmax_attention(*operands, scale=1.0)
    require_close(general_attention(*operands), want, within=tolerance(torch.float64), what="scale 1")
    with pytest.raises(AssertionError, match="relative error"):
        require_close(general_attention(*operands), softmax_attention(*operands), within=1e-3, what="scale 1/sqrt(d)")


def test_the_maps_act_on_queries_keys_and_values_first() -> None:
    q, k, v = random_operands()
    embedded = {"theta": rotate, "phi": torch.tanh}
    for plain, mapped in (
        (gaussian(scale=0.7), embedded_gaussian(**embedded, scale=0.7)),
        (dot_product(), dot_product(**embedded)),
        (concatenation(WEIGHT), concatenation(WEIGHT, **embedded)),
        (gaussian_distance(bandwidth=2.0), gaussian_distance(bandwidth=2.0, **embedded)),
    ):
        got = general_attention(q, k, v, similarity=mapped, value=torch.sin)
        want = general_attention(rotate(q), k.tanh(), v.sin(), similarity=plain)
        require_close(got, want, within=tolerance(torch.float64), what="mapped before")
        swapped = general_attention(q.tanh(), rotate(k), v.sin(), similarity=plain)
        with pytest.raises(AssertionError, match="relative error"):
            require_close(got, swapped, within=1e-3, what="the maps of queries and keys exchanged")


def distance_softmax(q: Tensor, k: Tensor, v: Tensor, bandwidth: float) -> Tensor:
    squares = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(dim=-1)
    return (-squares / (2 * bandwidth**2)).softmax(dim=-1) @ v


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("away", [0, 2**10])
def test_gaussian_distance_is_the_softmax_of_distances_at_any_offset(dtype: torch.dtype, away: int) -> None:
    q, k, v = random_operands(dtype=dtype)
    q, k = q + away, k + away  # in half precision most of the digits are lost here, for either way of computing
    want = distance_softmax(q.double(), k.double(), v.double(), 1.5)
    got = general_attention(q, k, v, similarity=gaussian_distance(bandwidth=1.5))
    require_close(got, want, within=tolerance(dtype), what="near the origin or not")


def test_gaussian_distance_is_exact_far_from_hidden_keys() -> None:
    q, k, v = random_operands(dtype=torch.float32)
    q, k = q + 2**10, k + 2**10
    mask = torch.arange(k.shape[-2]) < 3
    padded = k.masked_fill(~mask[:, None], 0), v.masked_fill(~mask[:, None], 0)
    want = distance_softmax(q.double(), k[..., :3, :].double(), v[..., :3, :].double(), 1.5)
    got = general_attention(q, *padded, similarity=gaussian_distance(bandwidth=1.5), mask=mask)
    require_close(got, want, within=tolerance(torch.float32), what="most keys are padding")
    similarity = gaussian_distance(bandwidth=1.5)
    blind = Similarity(
        pair=similarity.pair,
        scores=similarity.scores,
        exponential=True,
        fused=lambda q, k, mask: similarity.fused(q, k, None),
    )
    got = general_attention(q, *padded, similarity=blind, mask=mask)
    with pytest.raises(AssertionError, match="relative error"):
        require_close(got, want, within=tolerance(torch.float32), what="moved to the median of the padding")

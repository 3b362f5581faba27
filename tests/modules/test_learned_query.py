"""Attention with a learned query: the published equation, its invariance, and pooling of images."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.modules import LearnedQueryAttention, SelfAttention
from clearhead.operators.spatial import unfold
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


@settings(max_examples=30)
@given(st.sampled_from([1, 2, 7]), st.sampled_from([1, 3]), st.sampled_from([1.0, None]), st.integers(0, 1000))
def test_output_is_equation_four(tokens: int, queries: int, scale: float | None, seed: int) -> None:
    layer = LearnedQueryAttention(11, num_queries=queries, head_dim=5, value_dim=13, bias=False, scale=scale)
    layer = randomised(layer, seed=seed)
    results = []
    for written_out in (False, True):
        x = normal(2, tokens, 11, seed=seed).requires_grad_()
        if written_out:  # W_v X softmax((W_k X)^T Q), tokens as columns
            X, Q, factor = x.mT, layer.queries.mT, 1 / math.sqrt(5) if scale is None else 1.0
            out = (layer.value.weight @ X @ (factor * (layer.key.weight @ X).mT @ Q).softmax(dim=-2)).mT
        else:
            out = layer(x)
        assert out.shape == (2, queries, 13)
        results.append((out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])))
    size = max([1.0, *(float(y.detach().abs().max()) for y in results[1])])
    for got, want in zip(*results, strict=True):
        require_same(got, want, size=size)


@given(st.integers(0, 1000))
def test_the_order_of_tokens_does_not_matter(seed: int) -> None:
    layer = randomised(LearnedQueryAttention(11, num_queries=3, bias=True), seed=seed)
    x, order = normal(2, 7, 11), torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    require_same(layer(x[:, order]), layer(x))


def test_control_other_tokens_change_the_output_and_order_changes_self_attention() -> None:
    layer, x = randomised(LearnedQueryAttention(11, num_queries=3)), normal(2, 7, 11)
    assert differ(layer(2 * x), layer(x))
    self_attention = randomised(SelfAttention(11))
    assert differ(self_attention(x.flip(-2)), self_attention(x))
    reading = boolean(3, 7)
    assert differ(layer(x.flip(-2), mask=reading), layer(x, mask=reading))


def test_without_tokens_the_output_is_zero() -> None:
    layer = randomised(LearnedQueryAttention(11, num_queries=3))
    assert torch.equal(layer(normal(2, 0, 11)), torch.zeros(2, 3, 11, dtype=torch.float64))
    nobody = torch.zeros(2, 7, dtype=torch.bool)
    assert torch.equal(layer(normal(2, 7, 11), key_mask=nobody), torch.zeros(2, 3, 11, dtype=torch.float64))


def test_masks_and_biases_reach_the_scores() -> None:
    layer, x = randomised(LearnedQueryAttention(11, num_queries=3)), normal(2, 7, 11)
    key_mask = torch.arange(7) < torch.tensor([[5], [5]])
    require_same(layer(x, key_mask=key_mask), layer(x[:, :5]))
    bias = torch.zeros(3, 7, dtype=torch.float64).masked_fill(~key_mask[0], -torch.inf)
    require_same(layer(x, attn_bias=bias), layer(x[:, :5]))
    require_same(layer(x, mask=key_mask[0]), layer(x[:, :5]))
    assert differ(layer(x), layer(x[:, :5]))


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("spatial", [(3, 5), (2, 3, 5)], ids=["image", "video"])
def test_pools_images_and_video(spatial: tuple[int, ...], axis: int) -> None:
    layer = randomised(LearnedQueryAttention(7, num_queries=2, value_dim=13))
    x = normal(2, 7, *spatial).movedim(1, axis)
    pooled = layer.pool(x, channel_axis=axis)
    assert pooled.shape == (2, 2, 13)
    require_same(pooled, layer(unfold(x, axis)))
    require_same(layer.pool(x.movedim(axis, 1)), pooled)


def test_scrambled_pixels_give_the_same_output() -> None:
    layer, x = randomised(LearnedQueryAttention(7, num_queries=2)), normal(2, 7, 3, 5)
    scrambled = x.flatten(2)[..., torch.randperm(15, generator=torch.Generator().manual_seed(0))].unflatten(2, (3, 5))
    assert differ(scrambled, x)
    require_same(layer.pool(scrambled), layer.pool(x))
    where = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5)
    assert differ(layer.pool(scrambled + where), layer.pool(x + where))


def test_pools_the_visible_part_of_an_image() -> None:
    layer, x = randomised(LearnedQueryAttention(7, num_queries=2)), normal(2, 7, 3, 5)
    top = torch.arange(15).expand(2, -1) < 10
    require_same(layer.pool(x, key_mask=top), layer.pool(x[:, :, :2]))
    assert differ(layer.pool(x), layer.pool(x[:, :, :2]))


def test_bad_input_raises_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="sizes of one or more; got embed_dim 11, num_queries 0"):
        LearnedQueryAttention(11, num_queries=0)
    if typechecked:
        pytest.skip("the import hook refuses some of what follows before the module can")
    layer = LearnedQueryAttention(11, num_queries=3).double()
    with pytest.raises(ShapeError, match=r"expected x \(\.\.\., tokens, 11\).*got x \(2, 5, 7\)"):
        layer(normal(2, 5, 7))
    with pytest.raises(ShapeError, match=r"mask to broadcast to \(2, 3, 5\); got mask \(5, 5\)"):
        layer(normal(2, 5, 11), mask=boolean(5, 5))
    with pytest.raises(ShapeError, match=r"one spatial axis or more; got channel_axis 1, x \(2, 11\)"):
        layer.pool(normal(2, 11))

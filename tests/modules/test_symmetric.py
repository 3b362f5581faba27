"""Symmetric attention as a layer: its heads, its masks, its operator."""

import functools

import pytest
import torch

from clearhead.modules import MultiHeadAttention, SymmetricAttention
from clearhead.operators import principal_attention_pursuit
from clearhead.operators.softmax import slow_softmax_attention
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


def test_each_head_uses_its_keys_as_queries() -> None:
    layer = randomised(SymmetricAttention(11, num_heads=3, head_dim=5, value_dim=2, out_dim=13))
    x = normal(2, 6, 11)
    k, v = layer.key(x), layer.value(x)
    for mask in (None, boolean(2, 3, 6, 6)):
        heads = [
            slow_softmax_attention(
                k[..., 5 * i : 5 * i + 5],
                k[..., 5 * i : 5 * i + 5],
                v[..., 2 * i : 2 * i + 2],
                mask=None if mask is None else mask[:, i],
            )
            for i in range(3)
        ]
        require_same(layer(x, mask=mask), layer.out(torch.cat(heads, dim=-1)))
    assert layer(x).shape == (2, 6, 13)


def test_output_is_multi_head_attention_with_one_map_for_queries_and_keys() -> None:
    layer, other = SymmetricAttention(12, num_heads=3), MultiHeadAttention(12, num_heads=3)
    state = layer.state_dict()
    other.load_state_dict(state | {name.replace("key", "query"): x for name, x in state.items() if "key" in name})
    layer, other, x = layer.double(), other.double(), normal(2, 7, 12)
    for options in ({}, {"causal": True}, {"key_mask": boolean(2, 7)}):
        require_same(layer(x, **options), other(x, **options))
    assert sum(p.numel() for p in other.parameters()) - sum(p.numel() for p in layer.parameters()) == 12 * 12 + 12


def test_scale_and_operator_are_passed_on() -> None:
    x = normal(2, 7, 12)
    plain, scaled = (randomised(SymmetricAttention(12, num_heads=3, scale=scale)) for scale in (None, 0.1))
    assert differ(plain(x), scaled(x))
    pursuit = functools.partial(principal_attention_pursuit, iterations=2, threshold=0.5)
    layer = randomised(SymmetricAttention(12, num_heads=3, scale=0.1, operator=pursuit))
    k, v = (y.reshape(2, 7, 3, 4).transpose(1, 2) for y in (layer.key(x), layer.value(x)))
    require_same(layer(x), layer.out(pursuit(k, v, scale=0.1).transpose(1, 2).flatten(-2)))


def test_permuted_tokens_give_permuted_outputs_unless_masked_causally() -> None:
    layer, x = randomised(SymmetricAttention(12, num_heads=3)), normal(2, 13, 12)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    require_same(layer(x[:, order]), layer(x)[:, order])
    assert differ(layer(x[:, order], causal=True), layer(x, causal=True)[:, order])


def test_invalid_sizes_raise_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="num_heads that divides embed_dim; got 5 and 12"):
        SymmetricAttention(12, num_heads=5)
    with pytest.raises(ValueError, match=r"one or more; got .*heads 0"):
        SymmetricAttention(12, num_heads=0)
    if typechecked:
        pytest.skip("the import hook refuses what follows before the module can")
    with pytest.raises(ShapeError, match=r"expected x \(..., tokens, 12\)"):
        SymmetricAttention(12, num_heads=3)(torch.ones(2, 7, 11))

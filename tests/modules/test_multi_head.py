"""Heads of unequal widths, shared keys, scales and masks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clearhead.modules import MultiHeadAttention, SelfAttention
from clearhead.operators.softmax import softmax_attention
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


def head_by_head(
    layer: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor, attn_bias: Tensor
) -> Tensor:
    """Compute sum_i W_o^(i) H_i + b head by head from the parameters; masks and biases are (b, h, n, m)."""
    heads, share = len(layer.head_dims), len(layer.head_dims) // layer.num_kv_heads
    out = torch.zeros(*query.shape[:-1], layer.out.out_features, dtype=query.dtype)
    for i in range(heads):
        shared = i // share
        d, e = layer.head_dims[i], layer.value_dims[i]
        start, key_start = sum(layer.head_dims[:i]), sum(layer.head_dims[::share][:shared])
        value_start, out_start = sum(layer.value_dims[::share][:shared]), sum(layer.value_dims[:i])

        def mapped(x: Tensor, linear: nn.Linear, first: int, width: int) -> Tensor:
            out = x @ linear.weight[first : first + width].mT
            return out if linear.bias is None else out + linear.bias[first : first + width]

        q, k = mapped(query, layer.query, start, d), mapped(key, layer.key, key_start, d)
        scores = q @ k.mT * (1 / math.sqrt(d) if layer.scale is None else layer.scale) + attn_bias[:, i]
        weights = scores.masked_fill(~mask[:, i], -math.inf).softmax(dim=-1)
        head = weights @ mapped(value, layer.value, value_start, e)
        out = out + head @ layer.out.weight[:, out_start : out_start + e].mT
    return out if layer.out.bias is None else out + layer.out.bias


@st.composite
def widths(draw):
    """Draw heads of random widths, in groups that share keys and values."""
    key_heads, share = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    keys = [draw(st.sampled_from([2, 3, 5])) for _ in range(key_heads)]
    values = [draw(st.sampled_from([1, 2, 7])) for _ in range(key_heads)]
    return {
        "embed_dim": draw(st.sampled_from([5, 11])),
        "num_heads": key_heads * share,
        "kdim": draw(st.sampled_from([None, 7])),
        "vdim": draw(st.sampled_from([None, 3])),
        "head_dim": [w for w in keys for _ in range(share)],
        "value_dim": [w for w in values for _ in range(share)],
        "out_dim": draw(st.sampled_from([None, 1, 13])),
        "num_kv_heads": key_heads,
        "bias": draw(st.booleans()),
        "out_bias": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 1.0])),
    }


@settings(max_examples=60)
@given(widths(), st.integers(0, 1000))
def test_output_is_the_sum_over_heads(options: dict, seed: int) -> None:
    layer = randomised(MultiHeadAttention(**options), seed=seed)
    b, n, m, heads = 2, 3, 5, len(layer.head_dims)
    inputs = [
        normal(b, tokens, linear.in_features, seed=seed + index)
        for index, (tokens, linear) in enumerate([(n, layer.query), (m, layer.key), (m, layer.value)])
    ]
    mask, bias = boolean(b, heads, n, m, seed=seed), normal(b, heads, n, m, seed=seed)
    parameters, results = list(layer.parameters()), []
    for attend in (layer, lambda *tokens, **options: head_by_head(layer, *tokens, **options)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = attend(*leaves, mask=mask, attn_bias=bias)
        results.append((out, *torch.autograd.grad(out.sin().sum(), [*leaves, *parameters])))
    size = max([1.0, *(float(x.detach().abs().max()) for x in results[1])])
    for got, want in zip(*results, strict=True):
        require_same(got, want, what=str(tuple(want.shape)), size=size)


def test_grouped_keys_equal_repeated_keys() -> None:
    shared = randomised(MultiHeadAttention(11, num_heads=6, head_dim=3, value_dim=2, num_kv_heads=2))
    whole = randomised(MultiHeadAttention(11, num_heads=6, head_dim=3, value_dim=2), seed=1)
    state = shared.state_dict()
    for name, width in (("key", 3), ("value", 2)):
        for kind in ("weight", "bias"):
            per_head = state[f"{name}.{kind}"].unflatten(0, (2, width))
            state[f"{name}.{kind}"] = per_head.repeat_interleave(3, dim=0).flatten(0, 1)
    whole.load_state_dict(state)
    x, mask = normal(2, 5, 11), boolean(2, 6, 5, 5)
    require_same(shared(x, mask=mask), whole(x, mask=mask))
    for name in ("key.weight", "value.weight"):  # control: heads in interleaved order
        state[name] = state[name].unflatten(0, (2, 3, -1)).transpose(0, 1).flatten(0, 2)
    whole.load_state_dict(state)
    assert differ(shared(x, mask=mask), whole(x, mask=mask))


def test_one_head_with_an_identity_output_map_is_self_attention() -> None:
    one = randomised(
        MultiHeadAttention(11, num_heads=1, head_dim=3, value_dim=11, bias=False, out_bias=False, scale=1.0)
    )
    single = SelfAttention(11, head_dim=3, bias=False, scale=1.0).double()
    single.load_state_dict({name: x for name, x in one.state_dict().items() if name != "out.weight"})
    x = normal(2, 5, 11)
    assert differ(one(x), single(x))
    nn.init.eye_(one.out.weight)
    require_same(one(x), single(x))


@pytest.mark.parametrize(
    ("widths", "values", "calls"), [([3, 3, 3], None, 1), ([3, 2, 3], None, 2), (3, [2, 2, 5], 2), ([1, 2, 3], 7, 3)]
)
def test_heads_of_equal_widths_run_in_one_call(widths, values, calls: int) -> None:
    seen = []

    def counted(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        seen.append(options)
        return softmax_attention(q, k, v, **options)

    layer = MultiHeadAttention(11, num_heads=3, head_dim=widths, value_dim=values, operator=counted)
    layer(normal(2, 5, 11, dtype=torch.float32))
    assert seen == [{}] * calls


def test_the_default_scale_uses_each_heads_width() -> None:
    layer = randomised(MultiHeadAttention(11, num_heads=2, head_dim=[4, 9]))
    x = normal(2, 5, 11)
    want = layer(x)
    nothing_hidden = torch.ones(2, 2, 5, 5, dtype=torch.bool)
    require_same(want, head_by_head(layer, x, x, x, mask=nothing_hidden, attn_bias=torch.zeros(2, 2, 5, 5)))
    layer.scale = 1.0
    assert differ(layer(x), want)
    layer.query.weight.data[:4] *= 1 / 2
    layer.query.bias.data[:4] *= 1 / 2
    layer.query.weight.data[4:] *= 1 / 3
    layer.query.bias.data[4:] *= 1 / 3
    require_same(layer(x), want)


@pytest.fixture
def layer() -> MultiHeadAttention:
    return randomised(MultiHeadAttention(11, num_heads=3, kdim=5, vdim=7, head_dim=[2, 3, 2]))


def test_hidden_keys_do_not_matter(layer: MultiHeadAttention) -> None:
    q, k, v = normal(2, 3, 11), normal(2, 13, 5, seed=1), normal(2, 13, 7, seed=2)
    key_mask = torch.arange(13) < torch.tensor([[5], [5]])
    want = layer(q, k[:, :5], v[:, :5])
    require_same(layer(q, k, v, key_mask=key_mask), want)
    require_same(layer(q, k, v, mask=key_mask[:, None, None]), want)
    assert differ(layer(q, k, v), want)


def test_the_last_query_sees_all_keys_under_a_causal_mask(layer: MultiHeadAttention) -> None:
    q, k, v = normal(2, 3, 11), normal(2, 7, 5, seed=1), normal(2, 7, 7, seed=2)
    out = layer(q, k, v, causal=True)
    for j in range(3):
        require_same(out[:, j : j + 1], layer(q[:, j : j + 1], k[:, : j + 5], v[:, : j + 5]))
    assert differ(out[:, :1], layer(q, k, v)[:, :1])


def test_masks_are_combined(layer: MultiHeadAttention) -> None:
    q, k, v = normal(2, 3, 11), normal(2, 7, 5, seed=1), normal(2, 7, 7, seed=2)
    mask, key_mask = boolean(3, 3, 7), boolean(2, 7, seed=1)
    past = torch.ones(3, 7, dtype=torch.bool).tril(4)
    together = mask & key_mask[:, None, None] & past
    want = layer(q, k, v, mask=together)
    require_same(layer(q, k, v, mask=mask, key_mask=key_mask, causal=True), want)
    for fewer in ({"mask": mask, "key_mask": key_mask}, {"mask": mask, "causal": True}, {"key_mask": key_mask}):
        assert differ(layer(q, k, v, **fewer), want)


def test_a_query_without_visible_keys_gets_the_output_bias(layer: MultiHeadAttention) -> None:
    q, k, v = (x.requires_grad_() for x in (normal(2, 3, 11), normal(2, 7, 5), normal(2, 7, 7)))
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1] = False
    out = layer(q, k, v, mask=mask)
    require_same(out[:, 1], layer.out.bias.expand(2, -1))
    assert differ(out[:, 0], layer.out.bias.expand(2, -1))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_value_defaults_to_key_and_key_to_query() -> None:
    layer = randomised(MultiHeadAttention(11, num_heads=1))
    q, k = normal(2, 3, 11), normal(2, 5, 11, seed=1)
    require_same(layer(q, k), layer(q, k, k))
    require_same(layer(q), layer(q, q, q))
    assert differ(layer(q, k), layer(q))


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (0,)])
def test_any_number_of_leading_axes(leading: tuple[int, ...]) -> None:
    layer = randomised(MultiHeadAttention(11, num_heads=3, head_dim=[2, 5, 2], num_kv_heads=3))
    x, key_mask = normal(*leading, 5, 11), boolean(*leading, 5)
    out = layer(x, key_mask=key_mask)
    assert out.shape == (*leading, 5, 11)
    flat = layer(x.reshape(-1, 5, 11), key_mask=key_mask.reshape(-1, 5))
    require_same(out.reshape(-1, 5, 11), flat)

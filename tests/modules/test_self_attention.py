"""Self-attention of one head: the published equation, equivariance, scale and masks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.modules import SelfAttention
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


def equation_three(layer: SelfAttention, x: Tensor, *, scale: float = 1.0, query: str = "query") -> Tensor:
    """Return W_v X softmax((W_k X)^T W_q X); tokens are rows here and columns in the formula."""
    X, W_q = x.mT, getattr(layer, query).weight
    W_k, W_v = layer.key.weight, layer.value.weight
    return (W_v @ X @ (scale * (W_k @ X).mT @ (W_q @ X)).softmax(dim=-2)).mT


@settings(max_examples=30)
@given(st.sampled_from([1, 2, 5]), st.sampled_from([None, 3, 7]), st.sampled_from([None, 2, 13]), st.integers(0, 1000))
def test_output_is_equation_three(tokens: int, head_dim: int | None, value_dim: int | None, seed: int) -> None:
    layer = randomised(SelfAttention(11, head_dim=head_dim, value_dim=value_dim, bias=False, scale=1.0), seed=seed)
    results = []
    for attend in (layer, lambda x: equation_three(layer, x)):
        x = normal(3, tokens, 11, seed=seed).requires_grad_()
        out = attend(x)
        results.append((out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])))
    size = max([1.0, *(float(y.detach().abs().max()) for y in results[1])])
    for got, want in zip(*results, strict=True):
        require_same(got, want, size=size)


def test_the_operator_misprinted_in_the_proof_differs() -> None:
    layer, x = randomised(SelfAttention(11, head_dim=5, value_dim=5, bias=False, scale=1.0)), normal(2, 7, 11)
    assert differ(equation_three(layer, x, query="value"), layer(x))
    other = randomised(SelfAttention(11, head_dim=5, value_dim=3, bias=False, scale=1.0))
    with pytest.raises(RuntimeError, match="size"):
        equation_three(other, x, query="value")


@given(st.integers(0, 1000))
def test_permuted_tokens_give_permuted_outputs(seed: int) -> None:
    layer, x = randomised(SelfAttention(11, head_dim=5, value_dim=3, bias=True), seed=seed), normal(2, 7, 11)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    require_same(layer(x[:, order]), layer(x)[:, order])


def test_a_causal_mask_breaks_the_equivariance() -> None:
    layer, x = randomised(SelfAttention(11)), normal(2, 7, 11)
    turned = x.flip(-2)
    assert differ(layer(turned, causal=True), layer(x, causal=True).flip(-2))
    require_same(layer(turned), layer(x).flip(-2))


def test_the_default_scale_is_one_over_the_root_of_the_width() -> None:
    x = normal(2, 5, 11)
    plain = randomised(SelfAttention(11, head_dim=7, bias=False, scale=1.0))
    for scale, factor in ((None, 1 / math.sqrt(7)), (0.3, 0.3)):
        scaled = randomised(SelfAttention(11, head_dim=7, bias=False, scale=scale))
        require_same(scaled(x), equation_three(plain, x, scale=factor))
        assert differ(scaled(x), plain(x))
    assert [name for name, _ in plain.named_parameters()] == ["query.weight", "key.weight", "value.weight"]


def test_masks_and_biases_reach_the_scores() -> None:
    layer, x = randomised(SelfAttention(11)), normal(2, 5, 11)
    key_mask = torch.arange(5) < torch.tensor([[3], [3]])
    require_same(layer(x, key_mask=key_mask)[:, :3], layer(x[:, :3]))
    past = torch.ones(5, 5, dtype=torch.bool).tril()
    require_same(layer(x, causal=True), layer(x, mask=past))
    hidden = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~past, -torch.inf)
    require_same(layer(x, attn_bias=hidden), layer(x, mask=past))
    assert differ(layer(x), layer(x, mask=past))
    per_input = boolean(2, 5, 5)
    require_same(layer(x, mask=per_input)[1], layer(x[1], mask=per_input[1]))


def test_bad_input_raises_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="sizes of one or more; got embed_dim 11, head_dim 0, value_dim 11"):
        SelfAttention(11, head_dim=0)
    if typechecked:
        pytest.skip("the import hook refuses what follows before the module can")
    layer = SelfAttention(11).double()
    with pytest.raises(
        ShapeError, match=r"expected x \(\.\.\., tokens, 11\) with the same leading shape; got x \(2, 5, 7\)"
    ):
        layer(normal(2, 5, 7))
    with pytest.raises(ShapeError, match=r"mask to broadcast to \(2, 5, 5\); got mask \(3, 5\)"):
        layer(normal(2, 5, 11), mask=boolean(3, 5))
    with pytest.raises(ShapeError, match=r"key_mask \(2, 5\).*got key_mask \(5,\)"):
        layer(normal(2, 5, 11), key_mask=boolean(5))

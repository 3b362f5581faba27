"""Subspace attention as a layer: its heads, the tied map, its bases, its operator."""

import functools

import pytest
import torch

from clearhead import check_attention
from clearhead.modules import SubspaceAttention, SymmetricAttention
from clearhead.numerics.precision import tolerance
from clearhead.operators import principal_attention_pursuit, subspace_step
from clearhead.operators.softmax import slow_softmax_attention
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


@pytest.mark.parametrize("tied", [False, True])
def test_a_projected_token_is_query_key_and_value_in_each_head(tied: bool) -> None:
    layer = randomised(SubspaceAttention(11, num_heads=3, head_dim=5, tied=tied))
    x = normal(2, 7, 11)
    for mask in (None, boolean(2, 3, 7, 7)):
        heads = []
        for i, basis in enumerate(layer.bases):
            v = x @ basis
            heads.append(slow_softmax_attention(v, v, v, mask=None if mask is None else mask[:, i]))
        if tied:
            want = sum(head @ basis.mT for head, basis in zip(heads, layer.bases, strict=True))
        else:
            want = layer.out(torch.cat(heads, dim=-1))
        require_same(layer(x, mask=mask), want)


def test_output_is_symmetric_attention_with_one_map_for_keys_and_values() -> None:
    layer, other = (
        randomised(SubspaceAttention(12, num_heads=3)),
        SymmetricAttention(12, num_heads=3, bias=False).double(),
    )
    weight = layer.subspaces.weight
    state = {"key.weight": weight, "value.weight": weight, "out.weight": layer.out.weight, "out.bias": layer.out.bias}
    other.load_state_dict(state)
    x = normal(2, 7, 12)
    for options in ({}, {"causal": True}, {"key_mask": boolean(2, 7)}):
        require_same(layer(x, **options), other(x, **options))
    with torch.no_grad():
        other.value.weight.neg_()
    assert differ(other(x), layer(x))


def test_the_tied_layer_is_the_derived_step_without_shrinking() -> None:
    """`subspace_step` of length one has no residual term, and a factor of p / (n eps^2)."""
    layer = randomised(SubspaceAttention(11, num_heads=3, head_dim=5, tied=True, scale=1.0))
    x = normal(2, 7, 11)
    eps = (5 / 7) ** 0.5  # so that the factor is one
    require_same(layer(x), subspace_step(x, layer.bases, length=1.0, eps=eps))
    assert differ(layer(x), subspace_step(x, layer.bases, length=0.5, eps=eps))


def test_its_bases_are_a_view_of_its_map() -> None:
    layer = SubspaceAttention(11, num_heads=3, head_dim=5)
    assert layer.bases.shape == (3, 11, 5)
    assert layer.bases.data_ptr() == layer.subspaces.weight.data_ptr()
    x = normal(7, 11, dtype=torch.float32)
    want = torch.cat([x @ basis for basis in layer.bases], dim=-1)
    assert (layer.subspaces(x) - want).abs().max() <= tolerance(torch.float32)


def test_the_tied_form_has_one_map_and_the_released_form_a_bias() -> None:
    sizes = {
        (tied, bias): sum(p.numel() for p in SubspaceAttention(12, num_heads=3, tied=tied, out_bias=bias).parameters())
        for tied in (False, True)
        for bias in (False, True)
    }
    assert sizes == {(False, False): 288, (False, True): 300, (True, False): 144, (True, True): 144}


def test_scale_and_operator_are_passed_on() -> None:
    x = normal(2, 7, 12)
    plain, scaled = (randomised(SubspaceAttention(12, num_heads=3, scale=scale)) for scale in (None, 0.1))
    assert differ(plain(x), scaled(x))
    pursuit = functools.partial(principal_attention_pursuit, iterations=2, threshold=0.5)
    layer = randomised(SubspaceAttention(12, num_heads=3, scale=0.1, operator=pursuit))
    v = layer.subspaces(x).reshape(2, 7, 3, 4).transpose(1, 2)
    require_same(layer(x), layer.out(pursuit(v, v, scale=0.1).transpose(1, 2).flatten(-2)))


def test_permuted_tokens_give_permuted_outputs_unless_masked_causally() -> None:
    layer, x = randomised(SubspaceAttention(12, num_heads=3)), normal(2, 13, 12)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    require_same(layer(x[:, order]), layer(x)[:, order])
    assert differ(layer(x[:, order], causal=True), layer(x, causal=True)[:, order])


@pytest.mark.parametrize("tied", [False, True])
def test_public_contract_check_passes(tied: bool) -> None:
    result = check_attention(SubspaceAttention(12, num_heads=3, tied=tied), equivariant=True, compile=False, show=False)
    assert not result.failed
    assert {one.name for one in result.not_checked} == {"compile"}


def test_invalid_sizes_raise_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="num_heads that divides embed_dim; got 5 and 12"):
        SubspaceAttention(12, num_heads=5)
    with pytest.raises(ValueError, match=r"one or more; got .*heads 0"):
        SubspaceAttention(12, num_heads=0)
    with pytest.raises(ValueError, match=r"one or more; got head_dim 0"):
        SubspaceAttention(12, num_heads=3, head_dim=0)
    if typechecked:
        pytest.skip("the import hook refuses what follows before the module can")
    with pytest.raises(ShapeError, match=r"expected x \(..., tokens, 12\)"):
        SubspaceAttention(12, num_heads=3)(torch.ones(2, 7, 11))

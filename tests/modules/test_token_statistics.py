"""Token statistics attention as layers: maps, operator, parameters, and causality."""

import pytest
import torch

from clearhead.modules import CausalTokenStatisticsAttention, TokenStatisticsAttention
from clearhead.operators.token_statistics import slow_causal_token_statistics_attention, slow_token_statistics_attention
from clearhead.shapes import ShapeError
from tests.modules.drawing import differ, normal, randomised, require_same


def test_output_is_the_operator_between_two_linear_maps() -> None:
    x = normal(2, 7, 12)
    layer = randomised(TokenStatisticsAttention(12, num_heads=3))
    w = torch.stack(layer.subspaces(x).chunk(3, dim=-1), dim=1)
    attended = slow_token_statistics_attention(w, sharpness=layer.sharpness)
    require_same(layer(x), layer.out(torch.cat(attended.unbind(1), dim=-1)))
    causal = randomised(CausalTokenStatisticsAttention(12, num_heads=3, max_tokens=11))
    w = torch.stack(causal.subspaces(x).chunk(3, dim=-1), dim=1)
    attended = slow_causal_token_statistics_attention(w, sharpness=causal.sharpness, bias=causal.bias[:, :7])
    require_same(causal(x), causal.out(torch.cat(attended.unbind(1), dim=-1)))


def test_initial_parameters_are_those_of_the_released_code() -> None:
    layer = CausalTokenStatisticsAttention(12, num_heads=3, max_tokens=11)
    assert torch.equal(layer.sharpness, torch.ones(3))
    assert torch.equal(layer.bias, torch.zeros(3, 11))
    assert layer.subspaces.bias is None
    assert layer.out.bias is not None
    assert sum(p.numel() for p in layer.parameters()) == 2 * 12**2 + 12 + 3 + 3 * 11


@pytest.mark.parametrize("name", ["sharpness", "bias"])
def test_every_parameter_besides_the_maps_changes_the_output(name: str) -> None:
    layer, x = randomised(CausalTokenStatisticsAttention(12, num_heads=3, max_tokens=11)), normal(2, 7, 12)
    before = layer(x).detach()
    with torch.no_grad():
        getattr(layer, name)[1] += 2
    assert differ(layer(x), before)


def test_later_tokens_do_not_change_earlier_outputs() -> None:
    layer, whole = (
        CausalTokenStatisticsAttention(12, num_heads=3, max_tokens=11),
        TokenStatisticsAttention(12, num_heads=3),
    )
    x = normal(2, 7, 12, dtype=torch.float32)
    large = x.clone()
    large[:, 4:] = 1e3
    assert torch.equal(layer(x)[:, :4], layer(large)[:, :4])
    assert not torch.equal(whole(x)[:, :4], whole(large)[:, :4])


def test_invalid_sizes_raise_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="num_heads that divides embed_dim; got 5 and 12"):
        TokenStatisticsAttention(12, num_heads=5)
    with pytest.raises(ValueError, match="one or more; got max_tokens 0"):
        CausalTokenStatisticsAttention(12, num_heads=3, max_tokens=0)
    with pytest.raises(ShapeError, match=r"at most max_tokens = 5 tokens; got x \(2, 7, 12\)"):
        CausalTokenStatisticsAttention(12, num_heads=3, max_tokens=5)(torch.ones(2, 7, 12))
    if typechecked:
        pytest.skip("the import hook refuses what follows before the module can")
    with pytest.raises(ShapeError, match=r"expected x \(..., tokens, 12\)"):
        TokenStatisticsAttention(12, num_heads=3)(torch.ones(2, 7, 11))

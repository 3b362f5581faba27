"""Spatial attention: outputs of larger and smaller images, compared with unfolding and 1x1 convolutions."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clearhead.modules import MultiHeadAttention, SpatialAttention
from clearhead.operators.general import dot_product, general_attention
from clearhead.operators.spatial import fold, spatial_attention, unfold
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


def convolved(x: Tensor, linear: torch.nn.Linear) -> Tensor:
    return functional.conv2d(x, linear.weight[:, :, None, None], linear.bias)


@pytest.mark.parametrize("size", [(7, 11), (2, 2), None], ids=["up", "down", "itself"])
def test_output_is_spatial_attention_between_convolutions(size: tuple[int, int] | None) -> None:
    layer = randomised(SpatialAttention(7, query_channels=7 if size is None else 5, head_dim=3, out_channels=13))
    x = normal(2, 7, 3, 5)
    query = x if size is None else normal(2, 5, *size, seed=1)
    maps = layer.attention
    want = spatial_attention(convolved(query, maps.query), convolved(x, maps.key), convolved(x, maps.value))
    got = layer(x) if size is None else layer(x, query)
    assert got.shape == (2, 13, *(size or (3, 5)))
    require_same(got, convolved(want, maps.out))
    assert differ(layer(x.flip(1), query), got)


@pytest.mark.parametrize("spatial", [(5,), (3, 5), (2, 3, 5)], ids=["sequence", "image", "video"])
def test_output_is_multi_head_attention_over_positions(spatial: tuple[int, ...]) -> None:
    layer = randomised(SpatialAttention(6, num_heads=3, head_dim=[2, 3, 2], value_dim=[5, 1, 5]))
    x, mask = normal(2, 6, *spatial), boolean(2, 3, torch.Size(spatial).numel(), torch.Size(spatial).numel())
    heads: MultiHeadAttention = layer.attention
    require_same(layer(x, mask=mask), fold(heads(unfold(x), mask=mask), spatial))
    require_same(layer(x, attn_bias=mask.double()), fold(heads(unfold(x), attn_bias=mask.double()), spatial))
    assert differ(layer(x), layer(x, mask=mask))


def test_channels_first_and_last_give_the_same_output() -> None:
    first = randomised(SpatialAttention(7, query_channels=5))
    last = SpatialAttention(7, query_channels=5, channel_axis=-1).double()
    last.load_state_dict(first.state_dict())
    x, query = normal(2, 7, 3, 5), normal(2, 5, 2, 3, seed=1)
    require_same(last(x.movedim(1, -1), query.movedim(1, -1)).movedim(-1, 1), first(x, query))
    assert "channel_axis=-1" in repr(last)


def test_queries_of_an_image_can_attend_to_a_video() -> None:
    layer = randomised(SpatialAttention(7, query_channels=5, out_channels=11, num_heads=1, head_dim=3))
    assert layer(normal(2, 7, 2, 3, 5), normal(2, 5, 3, 2)).shape == (2, 11, 3, 2)


def test_rotated_images_give_rotated_outputs() -> None:
    layer, x = randomised(SpatialAttention(7)), normal(2, 7, 3, 5)
    for turned in (lambda y: y.rot90(1, (-2, -1)), lambda y: y.flip(-1), lambda y: y.mT):
        require_same(layer(turned(x)), turned(layer(x)))
    where = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5)
    assert differ(layer(x.flip(-1) + where), layer(x + where).flip(-1))


def test_hidden_positions_do_not_matter() -> None:
    layer, x, query = randomised(SpatialAttention(7)), normal(2, 7, 3, 5), normal(2, 7, 2, 2, seed=1)
    top = torch.arange(15).expand(2, -1) < 10
    require_same(layer(x, query, key_mask=top), layer(x[:, :, :2], query))
    assert differ(layer(x, query), layer(x[:, :, :2], query))


def test_other_operators_and_scales_can_be_used() -> None:
    def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return general_attention(q, k, v, similarity=dot_product())

    x = normal(2, 7, 3, 5)
    plain, other, scaled = (
        randomised(SpatialAttention(7, **options)) for options in ({}, {"operator": counted}, {"scale": 1.0})
    )
    assert differ(other(x), plain(x))
    assert differ(scaled(x), plain(x))
    maps, tokens = other.attention, unfold(x)
    weights = maps.query(tokens) @ maps.key(tokens).mT / 15
    require_same(other(x), fold(maps.out(weights @ maps.value(tokens)), (3, 5)))


def test_bad_input_raises_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="num_heads that divides embed_dim; got 2 and 7"):
        SpatialAttention(7, num_heads=2)
    if typechecked:
        pytest.skip("the import hook refuses some of what follows before the module can")
    layer = SpatialAttention(7, query_channels=5).double()
    with pytest.raises(ShapeError, match=r"query \(\.\.\., tokens, 5\).*got query \(2, 15, 7\)"):
        layer(normal(2, 7, 3, 5))
    with pytest.raises(ShapeError, match=r"one spatial axis or more; got channel_axis 1, x \(2, 7\)"):
        layer(normal(2, 7), normal(2, 5, 3, 5))
    with pytest.raises(ShapeError, match=r"key_mask \(2, 15\).*got key_mask \(2, 6\)"):
        layer(normal(2, 7, 3, 5), normal(2, 5, 2, 3), key_mask=boolean(2, 6))

"""Attention over images and video: unfolding and folding, and attention that takes the spatial size of q."""

import functools
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.general import dot_product, general_attention
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.spatial import fold, slow_spatial_attention, spatial_attention, spatial_size, unfold
from clearhead.shapes import ShapeError
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject, require_close
from tests.operators.contract import run_check

SIZES = {"sequence": (7,), "image": (5, 7), "video": (2, 3, 5)}
AXES = (1, -1)


def field(channels: int, spatial: tuple[int, ...], *, axis: int = 1, batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, channels, *spatial, generator=generator, dtype=torch.float64).movedim(1, axis)


@pytest.mark.parametrize("axis", [*AXES, 2, -2])
@pytest.mark.parametrize("kind", SIZES)
def test_folding_undoes_unfolding_exactly(kind: str, axis: int) -> None:
    x = field(11, SIZES[kind], axis=axis)
    tokens = unfold(x, axis)
    assert tokens.shape == (2, math.prod(SIZES[kind]), 11)
    assert spatial_size(x, axis) == SIZES[kind]
    assert torch.equal(fold(tokens, SIZES[kind], axis), x)
    assert torch.equal(unfold(fold(tokens, SIZES[kind], axis), axis), tokens)


@pytest.mark.parametrize("axis", AXES)
def test_rows_of_the_unfolding_are_fibres_along_the_channels(axis: int) -> None:
    x = field(11, (5, 7), axis=axis)
    first = x.movedim(axis, 1)
    tokens = unfold(x, axis)
    for y in range(5):
        for z in range(7):
            assert torch.equal(tokens[:, y * 7 + z], first[:, :, y, z])


def test_folding_to_another_grid_is_another_image() -> None:
    x = field(11, (5, 7))
    assert not torch.equal(fold(unfold(x), (7, 5)), x.mT)
    assert torch.equal(fold(unfold(x.mT), (7, 5)), x.mT)


@st.composite
def calls(draw):
    """Draw q of one spatial size, k and v of another, channels first or last, with or without a mask."""
    axis, axes, seed = draw(st.sampled_from(AXES)), draw(st.integers(1, 3)), draw(st.integers(0, 2**31))
    here, there = (tuple(draw(st.integers(1, 3)) for _ in range(axes)) for _ in range(2))
    batch, d, e = draw(st.integers(1, 2)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    operands = [
        field(channels, size, axis=axis, batch=batch, seed=seed + index)
        for index, (channels, size) in enumerate([(d, here), (d, there), (e, there)])
    ]
    options = {"channel_axis": axis}
    if draw(st.booleans()):
        generator = torch.Generator().manual_seed(seed)
        options["mask"] = torch.rand(batch, math.prod(here), math.prod(there), generator=generator) < 0.6
    if draw(st.booleans()):
        options["scale"] = 1.3
    return operands, options


@settings(max_examples=40)
@given(calls())
def test_outputs_and_gradients_match_the_reference(call) -> None:
    operands, options = call
    results = []
    for attention in (spatial_attention, slow_spatial_attention):
        leaves = [x.clone().requires_grad_() for x in operands]
        out = attention(*leaves, **options)
        results.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    size = max([1.0, *(float(x.detach().abs().max()) for x in results[1])])
    for got, want in zip(*results, strict=True):
        require_close(got, want, within=tolerance(torch.float64), size=size, what=str(tuple(want.shape)))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("size", [(11, 13), (2, 3)], ids=["up", "down"])
def test_the_output_has_the_spatial_size_of_q_and_the_channels_of_v(size: tuple[int, ...], axis: int) -> None:
    q, k, v = field(7, size, axis=axis), field(7, (3, 5), axis=axis, seed=1), field(17, (3, 5), axis=axis, seed=2)
    out = spatial_attention(q, k, v, channel_axis=axis)
    assert out.movedim(axis, 1).shape == (2, 17, *size)
    tokens = softmax_attention(unfold(q, axis), unfold(k, axis), unfold(v, axis))
    assert torch.equal(unfold(out, axis), tokens)


def test_queries_of_an_image_can_attend_to_a_video() -> None:
    q, k, v = field(7, (3, 5)), field(7, (2, 3, 5), seed=1), field(11, (2, 3, 5), seed=2)
    assert spatial_attention(q, k, v).shape == (2, 11, 3, 5)


def test_channels_first_and_last_give_the_same_output() -> None:
    q, k, v = field(7, (3, 5)), field(7, (2, 3), seed=1), field(11, (2, 3), seed=2)
    last = [x.movedim(1, -1) for x in (q, k, v)]
    want = spatial_attention(q, k, v)
    require_close(
        spatial_attention(*last, channel_axis=-1).movedim(-1, 1), want, within=tolerance(torch.float64), what="last"
    )


def test_the_order_in_which_keys_are_unfolded_does_not_matter() -> None:
    q, k, v = field(7, (3, 5)), field(7, (5, 3), seed=1), field(11, (5, 3), seed=2)
    want = spatial_attention(q, k, v)
    require_close(spatial_attention(q, k.mT, v.mT), want, within=tolerance(torch.float64), what="columns first")
    apart = spatial_attention(q, k, v.flip(-1))
    with pytest.raises(AssertionError, match="relative error"):
        require_close(apart, want, within=0.1, what="keys and values in different orders")


def test_other_operators_can_be_used() -> None:
    q, k, v = field(7, (3, 5)), field(7, (2, 3), seed=1), field(11, (2, 3), seed=2)
    attend = functools.partial(spatial_attention, q, k, v)
    counted = attend(operator=general_attention, similarity=dot_product())
    want = fold(unfold(q) @ unfold(k).mT @ unfold(v) / 6, (3, 5))
    require_close(counted, want, within=tolerance(torch.float64), what="dot product")
    with pytest.raises(AssertionError, match="relative error"):
        require_close(attend(), want, within=0.1, what="softmax")


@pytest.mark.parametrize("backend", ["eager"])
def test_compiles_without_a_graph_break(backend: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    torch.compiler.reset()
    operands = field(7, (3, 5)), field(7, (2, 3), seed=1), field(11, (2, 3), seed=2)
    compiled = torch.compile(spatial_attention, fullgraph=True, backend=backend)
    require_close(compiled(*operands), spatial_attention(*operands), within=tolerance(torch.float64), what="compiled")


def refused(case: str) -> None:
    image = field(7, (3, 5))
    {
        "no spatial axis": lambda: unfold(image[..., 0, 0]),
        "the batch as channels": lambda: unfold(image, 0),
        "the batch as channels, from behind": lambda: spatial_size(image, -4),
        "an axis that is not there": lambda: unfold(image, 4),
        "a grid of another size": lambda: fold(unfold(image), (3, 7)),
        "no grid": lambda: fold(unfold(image)[:, :1], ()),
        "tokens of two axes": lambda: fold(unfold(image)[0], (3, 5)),
        "channels of a grid": lambda: fold(unfold(image), (3, 5), 4),
        "k and v apart": lambda: spatial_attention(image, image, image.mT),
        "q of two axes": lambda: spatial_attention(image[..., 0, 0], image, image),
        "another d": lambda: spatial_attention(image[:, 1:], image, image),
    }[case]()


MESSAGES = {
    "no spatial axis": r"one spatial axis or more; got channel_axis 1, x \(2, 7\)",
    "the batch as channels": r"got channel_axis 0, x \(2, 7, 3, 5\)",
    "the batch as channels, from behind": "got channel_axis -4",
    "an axis that is not there": "got channel_axis 4",
    "a grid of another size": r"each position of the grid \(3, 7\); got tokens \(2, 15, 7\)",
    "no grid": r"the grid \(\); got tokens \(2, 1, 7\)",
    "tokens of two axes": r"got tokens \(15, 7\)",
    "channels of a grid": r"got channel_axis 4, spatial \(3, 5\), tokens \(2, 15, 7\)",
    "k and v apart": r"the same spatial size, with channels on axis 1; got .*, k \(2, 7, 3, 5\), v \(2, 7, 5, 3\)",
    "q of two axes": r"got channel_axis 1, q \(2, 7\), k \(2, 7, 3, 5\)",
    "another d": r"one d > 0, one m; got q \(2, 15, 6\), k \(2, 15, 7\)",
}


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_input_raises_an_error(case: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of these before the operator can")
    with pytest.raises(ShapeError, match=MESSAGES[case]):
        refused(case)


def _on_lines(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, operator: Any) -> Tensor:
    """A spatial operator on tokens (..., n, d), each row of tokens as an image with one spatial axis."""
    lead = q.shape[:-2]
    lines = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)] if lead else [x.unsqueeze(0) for x in (q, k, v)]
    if mask is not None:
        mask = mask.expand(*lead, q.shape[-2], k.shape[-2]).reshape(lines[0].shape[0], q.shape[-2], k.shape[-2])
    return operator(*lines, channel_axis=-1, mask=mask).reshape(*lead, q.shape[-2], v.shape[-1])


# Its errors show the shapes of the one-axis images; they are tested above.
@pytest.mark.parametrize("name", sorted(OPERATOR_CHECKS.keys() - {"mismatched_shapes", "wrong_masks"}))
def test_the_contract_of_every_operator(name: str, typechecked: bool) -> None:
    operator, slow = (partial(_on_lines, operator=made) for made in (spatial_attention, slow_spatial_attention))
    run_check(name, OperatorSubject(operator=operator, reference=slow), typechecked=typechecked)

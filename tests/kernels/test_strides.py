"""Tensors with strides of 0, as in an expanded batch."""

import pytest
import torch

from clearhead.kernels.calls import (
    Attended,
    Pursued,
    Schedule,
    attend,
    attend_backward,
    pursue,
    pursue_backward,
)
from clearhead.kernels.library import Kernel

BATCH, HEADS, TOKENS, WIDTH = 5, 2, 61, 3
SCALE = 0.5


@pytest.fixture
def one() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return keys, values, a gradient and a mask of a batch of one."""
    torch.manual_seed(7)
    k, v, gradient = torch.randn(3, 1, HEADS, TOKENS, WIDTH)
    return k, v, gradient, torch.rand(1, TOKENS) > 0.3


def repeated(x: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """Return the tensor expanded to the batch, without a copy."""
    shape = [*x.shape]
    shape[axis] = BATCH
    return x.expand(shape)


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def test_attention_and_its_gradient(compiled: Kernel, one: Tensors) -> None:
    k, v, gradient, visible = one
    alone = attend(compiled, k, v, visible=visible, scale=SCALE)
    expected = attend_backward(compiled, gradient, k, v, alone, visible=visible, scale=SCALE)
    k, v, gradient, visible = map(repeated, one)
    assert visible.stride() == (0, 1)
    torch.testing.assert_close(
        attend(compiled, k, v, visible=visible, scale=SCALE).out, repeated(alone.out), rtol=0, atol=0
    )
    saved = Attended(repeated(alone.out), repeated(alone.totals), repeated(alone.by_row))
    got = attend_backward(compiled, gradient, k, v, saved, visible=visible, scale=SCALE)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, repeated(theirs), rtol=0, atol=0)


def test_pursuit_and_its_gradient(compiled: Kernel, one: Tensors) -> None:
    k, v, gradient, visible = one
    t = torch.full((1, HEADS, TOKENS), 0.7)
    alone = pursue(compiled, k, v, t, Schedule(3, 2.0, SCALE, visible), for_gradient=True)
    expected = pursue_backward(compiled, gradient, k, v, t, Schedule(3, 2.0, SCALE, visible), alone)
    k, v, gradient, visible = map(repeated, one)
    schedule = Schedule(3, 2.0, SCALE, visible)
    got = pursue(compiled, k, v, repeated(t), schedule, for_gradient=True)
    torch.testing.assert_close(got.out, repeated(alone.out), rtol=0, atol=0)
    saved = Pursued(
        repeated(alone.out), repeated(alone.between, 1), repeated(alone.totals, 1), repeated(alone.by_row, 1)
    )
    gradients = pursue_backward(compiled, gradient, k, v, repeated(t), schedule, saved)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, repeated(theirs), rtol=0, atol=0)

"""Comparison of captured residual streams with those that a small transformer records."""

import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.heads import Heads
from tests.capture.stream_models import Carried


def captured(model: nn.Module, x: Tensor) -> list[Heads]:
    with torch.no_grad(), capture(model, residual_stream=True) as recorded:
        while_capturing = model(x.clone())
    with torch.no_grad():
        assert torch.equal(model(x.clone()), while_capturing)
    return recorded.heads


def assert_carried(heads: list[Heads], carried: list[Carried | None]) -> None:
    for call, truth in zip(heads, carried, strict=True):
        if truth is None:
            assert call.residual_stream is None, call.name
            continue
        assert call.residual_stream is not None, call.name
        parts = (call.residual_stream.before, call.residual_stream.between, call.residual_stream.after)
        for name, ours, theirs in zip(("before", "between", "after"), parts, truth, strict=True):
            assert (ours is None) == (theirs is None), (call.name, name)
            assert ours is None or torch.equal(ours, theirs), (call.name, name)

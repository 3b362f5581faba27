"""The sizes of a model and of its inputs, for planted heads of the same sizes."""

import statistics
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from clearhead._capture import capture
from clearhead.audit.model_runs import evaluation_mode, forward
from clearhead.calibration.planted_model import Shape
from clearhead.heads import Heads

__all__ = ["shape_of"]


def shape_of(model: nn.Module, batches: Iterable[Any]) -> Shape:
    """Return the number of layers and inputs, and the median of heads, widths and tokens over layers or inputs."""
    calls: list[tuple[int, int, int]] = []
    lengths: list[int] = []

    def keep(heads: Heads) -> None:
        _, count, _, head_dim = heads.v.shape
        width = count * head_dim if heads.values_from is None else heads.values_from.x.shape[-1]
        calls.append((count, head_dim, width))
        if heads.layer == 0:
            lengths.extend(_lengths(heads))

    with evaluation_mode(model), torch.no_grad(), capture(model, keep=keep) as captured:
        for batch in batches:
            forward(model, batch)
    sizes = (statistics.median_low(values) for values in zip(*calls, strict=True))
    heads, head_dim, width = sizes
    return Shape(
        layers=len(captured.layers),
        heads=heads,
        head_dim=head_dim,
        width=max(width, head_dim),
        tokens=statistics.median_low(lengths),
        inputs=len(lengths),
    )


def _lengths(heads: Heads) -> list[int]:
    """Return the number of tokens of every input that are not padding."""
    inputs, tokens = len(heads.k) // heads.windows, heads.k.shape[-2]
    if heads.mask is None:
        return [tokens] * inputs
    visible = heads.mask.any(dim=-2).any(dim=1).expand(len(heads.k), tokens)
    return [int(row.sum()) for row in visible[:: heads.windows]]

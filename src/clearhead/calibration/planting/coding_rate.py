"""Heads that take the exact step of rate reduction in their own subspace (Yu et al. 2023, section 2.3)."""

import torch
from torch import Tensor

from clearhead.calibration.planted_model import (
    Planted,
    PlantedAttention,
    PlantedModel,
    Shape,
    draw_tokens,
    in_batches,
    planted_head,
    planted_heads,
)

__all__ = ["EPS", "plant"]

EPS = 0.5
"""The epsilon with which the theory is measured."""
OFFSET = 0.6
"""Makes all weights positive: entries of a matrix between 0 and the identity are at least -1/2 off the diagonal."""


def plant(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
    r"""Plant the step -s V (I + a V^T V)^-1 U^T, V = Z U, a = p / (n eps^2), as softmax attention.

    It equals -s M V U^T with M = (I + a V V^T)^-1. Tokens are centred, so 1^T V = 0, and the weights
    A = (M + b 1 1^T) / (1 + n b) have rows of sum one, are positive, and A V = M V / (1 + n b). A bias on the scores
    makes them, V is the head's values, and the output projection has the factor -s (1 + n b).
    """
    tokens = torch.nn.functional.normalize(draw_tokens(shape, generator), dim=-1)
    tokens = tokens - tokens.mean(dim=-2, keepdim=True)
    layers = [_layer(shape, generator) for _ in range(shape.layers)]
    n = shape.tokens
    bias = torch.zeros(shape.inputs, shape.layers, n, n, dtype=torch.float64)
    for index, attention in enumerate(layers[:planted]):
        attention.planted = planted_head(index, shape)
        rows = attention.rows(attention.planted)
        with torch.no_grad():
            basis = torch.linalg.qr(attention.value.weight[rows].mT).Q
            attention.value.weight[rows] = basis.mT
            attention.query.weight[rows] = 0
            attention.out.weight[:, rows] = -strength * (1 + n * OFFSET) * basis
            bias[:, index] = _weights(tokens[:, index] @ basis).log()
    return Planted(
        model=PlantedModel(layers),
        heads=planted_heads(planted, shape),
        batches=in_batches(tokens=tokens, bias=bias),
        draw_baseline=lambda generator: PlantedModel([_layer(shape, generator) for _ in range(shape.layers)]),
    )


def _layer(shape: Shape, generator: torch.Generator) -> PlantedAttention:
    """Return attention for tokens of length one, whose queries and keys have unit variance."""
    attention = PlantedAttention(shape, generator=generator)
    with torch.no_grad():
        for linear in (attention.query, attention.key):
            linear.weight *= shape.width**0.5
    return attention


def _weights(v: Tensor) -> Tensor:
    n, p = v.shape[-2:]
    a = p / (n * EPS**2)
    inverse: Tensor = torch.linalg.inv(torch.eye(n, dtype=v.dtype) + a * v @ v.mT)
    return (inverse + OFFSET) / (1 + n * OFFSET)

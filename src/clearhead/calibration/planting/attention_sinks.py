"""Heads that attend to the first token, whose value is small (Gu et al. 2024)."""

import math

import torch

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

__all__ = ["plant"]

FULL = 0.9
"""Attention on the first token at strength 1, if all other scores are equal."""
POSITION, CONSTANT = -2, -1
"""The coordinates that are 1 for the first token only, and for every token."""


def plant(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
    """Plant attention 1/n + s (0.9 - 1/n) on the first token, and a value of (1 - s) times its length.

    The first token is the same in all inputs. One coordinate of the planted queries is constant, and the same
    coordinate of the keys is zero except for the first token's.
    """
    tokens = draw_tokens(shape, generator)
    tokens[..., 0, :] = tokens[0, :, 0, :]
    tokens[..., POSITION], tokens[..., CONSTANT] = 0, 1
    tokens[..., 0, POSITION] = 1
    layers = [PlantedAttention(shape, generator=generator) for _ in range(shape.layers)]
    mass = 1 / shape.tokens + strength * (FULL - 1 / shape.tokens)
    score = math.log(mass / (1 - mass) * (shape.tokens - 1))
    for index, attention in enumerate(layers[:planted]):
        rows, first = attention.rows(planted_head(index, shape)), tokens[0, index, 0]
        with torch.no_grad():
            attention.query.weight[rows.start] = attention.key.weight[rows.start] = 0
            attention.query.weight[rows.start, CONSTANT] = 1
            attention.key.weight[rows.start, POSITION] = score * shape.head_dim**0.5
            value = attention.value.weight[rows]
            attention.value.weight[rows] = value - strength * torch.outer(value @ first, first) / (first @ first)
    return Planted(
        model=PlantedModel(layers),
        heads=planted_heads(planted, shape),
        batches=in_batches(tokens=tokens),
        draw_baseline=lambda generator: PlantedModel(
            [PlantedAttention(shape, generator=generator) for _ in range(shape.layers)]
        ),
    )

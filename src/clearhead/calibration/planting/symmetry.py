"""Heads whose scores depend on the tokens, and on their positions with a weight (theorem 1 of Ji and Xie)."""

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

SPREAD = 3.0
"""Standard deviation of the scores that positions give."""


def plant(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
    """Plant scores s q.k + (1 - s) B with a random matrix B of positions; all other heads have B alone."""

    def model(generator: torch.Generator, strength: float, planted: int) -> PlantedModel:
        layers = [PlantedAttention(shape, generator=generator) for _ in range(shape.layers)]
        size = (shape.heads, shape.tokens, shape.tokens)
        for index, attention in enumerate(layers):
            weights = torch.zeros(shape.heads, 1, 1, dtype=torch.float64)
            if index < planted:
                weights[planted_head(index, shape)] = strength
            bias = SPREAD * torch.randn(size, generator=generator, dtype=torch.float64)
            attention.score_bias = (1 - weights) * bias
            with torch.no_grad():
                attention.query.weight *= weights[:, 0].repeat_interleave(shape.head_dim, dim=0)
        return PlantedModel(layers)

    return Planted(
        model=model(generator, strength, planted),
        heads=planted_heads(planted, shape),
        batches=in_batches(tokens=draw_tokens(shape, generator)),
        draw_baseline=lambda generator: model(generator, 0.0, 0),
    )

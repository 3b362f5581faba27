"""Heads whose values span the principal axes of their keys (theorem 1 of Teo and Nguyen 2024)."""

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
from clearhead.theories.kernel_pca.space import key_space, principal_axes

__all__ = ["plant"]


def plant(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
    """Plant values s V + sqrt(1 - s^2) R: V the theorem's own, R those of a random value map, both of unit size.

    The planted values are coordinates of the tokens, which the planted value map reads, so it is a linear map.
    """
    tokens = draw_tokens(shape, generator)
    width = shape.width + shape.head_dim

    def layer(generator: torch.Generator) -> PlantedAttention:
        attention = PlantedAttention(shape, width=width, generator=generator)
        with torch.no_grad():
            for linear in (attention.query, attention.key, attention.value):
                linear.weight *= (width / shape.width) ** 0.5
                linear.weight[:, shape.width :] = 0
        return attention

    layers = [layer(generator) for _ in range(shape.layers)]
    values = torch.zeros(shape.inputs, shape.layers, shape.tokens, shape.head_dim, dtype=torch.float64)
    for index, attention in enumerate(layers[:planted]):
        rows, x = attention.rows(planted_head(index, shape)), tokens[:, index]
        with torch.no_grad():
            key, value = (linear.weight[rows, : shape.width] for linear in (attention.key, attention.value))
            exact = _unit_size(_theorem_values(x @ key.mT, shape))
            values[:, index] = strength * exact + (1 - strength**2) ** 0.5 * _unit_size(x @ value.mT)
            attention.value.weight[rows] = torch.eye(shape.head_dim, width, dtype=torch.float64).roll(shape.width, 1)
    return Planted(
        model=PlantedModel(layers),
        heads=planted_heads(planted, shape),
        batches=in_batches(tokens=torch.cat([tokens, values], dim=-1)),
        draw_baseline=lambda generator: PlantedModel([layer(generator) for _ in range(shape.layers)]),
    )


def _theorem_values(k: Tensor, shape: Shape) -> Tensor:
    """Return the values for unit principal axes, up to one factor for each input; zero where there are fewer axes."""
    values = principal_axes(key_space(k, scale=shape.head_dim**-0.5), shape.head_dim).values
    return torch.nn.functional.pad(values, (0, shape.head_dim - values.shape[-1]))


def _unit_size(values: Tensor) -> Tensor:
    """Scale the values of every input to unit mean square."""
    return values / values.square().mean(dim=(-2, -1), keepdim=True).sqrt()

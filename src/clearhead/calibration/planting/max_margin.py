"""Heads whose W is the attention SVM of all their inputs (problem (Att-SVM) of Tarzanagh et al. 2023)."""

import dataclasses
import math

import torch
from torch import Tensor

from clearhead.calibration.planted_model import (
    Planted,
    PlantedAttention,
    PlantedModel,
    Shape,
    in_batches,
    planted_head,
    planted_heads,
)
from clearhead.theories.max_margin import attention_svm

__all__ = ["plant"]

QUERIES, TOKENS = 3, 16
"""Queries of each input, and the most tokens: as many as the claims are measured on, so that these see every
constraint."""
INPUTS = 36
"""The fewest inputs: six groups. With four groups, one exact head in about twenty is not called."""
HEADS = 2
"""The most heads of a layer. None of the controls compares heads, and problems in three norms take time."""
SATURATED = 0.99
"""A query is saturated if one token has more than this share of its attention."""


def plant(
    shape: Shape,
    strength: float,
    planted: int,
    generator: torch.Generator,
    *,
    saturation: float = 0.95,
    queries: int = QUERIES,
) -> Planted:
    """Plant W = s W_svm + (1 - s) R, both of norm one, then scaled until the share `saturation` of queries saturates.

    W_svm is the matrix of largest margin for the tokens that another random matrix selects in all inputs, each with
    this number of queries. Tokens and queries are as wide as the head, so that its W can have any rank. Every other
    head has W = R.
    """
    shape = dataclasses.replace(
        shape,
        inputs=max(shape.inputs, INPUTS),
        tokens=min(shape.tokens, TOKENS),
        width=shape.head_dim,
        heads=min(shape.heads, HEADS),
    )
    d = shape.head_dim
    x = _normal(shape.inputs, shape.layers, shape.tokens, d, generator=generator)
    z = _normal(shape.inputs, shape.layers, queries, d, generator=generator)

    def model(generator: torch.Generator, strength: float, planted: int) -> PlantedModel:
        layers = [PlantedAttention(shape, generator=generator) for _ in range(shape.layers)]
        for index, attention in enumerate(layers):
            for head in range(shape.heads):
                matrix = _unit(_normal(d, d, generator=generator))
                if index < planted and head == planted_head(index, shape):
                    matrix = strength * _svm(x[:, index], z[:, index], generator) + (1 - strength) * matrix
                matrix = matrix * _factor(x[:, index], z[:, index], matrix, saturation)
                with torch.no_grad():
                    attention.key.weight[attention.rows(head)] = torch.eye(d, dtype=torch.float64)
                    attention.query.weight[attention.rows(head)] = math.sqrt(d) * matrix
        return PlantedModel(layers)

    return Planted(
        model=model(generator, strength, planted),
        heads=planted_heads(planted, shape),
        batches=in_batches(tokens=x, queries=z),
        draw_baseline=lambda generator: model(generator, 0.0, 0),
    )


def _svm(x: Tensor, z: Tensor, generator: torch.Generator) -> Tensor:
    """Return the attention SVM of all queries, of norm one; a random matrix selects the tokens."""
    rule = _normal(x.shape[-1], x.shape[-1], generator=generator)
    selected = _scores(x, z, rule).argmax(dim=-1).flatten()
    solution = attention_svm(x.repeat_interleave(z.shape[1], dim=0), z.flatten(0, 1), selected)
    assert solution.W is not None  # the rule itself separates the tokens that it selects
    return _unit(solution.W)


def _factor(x: Tensor, z: Tensor, matrix: Tensor, share: float) -> float:
    """Return the factor of W at which a share of the queries is saturated, by bisection."""
    scores = _scores(x, z, matrix)
    low, high = 0.0, 1.0
    while _saturated(high * scores) < share:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _saturated(middle * scores) >= share else (middle, high)
    return high


def _saturated(scores: Tensor) -> float:
    return float((scores.softmax(dim=-1).amax(dim=-1) > SATURATED).double().mean())


def _scores(x: Tensor, z: Tensor, matrix: Tensor) -> Tensor:
    return torch.einsum("bnc,ce,bme->bmn", x, matrix, z)


def _unit(matrix: Tensor) -> Tensor:
    unit: Tensor = matrix / torch.linalg.matrix_norm(matrix)
    return unit


def _normal(*size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*size, generator=generator, dtype=torch.float64)

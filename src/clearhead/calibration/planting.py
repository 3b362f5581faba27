"""Constructions of heads that follow a theory to a graded strength, by the theory's key.

kernel PCA: heads whose values span the principal axes of their keys (theorem 1 of Teo and Nguyen 2024)
max margin: heads whose W is the attention SVM of all their inputs (problem (Att-SVM) of Tarzanagh et al. 2023)
coding rate: heads that take the exact step of rate reduction in their own subspace (Yu et al. 2023, section 2.3)
symmetry: heads whose scores depend on the tokens, and on their positions with a weight (theorem 1 of Ji and Xie)
attention sinks: heads that attend to the first token, whose value is small (Gu et al. 2024)
"""

import dataclasses
import functools
import math
from collections.abc import Callable

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
from clearhead.theories.max_margin import attention_svm

Plant = Callable[[Shape, float, int, torch.Generator], Planted]
"""Plants one head of a strength from 0 to 1 in each of the first layers, as many as the third argument says."""

QUERIES, TOKENS = 3, 16
"""Max margin: queries of each input, and a limit on the tokens, as many as the claims are measured on, so that these
see every constraint."""
INPUTS = 36
"""Max margin: the fewest inputs, six groups. With four groups, one exact head in about twenty is not flagged."""
HEADS = 2
"""Max margin: a limit on the heads of a layer. None of the controls compares heads, and problems in three norms take
time."""
SATURATED = 0.99
"""Max margin: a query is saturated if one token has more than this share of its attention."""
EPS = 0.5
"""Coding rate: the epsilon with which the theory is measured."""
OFFSET = 0.6
"""Coding rate: makes all weights positive. Entries of a matrix between 0 and the identity are at least -1/2 off the
diagonal."""
DEVIATION = 3.0
"""Symmetry: standard deviation of the scores that positions give."""
FULL = 0.9
"""Attention sinks: attention on the first token at strength 1, if all other scores are equal."""
POSITION, CONSTANT = -2, -1
"""Attention sinks: the coordinates that are 1 for the first token only, and for every token."""


def plant_kernel_pca(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
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
    return _planted(shape, planted, layers, layer, tokens=torch.cat([tokens, values], dim=-1))


def _planted(
    shape: Shape,
    planted: int,
    layers: list[PlantedAttention],
    layer: Callable[[torch.Generator], PlantedAttention],
    **inputs: Tensor,
) -> Planted:
    """Return a model of these layers; `layer` draws one of the model before training."""
    return Planted(
        model=PlantedModel(layers),
        heads=planted_heads(planted, shape),
        batches=in_batches(**inputs),
        draw_baseline=lambda generator: PlantedModel([layer(generator) for _ in range(shape.layers)]),
    )


def _theorem_values(k: Tensor, shape: Shape) -> Tensor:
    """Return the values for unit principal axes, up to one factor for each input; zero where there are fewer axes."""
    values = principal_axes(key_space(k, scale=shape.head_dim**-0.5), shape.head_dim).values
    return torch.nn.functional.pad(values, (0, shape.head_dim - values.shape[-1]))


def _unit_size(values: Tensor) -> Tensor:
    """Scale the values of every input to unit mean square."""
    return values / values.square().mean(dim=(-2, -1), keepdim=True).sqrt()


def plant_max_margin(
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


def plant_coding_rate(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
    r"""Plant the step -s V (I + a V^T V)^-1 U^T, V = Z U, a = p / (n eps^2), as softmax attention.

    It equals -s M V U^T with M = (I + a V V^T)^-1. Tokens are centred, so 1^T V = 0, and the weights
    A = (M + b 1 1^T) / (1 + n b) have rows of sum one, are positive, and A V = M V / (1 + n b). A bias on the scores
    makes them, V is the head's values, and the output projection has the factor -s (1 + n b).
    """
    tokens = torch.nn.functional.normalize(draw_tokens(shape, generator), dim=-1)
    tokens = tokens - tokens.mean(dim=-2, keepdim=True)
    layers = [_unit_layer(shape, generator) for _ in range(shape.layers)]
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
            bias[:, index] = _step_weights(tokens[:, index] @ basis).log()
    return _planted(shape, planted, layers, lambda generator: _unit_layer(shape, generator), tokens=tokens, bias=bias)


def _unit_layer(shape: Shape, generator: torch.Generator) -> PlantedAttention:
    """Return attention for tokens of length one, whose queries and keys have unit variance."""
    attention = PlantedAttention(shape, generator=generator)
    with torch.no_grad():
        for linear in (attention.query, attention.key):
            linear.weight *= shape.width**0.5
    return attention


def _step_weights(v: Tensor) -> Tensor:
    n, p = v.shape[-2:]
    a = p / (n * EPS**2)
    inverse: Tensor = torch.linalg.inv(torch.eye(n, dtype=v.dtype) + a * v @ v.mT)
    return (inverse + OFFSET) / (1 + n * OFFSET)


def plant_symmetry(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
    """Plant scores s q.k + (1 - s) B with a random matrix B of positions; all other heads have B alone."""

    def model(generator: torch.Generator, strength: float, planted: int) -> PlantedModel:
        layers = [PlantedAttention(shape, generator=generator) for _ in range(shape.layers)]
        size = (shape.heads, shape.tokens, shape.tokens)
        for index, attention in enumerate(layers):
            weights = torch.zeros(shape.heads, 1, 1, dtype=torch.float64)
            if index < planted:
                weights[planted_head(index, shape)] = strength
            bias = DEVIATION * torch.randn(size, generator=generator, dtype=torch.float64)
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


def plant_attention_sinks(shape: Shape, strength: float, planted: int, generator: torch.Generator) -> Planted:
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
    return _planted(
        shape, planted, layers, lambda generator: PlantedAttention(shape, generator=generator), tokens=tokens
    )


PLANTS: dict[str, Plant] = {
    "kernel-pca": plant_kernel_pca,
    "max-margin": plant_max_margin,
    "coding-rate": plant_coding_rate,
    "symmetry": plant_symmetry,
    "attention-sinks": plant_attention_sinks,
}

VARIANTS: dict[str, dict[str, Plant]] = {
    "max-margin": {
        "60% saturated": functools.partial(plant_max_margin, saturation=0.6),
        "80% saturated": functools.partial(plant_max_margin, saturation=0.8),
        "8 queries": functools.partial(plant_max_margin, queries=8),
        "16 queries": functools.partial(plant_max_margin, queries=16),
    },
}
"""Other heads of strength 1, by the theory's key and a name: what else the power may depend on."""

"""Models with planted heads: layers of softmax attention side by side, whose inputs and weights are constructed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from clearhead.shapes import Float

BATCH_SIZE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model and of its inputs. `width` is that of the tokens a layer reads."""

    layers: int = 4
    heads: int = 8
    head_dim: int = 16
    width: int = 128
    tokens: int = 40
    inputs: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A model with planted heads and its inputs.

    heads: layer and head of every planted head
    draw_baseline: returns the model before training, without planted heads, from a generator
    """

    model: "PlantedModel"
    heads: frozenset[tuple[int, int]]
    batches: Sequence[dict[str, Tensor]]
    draw_baseline: Callable[[torch.Generator], "PlantedModel"]


class PlantedAttention(nn.Module):
    """Softmax attention without biases in its projections; a bias on the scores is added if there is one.

    Initial weights give queries, keys and values of tokens with unit variance unit variance too.
    """

    def __init__(self, shape: Shape, *, width: int | None = None, generator: torch.Generator) -> None:
        super().__init__()
        self.heads, self.head_dim = shape.heads, shape.head_dim
        inner, outer = shape.heads * shape.head_dim, width or shape.width
        self.query, self.key, self.value = (nn.Linear(outer, inner, bias=False, dtype=torch.float64) for _ in range(3))
        self.out = nn.Linear(inner, outer, bias=False, dtype=torch.float64)
        self.score_bias: Tensor | None = None
        self.planted: int | None = None
        with torch.no_grad():
            for linear in (self.query, self.key, self.value, self.out):
                normal = torch.randn(linear.weight.shape, generator=generator, dtype=torch.float64)
                linear.weight.copy_(normal / linear.in_features**0.5)

    def rows(self, head: int) -> slice:
        """Return the outputs of the projections that belong to a head."""
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    def forward(
        self, x: Float[Tensor, "b n c"], queries: Float[Tensor, "b m c"] | None = None, bias: Any = None
    ) -> Float[Tensor, "b m c"]:
        """Return the attention of the queries, or of the tokens themselves. `bias` is that of the planted head."""
        q, k, v = (
            linear(tokens).unflatten(-1, (self.heads, self.head_dim)).movedim(-2, -3)
            for linear, tokens in ((self.query, x if queries is None else queries), (self.key, x), (self.value, x))
        )
        mask = self.score_bias
        if bias is not None and self.planted is not None:
            mask = torch.zeros(x.shape[0], self.heads, *bias.shape[-2:], dtype=bias.dtype)
            mask[:, self.planted] = bias
        heads = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.out(heads.movedim(-3, -2).flatten(-2))
        return out


class PlantedModel(nn.Module):
    """Layers that each read tokens of their own and add their output to them, or to the queries if there are any."""

    def __init__(self, layers: Sequence[PlantedAttention]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self,
        tokens: Float[Tensor, "b l n c"],
        queries: Float[Tensor, "b l m c"] | None = None,
        bias: Float[Tensor, "b l n n"] | None = None,
    ) -> Float[Tensor, "b l m c"]:
        """Return the tokens, or the queries, after every layer."""
        outputs = []
        for index, layer in enumerate(self.layers):
            x = tokens[:, index]
            stream = x if queries is None else queries[:, index]
            layer_bias = None if bias is None else bias[:, index]
            outputs.append(stream + layer(x, None if queries is None else stream, layer_bias))
        return torch.stack(outputs, dim=1)


def planted_head(layer: int, shape: Shape) -> int:
    """Return the head of a layer that is planted."""
    return layer % shape.heads


def planted_heads(planted: int, shape: Shape) -> frozenset[tuple[int, int]]:
    """Return layer and head of the planted heads if the first `planted` layers have one each."""
    return frozenset((layer, planted_head(layer, shape)) for layer in range(planted))


def draw_tokens(shape: Shape, generator: torch.Generator) -> Float[Tensor, "i l n c"]:
    """Draw tokens with unit variance on average and a spectrum that decays with the square root of the rank."""
    scales = torch.arange(1, shape.width + 1, dtype=torch.float64) ** -0.5
    scales = scales * (shape.width / scales.square().sum()).sqrt()
    size = (shape.inputs, shape.layers, shape.tokens, shape.width)
    normal = torch.randn(size, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(shape.width, shape.width, generator=generator, dtype=torch.float64)).Q
    tokens: Tensor = normal * scales @ rotation
    return tokens


def in_batches(**tensors: Tensor) -> list[dict[str, Tensor]]:
    """Split tensors of all inputs into batches of the model's keyword arguments."""
    parts = zip(*(torch.split(tensor, BATCH_SIZE) for tensor in tensors.values()), strict=True)
    return [dict(zip(tensors, batch, strict=True)) for batch in parts]

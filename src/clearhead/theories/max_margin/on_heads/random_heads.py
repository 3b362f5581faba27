r"""Random heads as controls for a model's heads.

A head with :math:`W = s\, W_k^T W_q` gives token x of a sequence with query z the score x . p, :math:`p = W z`. In the
space of the layer's inputs, z has a one appended if the map to queries has a bias. If the maps are unknown, keys and
queries themselves are the tokens, and W is s times the identity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import Heads, LinearMap
from clearhead.shapes import Float
from clearhead.theories.example import Example

__all__ = ["HeadSpace", "Pull", "Space", "TokenSpace", "space_of"]


@dataclass(frozen=True, slots=True)
class Pull:
    """W z of every query, and the norm of every head's W. The head axis has size one if all heads share the draw."""

    vectors: Float[Tensor, "queries h c"]
    norms: Float[Tensor, "h"]


@runtime_checkable
class Space(Protocol):
    """The space of tokens, queries and W; `shared` if all heads of the layer have the same tokens."""

    shared: bool

    def tokens(self, example: Example) -> Float[Tensor, "g m c"]:
        """Return the tokens of an example."""

    def queries(self, positions: Sequence[tuple[Example, int]]) -> Float[Tensor, "queries g e"]:
        """Return the queries at these positions of examples."""

    def model_heads(self, z: Float[Tensor, "queries g e"]) -> Pull:
        """Return W z of the model's own heads."""

    def norms(self) -> Float[Tensor, "h"]:
        """Return |W| of every head."""

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """Return W of one head."""

    def random_head(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """Draw a head with Gaussian maps of the same rank."""

    def rotated_heads(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """Draw new singular vectors, the same for all heads, and keep each head's singular values."""


def space_of(layer: Heads | Example) -> Space:
    """Return the space of the layer's inputs if the maps to queries and keys are known, else of queries and keys."""
    keys, queries = layer.keys_from, layer.queries_from
    if keys is None or queries is None:
        return HeadSpace(layer.scale, heads=layer.q.shape[-3], width=layer.k.shape[-1])
    return TokenSpace(layer.scale, keys, queries)


class TokenSpace:
    """The space of the layer's inputs, which the maps to keys and queries read."""

    shared = True

    def __init__(self, scale: float, keys: LinearMap, queries: LinearMap) -> None:
        self._scale, self._bias = scale, queries.bias is not None
        self._left = keys.weight.cpu().double()
        right = queries.weight.cpu().double()
        self._right = (
            right if queries.bias is None else torch.cat([right, queries.bias.cpu().double().unsqueeze(-2)], dim=-2)
        )
        # The singular values of a product depend only on the triangular factors.
        product = torch.linalg.qr(self._left).R @ torch.linalg.qr(self._right).R.mT
        self._values: Tensor = scale * torch.linalg.svdvals(product)

    def tokens(self, example: Example) -> Float[Tensor, "g m c"]:
        """Return the tokens of an example."""
        assert example.keys_from is not None
        return example.keys_from.x.cpu().double()

    def queries(self, positions: Sequence[tuple[Example, int]]) -> Float[Tensor, "queries g e"]:
        """Return the queries at these positions of examples."""
        maps = [(example.queries_from, position) for example, position in positions]
        z = torch.stack([linear.x[0, position] for linear, position in maps if linear is not None]).cpu().double()
        if self._bias:
            z = torch.cat([z, z.new_ones(len(z), 1)], dim=-1)
        return z.unsqueeze(1)

    def model_heads(self, z: Float[Tensor, "queries g e"]) -> Pull:
        """Return W z of the model's own heads."""
        mapped = torch.einsum("nge,hed->nhd", z, self._right)
        vectors = self._scale * torch.einsum("hcd,nhd->nhc", self._left, mapped)
        return Pull(vectors, self.norms())

    def norms(self) -> Float[Tensor, "h"]:
        """Return |W| of every head."""
        norms: Tensor = self._values.square().sum(dim=-1).sqrt()
        return norms

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """Return W of one head."""
        product: Tensor = self._scale * self._left[head] @ self._right[head].mT
        return product

    def random_head(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """Draw a head with Gaussian maps of the same rank, for all heads of the layer."""
        left, right = (
            _normal(x.shape[-2], self._values.shape[-1], generator=generator) for x in (self._left, self._right)
        )
        vectors = torch.einsum("cd,ngd->ngc", left, z @ right)
        return Pull(vectors, torch.einsum("ij,ij->", left.mT @ left, right.mT @ right).sqrt().reshape(1))

    def rotated_heads(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """Draw new singular vectors, the same for all heads, and keep each head's singular values."""
        rank = self._values.shape[-1]
        left, right = (_orthonormal(x.shape[-2], rank, generator=generator) for x in (self._left, self._right))
        vectors = torch.einsum("cd,hd,ngd->nhc", left, self._values, z @ right)
        return Pull(vectors, self.norms())


class HeadSpace:
    """The space of keys and queries, including anything applied after their maps, such as rotary codes."""

    shared = False

    def __init__(self, scale: float, *, heads: int, width: int) -> None:
        self._scale, self._heads, self._width = scale, heads, width

    def tokens(self, example: Example) -> Float[Tensor, "g m c"]:
        """Return the tokens of an example."""
        return example.k.cpu().double()

    def queries(self, positions: Sequence[tuple[Example, int]]) -> Float[Tensor, "queries g e"]:
        """Return the queries at these positions of examples."""
        return torch.stack([example.q[:, position] for example, position in positions]).cpu().double()

    def model_heads(self, z: Float[Tensor, "queries g e"]) -> Pull:
        """Return W z of the model's own heads."""
        return Pull(self._scale * z, self.norms())

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """Return W of one head."""
        return self._scale * torch.eye(self._width, dtype=torch.float64)

    def random_head(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """Draw a head with Gaussian maps of the same rank."""
        matrix = _normal(self._width, self._width, generator=generator)
        return Pull(z @ matrix.mT, torch.linalg.matrix_norm(matrix).expand(z.shape[1]))

    def rotated_heads(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """Draw new singular vectors, the same for all heads, and keep each head's singular values."""
        rotation = _orthonormal(self._width, self._width, generator=generator)
        return Pull(self._scale * z @ rotation.mT, self.norms())

    def norms(self) -> Float[Tensor, "h"]:
        """Return |W| of every head."""
        size = abs(self._scale) * float(np.sqrt(self._width))
        return torch.full((self._heads,), size, dtype=torch.float64)


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _orthonormal(rows: int, columns: int, *, generator: torch.Generator) -> Tensor:
    """Return uniformly distributed orthonormal columns, (rows, columns)."""
    basis, triangular = torch.linalg.qr(_normal(rows, columns, generator=generator))
    # Without the signs of R, LAPACK's Q is not uniform (Mezzadri 2007).
    signed: Tensor = basis * triangular.diagonal().sign()
    return signed

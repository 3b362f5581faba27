r"""Heads that nobody trained, to choose tokens beside a model's own.

A head with :math:`W = s\, W_k^T W_q` pulls at tokens by :math:`p = W z`: token x of the same sequence scores x . p. In
the space of the layer's inputs, z has a one appended where the map to queries has a bias. Where the maps are not known,
keys and queries themselves are the tokens, and W is s times the identity.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import Heads, LinearMap
from clearhead.shapes import Float

__all__ = ["HeadSpace", "Pull", "Space", "TokenSpace", "space_of"]


@dataclass(frozen=True, slots=True)
class Pull:
    """W z of every query, and the norm of every head's W. The head axis has size one where all heads share the draw."""

    vectors: Float[Tensor, "queries h c"]
    norms: Float[Tensor, "h"]


@runtime_checkable
class Space(Protocol):
    """In which space tokens, queries and W are: `shared` tells that all heads of the layer have the same tokens."""

    shared: bool

    def tokens(self, index: int) -> Float[Tensor, "g m c"]:
        """The tokens of one entry of the batch."""

    def queries(self, places: list[tuple[int, int]]) -> Float[Tensor, "queries g e"]:
        """The queries at these (entry, place) pairs."""

    def own(self, places: list[tuple[int, int]]) -> Pull:
        """The model's own heads."""

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """W of one head."""

    def random(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """One draw of a head with Gaussian maps of the same rank."""

    def turned(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """One draw of every head with its singular values kept and its singular vectors drawn anew."""


def space_of(heads: Heads) -> Space:
    """The space of the layer's inputs where the maps to queries and keys are known, else that of queries and keys."""
    keys, queries = heads.keys_from, heads.queries_from
    return HeadSpace(heads) if keys is None or queries is None else TokenSpace(heads, keys, queries)


class TokenSpace:
    """Tokens are what the maps to keys and queries read."""

    shared = True

    def __init__(self, heads: Heads, keys: LinearMap, queries: LinearMap) -> None:
        self._heads, self._keys, self._queries = heads, keys, queries
        self._left = keys.weight.cpu().double()
        right = queries.weight.cpu().double()
        self._right = (
            right if queries.bias is None else torch.cat([right, queries.bias.cpu().double().unsqueeze(-2)], dim=-2)
        )
        # The triangular factors hold what a product's singular values depend on.
        small = torch.linalg.qr(self._left).R @ torch.linalg.qr(self._right).R.mT
        self._values = heads.scale * torch.linalg.svdvals(small)

    def tokens(self, index: int) -> Float[Tensor, "g m c"]:
        """The tokens of one entry of the batch."""
        return self._keys.x[index].cpu().double().unsqueeze(0)

    def queries(self, places: list[tuple[int, int]]) -> Float[Tensor, "queries g e"]:
        """The queries at these (entry, place) pairs."""
        z = torch.stack([self._queries.x[index, place] for index, place in places]).cpu().double()
        if self._queries.bias is not None:
            z = torch.cat([z, z.new_ones(len(places), 1)], dim=-1)
        return z.unsqueeze(1)

    def own(self, places: list[tuple[int, int]]) -> Pull:
        """The model's own heads."""
        mapped = torch.einsum("nge,hed->nhd", self.queries(places), self._right)
        vectors = self._heads.scale * torch.einsum("hcd,nhd->nhc", self._left, mapped)
        return Pull(vectors, self._values.square().sum(dim=-1).sqrt())

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """W of one head."""
        product: Tensor = self._heads.scale * self._left[head] @ self._right[head].mT
        return product

    def random(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """One draw of a head with Gaussian maps of the same rank, for all heads of the layer."""
        left, right = (
            _normal(x.shape[-2], self._values.shape[-1], generator=generator) for x in (self._left, self._right)
        )
        vectors = torch.einsum("cd,ngd->ngc", left, z @ right)
        return Pull(vectors, torch.einsum("ij,ij->", left.mT @ left, right.mT @ right).sqrt().reshape(1))

    def turned(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """One draw of every head with its singular values kept and its singular vectors drawn anew."""
        h, rank = self._values.shape
        left, right = (_orthonormal(h, x.shape[-2], rank, generator=generator) for x in (self._left, self._right))
        vectors = torch.einsum("hcd,hd,nhd->nhc", left, self._values, torch.einsum("nge,hed->nhd", z, right))
        return Pull(vectors, self._values.square().sum(dim=-1).sqrt())


class HeadSpace:
    """Tokens are the keys themselves, and queries the queries, with whatever was done to them since their maps."""

    shared = False

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._width = heads.k.shape[-1]

    def tokens(self, index: int) -> Float[Tensor, "g m c"]:
        """The tokens of one entry of the batch."""
        return self._heads.k[index].cpu().double()

    def queries(self, places: list[tuple[int, int]]) -> Float[Tensor, "queries g e"]:
        """The queries at these (entry, place) pairs."""
        return torch.stack([self._heads.q[index, :, place] for index, place in places]).cpu().double()

    def own(self, places: list[tuple[int, int]]) -> Pull:
        """The model's own heads."""
        return Pull(self._heads.scale * self.queries(places), self._norms())

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """W of one head."""
        return self._heads.scale * torch.eye(self._width, dtype=torch.float64)

    def random(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """One draw of a head with Gaussian maps of the same rank."""
        matrix = _normal(self._width, self._width, generator=generator)
        return Pull(z @ matrix.mT, torch.linalg.matrix_norm(matrix).expand(z.shape[1]))

    def turned(self, z: Float[Tensor, "queries g e"], generator: torch.Generator) -> Pull:
        """One draw of every head with its singular values kept and its singular vectors drawn anew."""
        turn = _orthonormal(z.shape[1], self._width, self._width, generator=generator)
        return Pull(self._heads.scale * torch.einsum("hce,nhe->nhc", turn, z), self._norms())

    def _norms(self) -> Tensor:
        size = abs(self._heads.scale) * float(np.sqrt(self._width))
        return torch.full((self._heads.q.shape[1],), size, dtype=torch.float64)


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _orthonormal(count: int, rows: int, columns: int, *, generator: torch.Generator) -> Tensor:
    """Uniformly drawn orthonormal columns, (count, rows, columns)."""
    basis, triangular = torch.linalg.qr(_normal(count, rows, columns, generator=generator))
    # Without the signs of R, LAPACK's Q is not uniform (Mezzadri 2007).
    found: Tensor = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return found

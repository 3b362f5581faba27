r"""Random heads as controls for a model's heads.

A head with :math:`W = s\, W_k^T W_q` gives token x of a sequence with query z the score x . p, :math:`p = W z`. In the
space of the layer's inputs, z has a one appended if the map to queries has a bias. If the maps are unknown, keys and
queries themselves are the tokens, and W is s times the identity.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import Heads, LinearMap
from clearhead.numerics.spectrum import orthonormal_columns
from clearhead.shapes import Float
from clearhead.theories.example import Example


@dataclass(frozen=True, slots=True)
class Pull:
    """W z of every query by draw, and the norm of every W. The head axis has size one if all heads share the draw."""

    vectors: Float[Tensor, "queries t h c"]
    norms: Float[Tensor, "t h"]


@dataclass(frozen=True, slots=True)
class Maps:
    """The maps of heads W = L diag(s) R^T by draw, for all heads of a layer; in single precision, to save memory."""

    left: Float[Tensor, "t c r"]
    right: Float[Tensor, "t e r"]


@dataclass(frozen=True, slots=True)
class UntrainedHeads:
    """The untrained heads of a layer: Gaussian maps, s = 1; and random singular vectors of each head's values s."""

    random: Maps
    rotated: Maps


class Space(ABC):
    """The space of tokens, queries and W; the axis g of tokens and queries has size one if all heads read the same.

    values: the singular values of every head's W, (h, r)
    """

    values: Tensor

    @abstractmethod
    def tokens(self, example: Example) -> Float[Tensor, "g m c"]:
        """Return the tokens of an example."""

    @abstractmethod
    def queries(self, positions: Sequence[tuple[Example, int]]) -> Float[Tensor, "queries g e"]:
        """Return the queries at these positions of examples."""

    @abstractmethod
    def norms(self) -> Float[Tensor, "h"]:
        """Return |W| of every head."""

    @abstractmethod
    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        """Return W of one head."""

    @abstractmethod
    def _mapped(self, z: Float[Tensor, "queries g e"]) -> Float[Tensor, "queries h c"]:
        """Return W z of every head."""

    @abstractmethod
    def _draw_maps(self, draws: int, draw: Callable[[int, int], Tensor]) -> Maps:
        """Return the left and right maps of every draw; `draw` makes one of a number of rows and columns."""

    def model_heads(self, z: Float[Tensor, "queries g e"]) -> Pull:
        """Return W z of the model's own heads, one draw."""
        return Pull(self._mapped(z).unsqueeze(1), self.norms().unsqueeze(0))

    def draw(self, generator: torch.Generator, *, random: int, rotated: int) -> UntrainedHeads:
        """Draw untrained heads of the same rank, for all heads of the layer."""

        def normal(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, dtype=torch.float64)

        return UntrainedHeads(
            self._draw_maps(random, normal),
            # Q of the decomposition whose R has a positive diagonal; with other signs Q is not uniform (Mezzadri 2007).
            self._draw_maps(rotated, lambda rows, columns: orthonormal_columns(normal(rows, columns))),
        )

    def random_heads(self, z: Float[Tensor, "queries g e"], maps: Maps) -> Pull:
        """Return W z of heads with Gaussian maps."""
        maps = Maps(maps.left.double(), maps.right.double())
        norms = ((maps.left.mT @ maps.left) * (maps.right.mT @ maps.right)).sum(dim=(-2, -1)).sqrt()
        return Pull(_pulled(z, maps, None), norms.unsqueeze(-1).expand(-1, z.shape[1]))

    def rotated_heads(self, z: Float[Tensor, "queries g e"], maps: Maps) -> Pull:
        """Return W z of heads with each head's singular values and new singular vectors."""
        return Pull(_pulled(z, maps, self.values), self.norms().expand(len(maps.left), -1))


def space_of(layer: Heads | Example) -> Space:
    """Return the space of the layer's inputs if the maps to queries and keys are known, else of queries and keys.

    The singular values of the heads of an example are computed once in an audit.
    """
    keys, queries = layer.keys_from, layer.queries_from
    if keys is None or queries is None:
        return _HeadSpace(layer.scale, heads=layer.q.shape[-3], width=layer.k.shape[-1])
    space = _TokenSpace(layer.scale, keys, queries)
    if isinstance(layer, Example):
        space.values = layer.per_audit.get(("singular values", layer.layer), lambda: space.values)
    return space


class _TokenSpace(Space):
    """The space of the layer's inputs, which the maps to keys and queries read."""

    def __init__(self, scale: float, keys: LinearMap, queries: LinearMap) -> None:
        self._scale, self._bias = scale, queries.bias is not None
        self._left = keys.weight.cpu().double()
        right = queries.weight.cpu().double()
        self._right = (
            right if queries.bias is None else torch.cat([right, queries.bias.cpu().double().unsqueeze(-2)], dim=-2)
        )

    @cached_property
    def values(self) -> Float[Tensor, "h r"]:  # type: ignore[override]
        # The singular values of a product depend only on the triangular factors.
        product = torch.linalg.qr(self._left).R @ torch.linalg.qr(self._right).R.mT
        values: Tensor = self._scale * torch.linalg.svdvals(product)
        return values

    def tokens(self, example: Example) -> Float[Tensor, "g m c"]:
        assert example.keys_from is not None
        return example.keys_from.x.cpu().double()

    def queries(self, positions: Sequence[tuple[Example, int]]) -> Float[Tensor, "queries g e"]:
        maps = [(example.queries_from, position) for example, position in positions]
        z = torch.stack([linear.x[0, position] for linear, position in maps if linear is not None]).cpu().double()
        if self._bias:
            z = torch.cat([z, z.new_ones(len(z), 1)], dim=-1)
        return z.unsqueeze(1)

    def norms(self) -> Float[Tensor, "h"]:
        norms: Tensor = self.values.square().sum(dim=-1).sqrt()
        return norms

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        product: Tensor = self._scale * self._left[head] @ self._right[head].mT
        return product

    def _mapped(self, z: Float[Tensor, "queries g e"]) -> Float[Tensor, "queries h c"]:
        mapped = torch.einsum("nge,hed->nhd", z, self._right)
        return self._scale * torch.einsum("hcd,nhd->nhc", self._left, mapped)

    def _draw_maps(self, draws: int, draw: Callable[[int, int], Tensor]) -> Maps:
        c, e, rank = self._left.shape[-2], self._right.shape[-2], self.values.shape[-1]
        left, right = torch.empty(draws, c, rank), torch.empty(draws, e, rank)
        for index in range(draws):
            left[index], right[index] = draw(c, rank), draw(e, rank)
        return Maps(left, right)


class _HeadSpace(Space):
    """The space of keys and queries, including anything applied after their maps, such as rotary codes."""

    def __init__(self, scale: float, *, heads: int, width: int) -> None:
        self._scale, self._width = scale, width
        self.values = torch.full((heads, width), scale, dtype=torch.float64)

    def tokens(self, example: Example) -> Float[Tensor, "g m c"]:
        return example.k.cpu().double()

    def queries(self, positions: Sequence[tuple[Example, int]]) -> Float[Tensor, "queries g e"]:
        return torch.stack([example.q[:, position] for example, position in positions]).cpu().double()

    def norms(self) -> Float[Tensor, "h"]:
        size = abs(self._scale) * float(np.sqrt(self._width))
        return torch.full((len(self.values),), size, dtype=torch.float64)

    def matrix(self, head: int) -> Float[Tensor, "c e"]:
        return self._scale * torch.eye(self._width, dtype=torch.float64)

    def _mapped(self, z: Float[Tensor, "queries g e"]) -> Float[Tensor, "queries h c"]:
        return self._scale * z

    def _draw_maps(self, draws: int, draw: Callable[[int, int], Tensor]) -> Maps:
        """Return Gaussian or orthonormal left maps; the right maps are the identity."""
        left = torch.empty(draws, self._width, self._width)
        for index in range(draws):
            left[index] = draw(self._width, self._width)
        return Maps(left, torch.eye(self._width).repeat(draws, 1, 1))


def _pulled(z: Tensor, maps: Maps, values: Float[Tensor, "h r"] | None) -> Float[Tensor, "queries t h c"]:
    """Return L diag(s) R^T z by draw and head; s is one without `values`."""
    t, c, r = maps.left.shape
    queries, g, _ = z.shape
    mapped = (z.flatten(0, 1) @ maps.right.double()).reshape(t, queries, g, r)
    weighted = mapped if values is None else mapped * values
    pulled = weighted.flatten(1, 2) @ maps.left.double().mT
    return pulled.reshape(t, queries, weighted.shape[2], c).movedim(0, 1)

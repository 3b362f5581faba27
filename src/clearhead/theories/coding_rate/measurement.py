"""The claims of the coding rate measured on a stream of calls: by head, by layer, and on the maps alone."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.audit.findings import Finding
from clearhead.audit.record import DepthCurve
from clearhead.heads import Heads
from clearhead.numerics.coding_rate import check_eps
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Float
from clearhead.theories.coding_rate.block import Block, Draws
from clearhead.theories.coding_rate.claims import (
    BEFORE_MLP,
    COMPRESSION,
    DENSITY,
    GAUSSIAN,
    HEAD_CLAIMS,
    LAYER_CLAIMS,
    MAP_CLAIMS,
    NONZERO,
    RANDOM_SUBSPACE,
    RAW_MAP,
    TIED_CLAIMS,
    UNSCALED_MAP,
    undefined,
)
from clearhead.theories.coding_rate.depth import CurveSums, Points, rate_points, sparsity_points
from clearhead.theories.coding_rate.maps import LayerMaps, RandomMaps, by_head
from clearhead.theories.coding_rate.sparsity import density, gaussian_density, nonzero_fraction
from clearhead.theories.coding_rate.subspaces import orthonormal_bases, value_maps
from clearhead.theories.coding_rate.tokens import Tokens, tokens_of
from clearhead.theories.tallies import Layer, Sample, Samples, Tallies

__all__ = ["CodingRateClaims"]

OTHER_WIDTH = "the value map reads vectors of another width than the stream's"
NO_MAP = "values are no linear map of what the layer reads, so the head has no subspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maps:
    """The value maps of one call, orthonormal bases of them, and how many heads share each."""

    weights: Float[Tensor, "k c f"]
    bases: Float[Tensor, "k c p"]
    tied: bool
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What one input gives; where it gives nothing, why."""

    heads: Samples | str
    layer: Samples | str
    tied: Samples | str
    points: tuple[Points, ...] = ()
    zeros: int = 0


class CodingRateClaims:
    """All claims of the theory on every head and every layer of a stream of calls that carry `Heads.stream`.

    Each input counts once, and the windows of one input are one sample. `eps` is epsilon itself: .5, so epsilon squared
    is .25, between the .5 and the .01 that publications take.
    """

    def __init__(self, seed: int, *, controls: bool = True, eps: float = 0.5, draws: Draws | None = None) -> None:
        check_eps(eps)
        self._seed, self._eps = seed, eps
        self._draws = (draws or Draws()) if controls else None
        self._heads, self._of_maps, self._layers, self._tied = (
            Tallies(claims, seed=seed, undefined=undefined)
            for claims in (HEAD_CLAIMS, MAP_CLAIMS, LAYER_CLAIMS, TIED_CLAIMS)
        )
        self._maps: dict[int, LayerMaps] = {}
        self._random_maps: dict[tuple[int, ...], RandomMaps] = {}
        self._curves = CurveSums("coding rate")
        self._zeros: dict[int, int] = {}

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        maps, seen, layer = self._maps_of(heads), self._layers.samples(heads.layer), Layer.of(heads)
        inputs = range(heads.q.shape[0] // heads.windows)
        for found in one_thread_each(lambda i: self._measured(heads, maps, i, seen + i + 1), inputs):
            _count(self._heads, layer, found.heads)
            _count(self._of_maps, layer, NO_MAP if maps is None else self._maps[layer.place].samples)
            _count(self._layers, Layer(layer.place, layer.name, 1), found.layer)
            if maps is not None and maps.tied:
                _count(self._tied, layer, found.tied)
            for points in found.points:
                self._curves.add(layer.place, points)
            self._zeros[layer.place] = self._zeros.get(layer.place, 0) + found.zeros

    def findings(self) -> list[Finding]:
        """What was found on every head and layer seen, without verdicts."""
        return [f for part in (self._heads, self._layers, self._of_maps, self._tied) for f in part.findings()]

    def curves(self) -> list[DepthCurve]:
        """R^c behind attention, of tokens as they are and at length one, and how sparse each layer leaves them."""
        return self._curves.curves()

    def notes(self) -> list[str]:
        """How many tokens had no length to be scaled to one."""
        return [
            f"{count} tokens of zeros around layer {layer} stay so where others are scaled to length one"
            for layer, count in sorted(self._zeros.items())
            if count
        ]

    def _maps_of(self, heads: Heads) -> _Maps | None:
        """The maps of a call; what they say alone is found once for each layer."""
        weights = value_maps(heads)
        if weights is None:
            return None
        if heads.layer not in self._maps:
            self._maps[heads.layer] = LayerMaps.of(heads, weights, self._random(weights))
        tied = self._maps[heads.layer].tied
        return _Maps(weights=weights, bases=orthonormal_bases(weights), tied=tied, groups=heads.groups)

    def _random(self, weights: Tensor) -> RandomMaps | None:
        if self._draws is None:
            return None
        k, c, f = weights.shape
        if (k, c, f) not in self._random_maps:
            drawn = RandomMaps.drawn((k, c, f), draws=self._draws.random_map, seed=self._seed)
            self._random_maps[k, c, f] = drawn
        return self._random_maps[k, c, f]

    def _measured(self, heads: Heads, maps: _Maps | None, index: int, number: int) -> _Measured:
        tokens = tokens_of(heads, index)
        if isinstance(tokens, str):
            return _Measured(heads=tokens, layer=tokens, tied=tokens)
        layer, sparse = self._of_layer(tokens), sparsity_points(tokens, controls=self._draws is not None)
        if maps is None or maps.weights.shape[1] != tokens.before.shape[-1]:
            obstacle = NO_MAP if maps is None else OTHER_WIDTH
            return _Measured(heads=obstacle, layer=layer, tied=obstacle, points=(sparse,))
        generator = self._generator(heads.layer, number)
        block = Block(tokens, maps.bases, eps=self._eps)
        elsewhere = block.elsewhere(self._draws.random_subspace, generator) if self._draws else None
        return _Measured(
            heads=by_head(block.samples(self._draws, generator, elsewhere), maps.groups),
            layer=layer,
            tied=self._of_tied(heads.layer, Block(tokens, maps.weights, eps=self._eps), maps, generator, elsewhere)
            if maps.tied
            else NO_MAP,
            points=(rate_points(block, elsewhere), sparse),
            zeros=tokens.zeros,
        )

    def _of_tied(
        self, layer: int, block: Block, maps: _Maps, generator: torch.Generator, elsewhere: Block | None
    ) -> Samples:
        """The learned subspaces as they are. Random subspaces are left out, for they are not of the size of these."""
        own = block.samples(self._draws, generator, elsewhere)[COMPRESSION]
        own = dataclasses.replace(own, controls={c: x for c, x in own.controls.items() if c is not RANDOM_SUBSPACE})
        return {**by_head({RAW_MAP: own}, maps.groups), UNSCALED_MAP: self._maps[layer].unscaled}

    def _of_layer(self, tokens: Tokens) -> Samples | str:
        if tokens.after is None:
            return "nothing follows the attention that could be told from the next block"
        found = {}
        for claim, measure in ((DENSITY, density), (NONZERO, nonzero_fraction)):
            controls = {BEFORE_MLP: np.array([[measure(tokens.between)]])}
            if claim is DENSITY:
                controls[GAUSSIAN] = np.array([[gaussian_density(tokens.after.shape[-1])]])
            value = np.array([measure(tokens.after)])
            found[claim] = Sample(value=value, controls=controls if self._draws else {})
        return found

    def _generator(self, layer: int, number: int) -> torch.Generator:
        """Draws depend on the input's number, not on how inputs were batched."""
        entropy = np.random.SeedSequence([self._seed, layer, number])
        return torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))


def _count(tallies: Tallies, layer: Layer, found: Samples | str) -> None:
    if isinstance(found, str):
        tallies.count(layer, None, reasons=[found])
    else:
        tallies.count(layer, found)

"""The coding rate measured on one input: by head, by layer, and on the maps alone."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import check_eps
from clearhead.theories.coding_rate.ablations import NO_ABLATION, NO_NORM, can_ablate
from clearhead.theories.coding_rate.block import Bases
from clearhead.theories.coding_rate.claims import (
    COMPRESSION,
    DEPTH_CLAIMS,
    HEAD_CLAIMS,
    LAYER_CLAIMS,
    MAP_CLAIMS,
    NORM_CLAIMS,
    RANDOM_SUBSPACE,
    RAW_MAP,
    TIED_CLAIMS,
    UNSCALED_MAP,
)
from clearhead.theories.coding_rate.depth import sparsity
from clearhead.theories.coding_rate.head_samples import Draws, HeadSamples
from clearhead.theories.coding_rate.subspaces import LayerMaps, RandomMaps, is_tied, orthonormal_bases, value_maps
from clearhead.theories.coding_rate.tokens import Tokens, tokens_of
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import SAMPLED, repeat
from clearhead.theories.theory import Claim, Sample, Samples

OTHER_WIDTH = Reason(ReasonKind.NOT_COVERED, "the value map reads vectors of another width than the residual stream's")
NO_MAP = Reason(
    ReasonKind.NOT_FOUND, "values are not a linear map of what the layer reads, so the head has no subspace"
)
NO_MLP = Reason(ReasonKind.NOT_FOUND, "nothing between the attention and the next block was found")
ZERO_TOKENS = Reason(ReasonKind.UNDEFINED, "tokens of length zero, which cannot be scaled to length one,")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingRate:
    """The claims of the coding rate on an input with its residual stream. Its windows are one sample.

    eps: epsilon itself: .5, so epsilon squared is .25, between the .5 and the .01 that publications take
    """

    eps: float
    draws: Draws

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def claims_of(self, example: Example) -> tuple[Claim, ...]:
        """Return the claims on the layer: on tied maps if queries, keys and values share one, after a norm if any."""
        maps = self._maps(example)
        tied = TIED_CLAIMS if maps is not None and maps.tied else ()
        stream = example.stream
        # The tokens after attention may be the sum itself or its norm.
        normed = NORM_CLAIMS if stream is not None and not torch.equal(stream.total, stream.between) else ()
        return (*HEAD_CLAIMS, *normed, *LAYER_CLAIMS, *MAP_CLAIMS, *tied, *DEPTH_CLAIMS)

    def measure(self, example: Example, rng: Random) -> Samples:
        """Measure every claim; those on maps also where the residual stream is missing."""
        claims, maps, tokens = self.claims_of(example), self._maps(example), tokens_of(example, rng.torch)
        missing = tokens if isinstance(tokens, Reason) else NO_MLP
        samples: dict[Claim, Sample | Reason] = dict.fromkeys(claims, missing)
        samples |= dict.fromkeys(MAP_CLAIMS, NO_MAP) if maps is None else maps.samples
        if isinstance(tokens, Reason):
            return samples
        samples |= sparsity(tokens, controls=example.controls)
        weights = example.per_call.get("value maps", lambda: value_maps(example))
        on_heads = [claim for claim in claims if claim in (*HEAD_CLAIMS, *NORM_CLAIMS, RAW_MAP)]
        if maps is None or weights is None or weights.shape[1] != tokens.before.shape[-1]:
            return samples | dict.fromkeys([*on_heads, *DEPTH_CLAIMS[:2]], NO_MAP if maps is None else OTHER_WIDTH)
        samples |= dict.fromkeys(on_heads, NO_ABLATION)
        samples |= dict.fromkeys([claim for claim in on_heads if claim in NORM_CLAIMS], NO_NORM)
        return samples | self._head_samples(example, rng, tokens, weights, maps)

    def _head_samples(
        self, example: Example, rng: Random, tokens: Tokens, weights: Tensor, maps: LayerMaps
    ) -> dict[Claim, Sample]:
        bases = example.per_audit.get(
            ("bases", example.layer, tokens.dtype), lambda: Bases.of(orthonormal_bases(weights), tokens.dtype)
        )
        prepared = HeadSamples.of(example, tokens, p=bases.width, eps=self.eps, draws=self.draws, generator=rng.torch)
        measured, curves = prepared.measure(bases)
        if not can_ablate(example):
            return curves
        samples = repeat(measured, example.groups)
        if maps.tied and example.wants(RAW_MAP):
            raw_map = prepared.measure(Bases.of(weights, tokens.dtype))[0][COMPRESSION]
            # Random subspaces are left out: their bases are orthonormal and the learned map is not.
            controls = {control: x for control, x in raw_map.controls.items() if control is not RANDOM_SUBSPACE}
            samples |= repeat({RAW_MAP: dataclasses.replace(raw_map, controls=controls)}, example.groups)
        if prepared.sets.zeros:
            samples[COMPRESSION] = dataclasses.replace(samples[COMPRESSION], caveat=ZERO_TOKENS)
        samples |= curves
        if tokens.sampled:
            samples = {claim: dataclasses.replace(x, caveat=x.caveat or SAMPLED) for claim, x in samples.items()}
        return samples

    def _maps(self, example: Example) -> LayerMaps | None:
        """Return the claims on the layer's maps, measured once; None if values are not a linear map."""
        weights = example.per_call.get("value maps", lambda: value_maps(example))
        if weights is None:
            return None
        wanted = example.wants(*MAP_CLAIMS, UNSCALED_MAP)
        return example.per_audit.get(
            ("maps", example.layer),
            lambda: (
                LayerMaps.of(example, weights, self._random_maps(example, weights))
                if wanted
                else LayerMaps(tied=is_tied(example), samples={})
            ),
        )

    def _random_maps(self, example: Example, weights: Tensor) -> RandomMaps | None:
        if not example.controls:
            return None
        k, c, f = weights.shape
        return example.per_audit.get(
            ("random maps", k, c, f),
            lambda: RandomMaps.draw((k, c, f), draws=self.draws.random_map, seed=example.seed),
        )

"""The value maps of one layer: their subspaces, and how far they are from what theory assumes, beside random maps."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.axes import Float
from clearhead.heads import Heads
from clearhead.theories.coding_rate.claims import LARGEST_COSINE, ORTHONORMAL, OVERLAP, RANDOM_MAP
from clearhead.theories.coding_rate.subspaces import (
    coherence,
    is_tied,
    not_orthonormal,
    orthonormal_bases,
    value_maps,
)
from clearhead.theories.tallies import Sample, Samples

__all__ = ["LayerMaps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMaps:
    """What the weights of one layer say, the same on every input.

    weights, bases: the map of every distinct value head, and an orthonormal basis of its columns
    tied: whether queries, keys and values are one map
    samples: the claims on maps, for every head; `unscaled`: that on a tied map as it is
    """

    weights: Float[Tensor, "k c f"]
    bases: Float[Tensor, "k c p"]
    tied: bool
    samples: Samples
    unscaled: Sample
    groups: int

    @classmethod
    def of(cls, heads: Heads, *, draws: int, seed: int) -> "LayerMaps | None":
        """Of the layer that made a call, beside so many random maps; None where values are no linear map's."""
        weights = value_maps(heads)
        if weights is None:
            return None
        entropy = np.random.SeedSequence([seed, heads.layer, *weights.shape])
        generator = torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))
        drawn = torch.randn(draws, *weights.shape, generator=generator, dtype=torch.float64)
        bases = orthonormal_bases(weights)
        own, others = coherence(bases), coherence(torch.linalg.qr(drawn).Q) if draws else ()
        # As large as the model's own, head by head.
        drawn = drawn * (torch.linalg.matrix_norm(weights) / torch.linalg.matrix_norm(drawn))[..., None, None]
        repeat = heads.groups

        def sample(value: np.ndarray, control: np.ndarray | None) -> Sample:
            found = Sample(value=value, controls={} if control is None else {RANDOM_MAP: control})
            return _repeated(found, repeat)

        return cls(
            weights=weights,
            bases=bases,
            tied=is_tied(heads),
            samples={
                ORTHONORMAL: sample(
                    not_orthonormal(weights, scaled=True), not_orthonormal(drawn, scaled=True) if draws else None
                ),
                OVERLAP: sample(own[0], others[0] if others else None),
                LARGEST_COSINE: sample(own[1], others[1] if others else None),
            },
            unscaled=sample(
                not_orthonormal(weights, scaled=False), not_orthonormal(drawn, scaled=False) if draws else None
            ),
            groups=repeat,
        )

    def obstacle(self, width: int) -> str:
        """Why the maps say nothing of a stream of this width, if so."""
        return (
            "" if self.weights.shape[1] == width else "the value map reads vectors of another width than the stream's"
        )

    def by_head(self, samples: Samples) -> Samples:
        """What was found on distinct value heads, for every head."""
        return {claim: _repeated(sample, self.groups) for claim, sample in samples.items()}


def _repeated(sample: Sample, times: int) -> Sample:
    return Sample(
        value=np.repeat(sample.value, times),
        controls={control: np.repeat(drawn, times, axis=-1) for control, drawn in sample.controls.items()},
    )

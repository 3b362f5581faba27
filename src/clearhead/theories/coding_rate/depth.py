"""Quantities by layer, as the papers draw them over depth: of the model and of its controls."""

import numpy as np
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.coding_rate.block import Rates
from clearhead.theories.coding_rate.claims import (
    AT_THIS_SIZE,
    BEFORE_ATTENTION,
    BEFORE_MLP,
    DENSITY_BY_LAYER,
    GAUSSIAN,
    IN_RANDOM_SUBSPACES,
    NONZERO_BY_LAYER,
    RAW_RATE,
    UNIT_RATE,
)
from clearhead.theories.coding_rate.sparsity import density, gaussian_density, nonzero_fraction
from clearhead.theories.coding_rate.tokens import Tokens
from clearhead.theories.theory import Claim, Control, Sample

__all__ = ["rates_by_layer", "sparsity_by_layer"]


def rates_by_layer(
    raw: Float[Tensor, "k"],
    unit: Float[Tensor, "k"],
    *,
    before: Float[Tensor, "k"] | None = None,
    at_size: Float[Tensor, "k"] | None = None,
    random: Rates | None = None,
) -> dict[Claim, Sample]:
    """Return R^c of one input after the sum, of tokens as they are and at length one.

    before: of tokens before the block at length one; at_size: of these tokens at the size of the sum
    random: of tokens after the sum in random subspaces
    """
    if before is None or at_size is None or random is None or random.raw is None:
        return {RAW_RATE: _sample(float(raw.sum())), UNIT_RATE: _sample(float(unit.sum()))}
    heads = len(raw)
    return {
        RAW_RATE: _sample(
            float(raw.sum()),
            {AT_THIS_SIZE: float(at_size.sum()), IN_RANDOM_SUBSPACES: heads * float(random.raw.mean())},
        ),
        UNIT_RATE: _sample(
            float(unit.sum()),
            {BEFORE_ATTENTION: float(before.sum()), IN_RANDOM_SUBSPACES: heads * float(random.unit.mean())},
        ),
    }


def sparsity_by_layer(tokens: Tokens, *, controls: bool) -> dict[Claim, Sample]:
    """Return the sparsity of one input after the layer, with that before the MLP as a control; empty without an MLP."""
    if tokens.after is None:
        return {}
    if not controls:
        return {
            DENSITY_BY_LAYER: _sample(density(tokens.after)),
            NONZERO_BY_LAYER: _sample(nonzero_fraction(tokens.after)),
        }
    gaussian = gaussian_density(tokens.between.shape[-1])
    return {
        DENSITY_BY_LAYER: _sample(density(tokens.after), {BEFORE_MLP: density(tokens.between), GAUSSIAN: gaussian}),
        NONZERO_BY_LAYER: _sample(nonzero_fraction(tokens.after), {BEFORE_MLP: nonzero_fraction(tokens.between)}),
    }


def _sample(value: float, controls: dict[Control, float] | None = None) -> Sample:
    return Sample(
        value=np.array([value]),
        controls={control: np.array([[number]]) for control, number in (controls or {}).items()},
    )

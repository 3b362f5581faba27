"""Quantities by layer, as the papers draw them over depth: of the model and of its controls."""

import numpy as np

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


def rates_by_layer(rates: Rates, *, random: Rates | None = None) -> dict[Claim, Sample]:
    """Return R^c of one input after the sum, of tokens as they are and at length one.

    rates, random: of tokens before the block and after the sum, in the heads' subspaces and in random ones
    """
    (before, unit), raw = rates.unit[:2], rates.raw[1]
    if random is None:
        return {RAW_RATE: _sample(float(raw.sum())), UNIT_RATE: _sample(float(unit.sum()))}
    heads = len(raw)
    return {
        RAW_RATE: _sample(
            float(raw.sum()),
            {AT_THIS_SIZE: float(rates.at_size.sum()), IN_RANDOM_SUBSPACES: heads * float(random.raw[1].mean())},
        ),
        UNIT_RATE: _sample(
            float(unit.sum()),
            {BEFORE_ATTENTION: float(before.sum()), IN_RANDOM_SUBSPACES: heads * float(random.unit[1].mean())},
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

r"""Quantities by layer, as the papers draw them over depth: of the model and of its controls.

Two measures say how sparse tokens are: the share of exact zeros, and a density that also grades small entries.
"""

import math

import numpy as np
import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.coding_rate.block import Rates
from clearhead.theories.coding_rate.claims import (
    AT_THIS_SIZE,
    BEFORE_ATTENTION,
    BEFORE_MLP,
    DENSITY,
    DENSITY_BY_LAYER,
    GAUSSIAN,
    IN_RANDOM_SUBSPACES,
    NONZERO,
    NONZERO_BY_LAYER,
    RAW_RATE,
    UNIT_RATE,
)
from clearhead.theories.coding_rate.tokens import Tokens
from clearhead.theories.theory import Claim, Control, Sample


def gaussian_density(c: int) -> float:
    r"""Return the expected density of c independent Gaussian features, :math:`(1 + (c - 1)\, 2/\pi) / c`.

    (|z|_1 / |z|_2)^2 is independent of |z|_2, so its mean is the mean of |z|_1^2 over the mean of |z|_2^2.
    """
    return (1 + (c - 1) * 2 / math.pi) / c


def density(z: Float[Tensor, "n c"]) -> float:
    r"""Return the mean over tokens of :math:`(\|z\|_1 / \|z\|_2)^2 / c`.

    It is 1/c for one-hot features and 1 for features of equal magnitude. Zero tokens are left out; NaN if all are zero.
    """
    z = z.double()
    squares = z.square().sum(dim=-1)
    nonzero = squares > 0
    if not bool(nonzero.any()):
        return math.nan
    return float((z.abs().sum(dim=-1)[nonzero].square() / squares[nonzero]).mean() / z.shape[-1])


def nonzero_fraction(z: Float[Tensor, "n c"]) -> float:
    """Return the share of entries that are not exactly zero."""
    return float(torch.count_nonzero(z)) / z.numel()


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


def sparsity(tokens: Tokens, *, controls: bool) -> dict[Claim, Sample]:
    """Return the sparsity of one input after the layer, as claims and as curves; empty without an MLP.

    The sparsity before the MLP is a control, and so is the density of Gaussian features.
    """
    if tokens.after is None:
        return {}
    of_density, of_zeros = {}, {}
    if controls:
        of_density = {BEFORE_MLP: density(tokens.between), GAUSSIAN: gaussian_density(tokens.after.shape[-1])}
        of_zeros = {BEFORE_MLP: nonzero_fraction(tokens.between)}
    dense, nonzero = _sample(density(tokens.after), of_density), _sample(nonzero_fraction(tokens.after), of_zeros)
    return {DENSITY: dense, NONZERO: nonzero, DENSITY_BY_LAYER: dense, NONZERO_BY_LAYER: nonzero}


def _sample(value: float, controls: dict[Control, float] | None = None) -> Sample:
    return Sample(
        value=np.array([value]),
        controls={control: np.array([[number]]) for control, number in (controls or {}).items()},
    )

"""Constructions of heads that follow a theory to a graded strength, by the theory's key."""

import functools
from collections.abc import Callable

import torch

from clearhead.calibration.planted_model import Planted, Shape
from clearhead.calibration.planting import attention_sinks, coding_rate, kernel_pca, max_margin, symmetry

__all__ = ["PLANTS", "VARIANTS", "Plant"]

Plant = Callable[[Shape, float, int, torch.Generator], Planted]
"""Plants one head of a strength from 0 to 1 in each of the first layers, as many as the third argument says."""

PLANTS: dict[str, Plant] = {
    "kernel-pca": kernel_pca.plant,
    "max-margin": max_margin.plant,
    "coding-rate": coding_rate.plant,
    "symmetry": symmetry.plant,
    "attention-sinks": attention_sinks.plant,
}

VARIANTS: dict[str, dict[str, Plant]] = {
    "max-margin": {
        "60% saturated": functools.partial(max_margin.plant, saturation=0.6),
        "80% saturated": functools.partial(max_margin.plant, saturation=0.8),
        "8 queries": functools.partial(max_margin.plant, queries=8),
        "16 queries": functools.partial(max_margin.plant, queries=16),
    },
}
"""Other heads of strength 1, by the theory's key and a name: what else the power may depend on."""

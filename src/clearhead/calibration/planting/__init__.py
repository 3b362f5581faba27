"""Constructions of heads that follow a theory to a graded strength, by the theory's key."""

from collections.abc import Callable

import torch

from clearhead.calibration.planted_model import Planted, Shape
from clearhead.calibration.planting import attention_sinks, coding_rate, kernel_pca, max_margin, symmetry

__all__ = ["PLANTS", "Plant"]

Plant = Callable[[Shape, float, int, torch.Generator], Planted]
"""Plants one head of a strength from 0 to 1 in each of the first layers, as many as the third argument says."""

PLANTS: dict[str, Plant] = {
    "kernel-pca": kernel_pca.plant,
    "max-margin": max_margin.plant,
    "coding-rate": coding_rate.plant,
    "symmetry": symmetry.plant,
    "attention-sinks": attention_sinks.plant,
}

"""Curves over depth, as the papers draw them: means over inputs by layer, of the model and of chance."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from clearhead.audit.record import DepthCurve, DepthLine
from clearhead.numerics.moments import Interval, RunningMoments
from clearhead.theories.coding_rate.block import Block
from clearhead.theories.coding_rate.sparsity import density, gaussian_density, nonzero_fraction
from clearhead.theories.coding_rate.tokens import Tokens

__all__ = ["RAW_RATE", "UNIT_RATE", "CurveSums", "Points", "Quantity", "rate_points", "sparsity_points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a curve is of."""

    title: str
    label: str
    note: str = ""


RAW_RATE = Quantity(
    title="Coding rate after attention",
    label="Rᶜ, nats",
    note="the sum over heads of R(ZU_h) behind the attention of each layer. It grows and shrinks with the tokens",
)
UNIT_RATE = Quantity(
    title="Coding rate after attention, unit tokens",
    label="Rᶜ, nats",
    note="the same with every token at length one",
)
DENSITY_BY_LAYER = Quantity(
    title="Density after the MLP",
    label="(|z|₁/|z|₂)²/c",
    note="1/c for one-hot features, 1 for equal magnitudes",
)
NONZERO_BY_LAYER = Quantity(title="Non-zero entries after the MLP", label="share of entries")

MODEL = "this model"
Points = Mapping[Quantity, Mapping[str, float]]
"""A value for every line of every quantity; the first line is the model's."""


def rate_points(block: Block, elsewhere: Block | None) -> Points:
    """R^c of one input behind the block; beside it, before the block, and in as many random subspaces."""
    raw, unit = {MODEL: float(block.after.raw.sum())}, {MODEL: float(block.after.unit.sum())}
    if elsewhere is not None:
        heads = len(block.after.raw)
        raw["before attention, at this size"] = float(block.size_alone.sum())
        unit["before attention"] = float(block.before.unit.sum())
        raw["in random subspaces"] = heads * float(elsewhere.after.raw.mean())
        unit["in random subspaces"] = heads * float(elsewhere.after.unit.mean())
    return {RAW_RATE: raw, UNIT_RATE: unit}


def sparsity_points(tokens: Tokens, *, controls: bool) -> Points:
    """How sparse one input is behind the layer; beside it, before the MLP. Nothing where nothing follows."""
    if tokens.after is None:
        return {}
    dense, zeros = {MODEL: density(tokens.after)}, {MODEL: nonzero_fraction(tokens.after)}
    if controls:
        dense |= {
            "before the MLP": density(tokens.between),
            "Gaussian features": gaussian_density(tokens.between.shape[-1]),
        }
        zeros |= {"before the MLP": nonzero_fraction(tokens.between)}
    return {DENSITY_BY_LAYER: dense, NONZERO_BY_LAYER: zeros}


@dataclass(slots=True)
class CurveSums:
    """Means over inputs of named lines of quantities, layer by layer."""

    theory: str
    _sums: dict[Quantity, dict[str, dict[int, RunningMoments]]] = field(default_factory=dict)

    def add(self, layer: int, points: Points) -> None:
        """Count one input of a layer."""
        for quantity, lines in points.items():
            for name, value in lines.items():
                at = self._sums.setdefault(quantity, {}).setdefault(name, {})
                at.setdefault(layer, RunningMoments((1,))).add(np.array([value]))

    def curves(self) -> list[DepthCurve]:
        """A curve for every quantity seen, in the order in which they came."""
        return [self._curve(quantity, lines) for quantity, lines in self._sums.items()]

    def _curve(self, quantity: Quantity, lines: Mapping[str, Mapping[int, RunningMoments]]) -> DepthCurve:
        layers = sorted({layer for line in lines.values() for layer in line})
        return DepthCurve(
            theory=self.theory,
            title=quantity.title,
            quantity=quantity.label,
            layers=tuple(layers),
            lines=tuple(_line(name, [at[layer] for layer in layers]) for name, at in lines.items()),
            note=quantity.note,
        )


def _line(name: str, sums: list[RunningMoments]) -> DepthLine:
    ends = [moments.interval() for moments in sums]
    return DepthLine(
        name=name,
        values=tuple(float(moments.mean[0]) if moments.count[0] else float("nan") for moments in sums),
        intervals=tuple(Interval(float(low[0]), float(high[0])) for low, high in ends),
    )

"""Controls of kernel PCA: values, and keys, under which its claims should fail."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.heads import LinearMap
from clearhead.shapes import Float, Int
from clearhead.theories.example import Random
from clearhead.theories.theory import Control

RANDOM_VALUES = Control(name="random values")
RANDOM_MAP = Control(name="a random value map", fixed=True)
PERMUTED = Control(name="values of other tokens")
OTHER_HEADS = Control(name="values of other heads", fixed=True)
OTHER_KEYS = Control(name="keys of other heads", fixed=True)
LARGEST_CONDITION = 1e6
"""Largest condition number of a value map up to which its inverse is used, with errors of 1e-10."""
LEAST_DISTANCE = 1e-9
"""Smallest distance between control and prediction at which a share of it is defined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Largest number of draws of each control on every input.

    Random values and orders of tokens are drawn anew for every input and average out, so that few are enough.
    """

    random_values: int = 2
    random_map: int = 16
    permuted: int = 2
    other_heads: int = 16
    fewest_fixed: int = 3
    """A control with fixed draws needs at least this many for its range to mean anything."""
    fewest_keys: int = 5
    """Keys of other heads differ more than their values: with fewer, heads that follow the theory are not detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMaps:
    """Random value maps with the singular values of the model's own.

    The model's W = U C, U with orthonormal columns, becomes U' C with U' drawn uniformly: the same spectrum and the
    same output directions, reading random directions of the layer's input.

    bases: U'^T by draw, shared by the heads of the layer; mixes: C by head; bias: the model's own
    shifts: b C^-1 by head, where C has an inverse
    """

    bases: Float[Tensor, "t r c"]
    mixes: Float[Tensor, "h r e"]
    bias: Float[Tensor, "h e"] | None
    shifts: tuple[Float[Tensor, "r"] | None, ...]

    @classmethod
    def draw(cls, linear: LinearMap, *, draws: int, seed: int, layer: int) -> "RandomMaps":
        """Draw the maps. Seed and layer determine them, so they are the same on every input."""
        _, c, e = linear.weight.shape
        generator = Random(seed, layer, c, e).torch
        gaussian = torch.randn(draws, c, min(c, e), generator=generator, dtype=torch.float64).to(linear.weight.device)
        basis, triangular = torch.linalg.qr(gaussian)
        # Without the signs of R, LAPACK's Q is not uniform (Mezzadri 2007).
        basis = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        bias = None if linear.bias is None else linear.bias.double()
        mixes = torch.linalg.qr(linear.weight.double()).R
        return cls(bases=basis.mT.contiguous(), mixes=mixes, bias=bias, shifts=_shifts(mixes, bias))

    def at(self, x: Float[Tensor, "m c"], heads: slice) -> "MappedInput":
        """Return an input under the maps of these heads."""
        bias = None if self.bias is None else self.bias[heads]
        mapped = self.bases @ x.double().mT
        return MappedInput(mapped=mapped, mixes=self.mixes[heads], bias=bias, shifts=self.shifts[heads])


def _shifts(mixes: Float[Tensor, "h r e"], bias: Float[Tensor, "h e"] | None) -> tuple[Tensor | None, ...]:
    """Return b C^-1 of every head; None where C has no inverse to enough digits."""
    if mixes.shape[-2] != mixes.shape[-1]:
        return (None,) * len(mixes)
    size = torch.linalg.svdvals(mixes)
    b = torch.zeros_like(size) if bias is None else bias
    return tuple(
        torch.linalg.solve(mix.mT, of_head) if of_sizes[-1] * LARGEST_CONDITION > of_sizes[0] else None
        for mix, of_head, of_sizes in zip(mixes, b, size, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedInput:
    """One input under random value maps."""

    mapped: Float[Tensor, "t r m"]
    mixes: Float[Tensor, "h r e"]
    bias: Float[Tensor, "h e"] | None
    shifts: tuple[Float[Tensor, "r"] | None, ...]

    def of_head(self, head: int) -> Float[Tensor, "t e m"]:
        """Return the values of one head, with the model's own bias."""
        values = self.mixes[head].mT @ self.mapped
        return values if self.bias is None else values.add_(self.bias[head].unsqueeze(-1))

    def spanning(self, head: int) -> Float[Tensor, "t e m"]:
        """Return values with the span of the head's own, V C^-1 where C has an inverse: without a product."""
        shift = self.shifts[head]
        if shift is None:
            return self.of_head(head)
        return self.mapped if self.bias is None else self.mapped + shift.unsqueeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of the heads of one layer, and of the controls, which are made head by head to hold few at a time.

    Tokens are the last axis, along which the values are multiplied with kernels of the keys.

    normal, orders: draws of random values and of orders of tokens
    others: number of other heads whose values are a control; maps: the input under random value maps
    """

    v: Float[Tensor, "h e m"]
    normal: Float[Tensor, "t1 e m"]
    orders: Int[Tensor, "t2 m"]
    others: int
    maps: MappedInput | None

    @classmethod
    def draw(
        cls, v: Float[Tensor, "h m e"], draws: Draws, generator: torch.Generator, *, maps: MappedInput | None
    ) -> "Values":
        """Draw the controls that need only the head's own values; fixed ones with too few draws are left out."""
        h, m, e = v.shape
        normal = torch.randn(draws.random_values, m, e, generator=generator, dtype=torch.float64)
        orders = [torch.randperm(m, generator=generator) for _ in range(draws.permuted)]
        others = min(draws.other_heads, h - 1)
        return cls(
            v=v.mT.contiguous(),
            normal=normal.mT.to(v.device),
            orders=torch.stack(orders).to(v.device) if orders else torch.zeros(0, m, dtype=torch.long),
            others=others if others >= draws.fewest_fixed else 0,
            maps=maps,
        )

    @property
    def counts(self) -> dict[Control, int]:
        """Number of draws of every control that has some."""
        maps = 0 if self.maps is None else len(self.maps.mapped)
        counts = {RANDOM_VALUES: len(self.normal), PERMUTED: len(self.orders), OTHER_HEADS: self.others}
        return {control: count for control, count in {**counts, RANDOM_MAP: maps}.items() if count}

    def of_head(self, head: int) -> Float[Tensor, "t e m"]:
        """Return the values of one head, followed by those of its controls in the order of `counts`."""
        size = self.v[head].square().mean().sqrt()
        random = self.normal * torch.where(size > 0, size, 1)
        return self._joined(head, random, None if self.maps is None else self.maps.of_head(head))

    def spanning(self, head: int) -> Float[Tensor, "t e m"]:
        """Return values with the same spans as those of the head and its controls, which are faster to make."""
        return self._joined(head, self.normal, None if self.maps is None else self.maps.spanning(head))

    def _joined(self, head: int, random: Tensor, mapped: Tensor | None) -> Float[Tensor, "t e m"]:
        own = self.v[head]
        shuffled = own[:, self.orders].movedim(1, 0)
        last = head + 1 + self.others
        next_heads = (self.v[head + 1 : last], self.v[: max(last - len(self.v), 0)])  # cyclically, without a copy
        parts = [own[None], random, shuffled, *next_heads]
        return torch.cat(parts if mapped is None else [*parts, mapped])

    def by_control(self) -> dict[Control | None, Float[Tensor, "t h m e"]]:
        """Return the values of all heads, under None, and of every control."""
        stacked = torch.stack([self.of_head(head).mT for head in range(len(self.v))], dim=1)
        return dict(zip((None, *self.counts), torch.split(stacked, [1, *self.counts.values()]), strict=True))


def with_other_keys(of_others: Float[Tensor, "t h"], predicted: float) -> Float[Tensor, "t h"]:
    """Return a statistic of every head's values with the keys of other heads, on the scale of its own keys.

    of_others: of the values of the heads after each head, cyclically, so that no further statistic is computed

    Keys whose spectrum is flat give every value a higher number than others. So the number with other keys is expressed
    as a share of the way from the remaining heads' values to the prediction, both with these keys, and applied to the
    way from other heads' values to the prediction with the head's own keys. NaN where the way has no length.
    """
    known = of_others.isfinite()
    total, count = torch.where(known, of_others, 0).sum(dim=0), known.sum(dim=0)
    remaining = (total - of_others) / (count - 1)
    share = (of_others - remaining) / _distance(remaining, predicted)
    shifted = torch.stack([of_draw.roll(j, dims=0) for j, of_draw in enumerate(share, start=1)])
    level = total / count
    return level + _distance(level, predicted) * shifted


def _distance(level: Tensor, predicted: float) -> Tensor:
    distance = predicted - level
    return torch.where(distance.abs() > LEAST_DISTANCE, distance, torch.nan)

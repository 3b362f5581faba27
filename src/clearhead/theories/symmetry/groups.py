"""Rearrangements of a tensor's places: permutations, rotations, flips, transposition, translations.

An element moves entries and computes nothing, so it is exact in every dtype, and whatever error is found beside it is
the operator's own. Tokens are rows here; the slides write them as columns, (XP)_j = x_pi(j) (Ji and Xie, theorem 1).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from itertools import permutations as orders

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import ShapeError

__all__ = [
    "GRID",
    "TOKENS",
    "Element",
    "bounded_translations",
    "dihedral",
    "drawn_permutations",
    "flips",
    "permutations",
    "rotations",
    "translations",
    "transpositions",
]

TOKENS = (-2,)
"""The axis of the tokens in (..., tokens, features)."""
GRID = (-2, -1)
"""The axes of the pixels in (..., channels, height, width)."""

LARGEST_COMPLETE = 5
"""Up to so many places all n! permutations are taken: 120."""
NOTHING = -1
"""In an order: the place is filled with zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One rearrangement of the places along some axes; elements are equal where they do the same, whatever their name.

    Place i, counted over `axes` in row-major order, takes what stood at place `order[i]`, or zero for NOTHING. What an
    element pushed over the border its inverse does not bring back; all else is inverted exactly. The axes are
    neighbours, counted from the last.
    """

    name: str = field(compare=False)
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.axes != tuple(range(self.axes[0], self.axes[-1] + 1)) or self.axes[-1] >= 0:
            raise InputError(f"expected neighbouring axes counted from the last, such as (-2, -1); got {self.axes}")

    def __call__(self, x: Tensor) -> Tensor:
        """The tensor rearranged; its axes must have the element's sizes."""
        if x.ndim < -min(self.axes) or tuple(x.shape[axis] for axis in self.axes) != self.sizes:
            raise ShapeError(
                f"expected sizes {self.sizes} on the axes {self.axes} of {self.name}; got {tuple(x.shape)}"
            )
        places, axis = x.flatten(self.axes[0], self.axes[-1]), self.axes[-1]
        order = torch.tensor(self.order, device=x.device)
        moved = places.index_select(axis, order.clamp_min(0))
        if NOTHING in self.order:
            moved = moved.index_fill(axis, (order == NOTHING).nonzero().squeeze(-1), 0)
        return moved.reshape(x.shape)

    @property
    def inverse(self) -> "Element":
        """The element that brings everything back, but for what was lost at the border."""
        back = [NOTHING] * len(self.order)
        for place, source in enumerate(self.order):
            if source != NOTHING:
                back[source] = place
        return Element(name=f"inverse of {self.name}", order=tuple(back), sizes=self.sizes, axes=self.axes)

    def then(self, other: "Element") -> "Element":
        """This element first, the other after it."""
        order = tuple(NOTHING if place == NOTHING else self.order[place] for place in other.order)
        return Element(name=f"{self.name}, then {other.name}", order=order, sizes=self.sizes, axes=self.axes)

    @property
    def is_identity(self) -> bool:
        """Whether nothing moves."""
        return self.order == tuple(range(len(self.order)))


def permutations(*sizes: int, axes: tuple[int, ...] = TOKENS, draws: int = 24, seed: int = 0) -> tuple[Element, ...]:
    """All n! permutations of n <= 5 places, the identity first; of more, `draws` different ones drawn by seed."""
    places = math.prod(sizes)
    if places > LARGEST_COMPLETE:
        return drawn_permutations(*sizes, axes=axes, draws=draws, seed=seed)
    return tuple(_permutation(order, sizes, axes) for order in orders(range(places)))


def drawn_permutations(
    *sizes: int, axes: tuple[int, ...] = TOKENS, draws: int = 24, seed: int = 0
) -> tuple[Element, ...]:
    """`draws` different permutations, never the identity; as many as there are, if there are fewer."""
    places = math.prod(sizes)
    generator = torch.Generator().manual_seed(seed)

    def different() -> Iterator[tuple[int, ...]]:
        met = {tuple(range(places))}
        while len(met) < math.factorial(places):
            order = tuple(torch.randperm(places, generator=generator).tolist())
            if order not in met:
                met.add(order)
                yield order

    return tuple(_permutation(order, sizes, axes) for order in islice(different(), draws))


def _permutation(order: tuple[int, ...], sizes: tuple[int, ...], axes: tuple[int, ...]) -> Element:
    shown = " ".join(map(str, order[:7])) + (" ..." if len(order) > 7 else "")
    return Element(name=f"permutation ({shown})", order=order, sizes=sizes, axes=axes)


def rotations(side: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """The four rotations of a square grid by multiples of 90 degrees, counter-clockwise."""
    grid = _places(side, side)
    return tuple(_element(f"rotation by {90 * turns}", torch.rot90(grid, turns), axes) for turns in range(4))


def flips(height: int, width: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """The identity, the flips of a grid up-down and left-right, and both."""
    grid = _places(height, width)
    named = {"no flip": (), "flip up-down": (0,), "flip left-right": (1,), "both flips": (0, 1)}
    return tuple(_element(name, grid.flip(over), axes) for name, over in named.items())


def transpositions(side: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """The identity and the exchange of rows and columns of a square grid."""
    grid = _places(side, side)
    return _element("no transpose", grid, axes), _element("transpose", grid.T, axes)


def dihedral(side: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """The eight symmetries of the square, D4: its rotations, plain and after a transpose."""
    turned = rotations(side, axes=axes)
    mirror = transpositions(side, axes=axes)[1]
    return *turned, *(mirror.then(turn) for turn in turned)


def translations(*sizes: int, axes: tuple[int, ...] = GRID, step: int = 1) -> tuple[Element, ...]:
    """All cyclic shifts by multiples of `step`: what leaves at one border enters at the other."""
    grid, over = _places(*sizes), tuple(range(len(sizes)))
    shifts = product(*(range(0, size, step) for size in sizes))
    return tuple(_element(f"cyclic shift by {shift}", grid.roll(shift, over), axes) for shift in shifts)


def bounded_translations(*sizes: int, reach: int, axes: tuple[int, ...] = GRID) -> tuple[Element, ...]:
    """All shifts by at most `reach` on each axis; what leaves is lost and zeros enter.

    On tensors that vanish within `reach` of the border nothing is lost, and there these are translations of the plane.
    """
    over = tuple(range(len(sizes)))
    wide = torch.full([size + 2 * reach for size in sizes], NOTHING)
    wide[tuple(slice(reach, reach + size) for size in sizes)] = _places(*sizes)
    inside = tuple(slice(reach, reach + size) for size in sizes)
    shifts = product(range(-reach, reach + 1), repeat=len(sizes))
    return tuple(_element(f"shift by {shift}", wide.roll(shift, over)[inside], axes) for shift in shifts)


def _places(*sizes: int) -> Tensor:
    return torch.arange(math.prod(sizes)).reshape(sizes)


def _element(name: str, sources: Tensor, axes: tuple[int, ...]) -> Element:
    return Element(name=name, order=tuple(sources.flatten().tolist()), sizes=tuple(sources.shape), axes=axes)

"""Group elements that rearrange the entries of a tensor: permutations, rotations, flips, transposition, translations.

An element moves entries and computes nothing, so it is exact in every dtype, and any measured error is the operator's
own. Tokens are rows here; Ji and Xie write them as columns, (XP)_j = x_pi(j) (theorem 1).
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

TOKENS = (-2,)
"""The axis of the tokens in (..., tokens, features)."""
GRID = (-2, -1)
"""The axes of the pixels in (..., channels, height, width)."""

LARGEST_COMPLETE = 5
"""The largest n for which all n! permutations are used: 120 of them."""
EMPTY = -1
"""Entry of an order for a position that is filled with zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A rearrangement of the positions along some axes; elements with the same effect are equal, whatever their name.

    Position i, counted over `axes` in row-major order, gets the entry of position `order[i]`, or zero for EMPTY.
    Entries that are moved beyond the border are lost. The axes are consecutive and counted from the last.
    """

    name: str = field(compare=False)
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.axes != tuple(range(self.axes[0], self.axes[-1] + 1)) or self.axes[-1] >= 0:
            raise InputError(f"expected consecutive axes counted from the last, such as (-2, -1); got {self.axes}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rearranged tensor; its axes must have the element's sizes."""
        if x.ndim < -min(self.axes) or tuple(x.shape[axis] for axis in self.axes) != self.sizes:
            raise ShapeError(
                f"expected sizes {self.sizes} on the axes {self.axes} of {self.name}; got {tuple(x.shape)}"
            )
        flat, axis = x.flatten(self.axes[0], self.axes[-1]), self.axes[-1]
        order = torch.tensor(self.order, device=x.device)
        moved = flat.index_select(axis, order.clamp_min(0))
        if EMPTY in self.order:
            moved = moved.index_fill(axis, (order == EMPTY).nonzero().squeeze(-1), 0)
        return moved.reshape(x.shape)

    def then(self, other: "Element") -> "Element":
        """Return the element that applies this one first and the other second."""
        order = tuple(EMPTY if source == EMPTY else self.order[source] for source in other.order)
        return Element(name=f"{self.name}, then {other.name}", order=order, sizes=self.sizes, axes=self.axes)


def permutations(*sizes: int, axes: tuple[int, ...] = TOKENS, draws: int = 24, seed: int = 0) -> tuple[Element, ...]:
    """Return all n! permutations of n <= 5 positions, the identity first; for larger n, `draws` random ones."""
    n = math.prod(sizes)
    if n > LARGEST_COMPLETE:
        return random_permutations(*sizes, axes=axes, draws=draws, seed=seed)
    return tuple(_permutation(order, sizes, axes) for order in orders(range(n)))


def random_permutations(
    *sizes: int, axes: tuple[int, ...] = TOKENS, draws: int = 24, seed: int = 0
) -> tuple[Element, ...]:
    """Return `draws` different random permutations without the identity, or all of them if there are fewer."""
    n = math.prod(sizes)
    generator = torch.Generator().manual_seed(seed)

    def distinct_orders() -> Iterator[tuple[int, ...]]:
        earlier = {tuple(range(n))}
        while len(earlier) < math.factorial(n):
            order = tuple(torch.randperm(n, generator=generator).tolist())
            if order not in earlier:
                earlier.add(order)
                yield order

    return tuple(_permutation(order, sizes, axes) for order in islice(distinct_orders(), draws))


def _permutation(order: tuple[int, ...], sizes: tuple[int, ...], axes: tuple[int, ...]) -> Element:
    start = " ".join(map(str, order[:7])) + (" ..." if len(order) > 7 else "")
    return Element(name=f"permutation ({start})", order=order, sizes=sizes, axes=axes)


def rotations(side: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """Return the four rotations of a square grid by multiples of 90 degrees, counter-clockwise."""
    grid = _positions(side, side)
    return tuple(_element(f"rotation by {90 * turns}", torch.rot90(grid, turns), axes) for turns in range(4))


def flips(height: int, width: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """Return the identity, the flips of a grid up-down and left-right, and both."""
    grid = _positions(height, width)
    flipped_axes = {"no flip": (), "flip up-down": (0,), "flip left-right": (1,), "both flips": (0, 1)}
    return tuple(_element(name, grid.flip(flipped), axes) for name, flipped in flipped_axes.items())


def transpositions(side: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """Return the identity and the transposition of a square grid."""
    grid = _positions(side, side)
    return _element("no transpose", grid, axes), _element("transpose", grid.T, axes)


def dihedral(side: int, *, axes: tuple[int, int] = GRID) -> tuple[Element, ...]:
    """Return the eight symmetries of the square, D4: its rotations, alone and after a transposition."""
    rotated = rotations(side, axes=axes)
    transpose = transpositions(side, axes=axes)[1]
    return *rotated, *(transpose.then(rotation) for rotation in rotated)


def translations(*sizes: int, axes: tuple[int, ...] = GRID, step: int = 1) -> tuple[Element, ...]:
    """Return all cyclic shifts by multiples of `step`."""
    grid, dims = _positions(*sizes), tuple(range(len(sizes)))
    shifts = product(*(range(0, size, step) for size in sizes))
    return tuple(_element(f"cyclic shift by {shift}", grid.roll(shift, dims), axes) for shift in shifts)


def bounded_translations(*sizes: int, reach: int, axes: tuple[int, ...] = GRID) -> tuple[Element, ...]:
    """Return all shifts by at most `reach` on each axis; entries beyond the border are lost and zeros enter.

    Tensors that are zero within `reach` of the border lose nothing: for them these are translations of the plane.
    """
    dims = tuple(range(len(sizes)))
    inside = tuple(slice(reach, reach + size) for size in sizes)
    padded = torch.full([size + 2 * reach for size in sizes], EMPTY)
    padded[inside] = _positions(*sizes)
    shifts = product(range(-reach, reach + 1), repeat=len(sizes))
    return tuple(_element(f"shift by {shift}", padded.roll(shift, dims)[inside], axes) for shift in shifts)


def _positions(*sizes: int) -> Tensor:
    return torch.arange(math.prod(sizes)).reshape(sizes)


def _element(name: str, sources: Tensor, axes: tuple[int, ...]) -> Element:
    return Element(name=name, order=tuple(sources.flatten().tolist()), sizes=tuple(sources.shape), axes=axes)

r"""The change of the coding rate in every head's subspace at one block, for one input and for its controls.

The projection of a token scaled to length one is the token's projection divided by its length, so all variants are
scalings of the same projection.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate
from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead.theories.coding_rate.claims import (
    COMPRESSION,
    HEAD_CLAIMS,
    NOTHING_ADDED,
    OTHER_TOKENS,
    RANDOM_SUBSPACE,
    RAW,
    SAME_RATE,
    SCALE_MATCHED,
    SIZE_ALONE,
    UNIT_NORM,
)
from clearhead.theories.coding_rate.subspaces import random_bases, rate_preserving_bases
from clearhead.theories.coding_rate.tokens import Tokens
from clearhead.theories.theory import Claim, Control, Sample

__all__ = ["Block", "Draws", "Rates", "relative_changes"]

SMALLEST = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Number of draws of each control: for every input, and of maps once."""

    other_tokens: int = 2
    same_rate: int = 2
    random_subspace: int = 3
    random_map: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Coding rates in subspaces: of tokens as they are, at length one, and at the size of tokens before the block."""

    raw: Float[Tensor, "k"]
    unit: Float[Tensor, "k"]
    matched: Float[Tensor, "k"]


def relative_changes(before: Rates, after: Rates) -> dict[Claim, Array]:
    """Return (R+ - R) / R for each claim; NaN where R is zero. The primary is the less compressing of two."""
    unit, matched = _relative(before.unit, after.unit), _relative(before.raw, after.matched)
    return {
        COMPRESSION: np.maximum(unit, matched),
        UNIT_NORM: unit,
        SCALE_MATCHED: matched,
        RAW: _relative(before.raw, after.raw),
    }


def _relative(before: Tensor, after: Tensor) -> Array:
    change: Array = torch.where(before > 0, (after - before) / before.clamp_min(SMALLEST), torch.nan).numpy()
    return change


class Block:
    """Tokens Z before a block and Z+ after it, and their rates in subspaces U_h, whose bases are used as given."""

    def __init__(self, tokens: Tokens, bases: Float[Tensor, "k c p"], *, eps: float) -> None:
        self._tokens, self._bases, self._eps = tokens, bases, eps
        self.before = self.rates(tokens.before)
        self.after = self.rates(tokens.between)

    @cached_property
    def size_alone(self) -> Float[Tensor, "k"]:
        """The raw rates of Z scaled to the size of Z+."""
        factor = _size(self._tokens.between) / max(_size(self._tokens.before), SMALLEST)
        return coding_rate(factor * (self._tokens.before @ self._bases), eps=self._eps)

    def rates(self, tokens: Float[Tensor, "n c"]) -> Rates:
        """Return the rates of any tokens in these subspaces; "matched" is at the size of Z."""
        lengths = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_min(SMALLEST)
        factor = _size(self._tokens.before) / max(_size(tokens), SMALLEST)
        projected = tokens @ self._bases
        raw, unit, matched = coding_rate(
            torch.stack([projected, projected / lengths, projected * factor]), eps=self._eps
        )
        return Rates(raw=raw, unit=unit, matched=matched)

    def in_random_subspaces(self, draws: int, generator: torch.Generator) -> "Block":
        """Return the same tokens in random subspaces of the same width, one for each draw."""
        _, c, p = self._bases.shape
        return Block(self._tokens, random_bases(draws, c=c, p=p, generator=generator), eps=self._eps)

    def in_other_subspaces(self, draws: int, generator: torch.Generator) -> "list[Block]":
        """Return the same tokens in other subspaces of the same rate before the block, one per head and draw."""
        bases = rate_preserving_bases(self._bases, self._tokens.before, draws=draws, generator=generator)
        return [Block(self._tokens, of_draw, eps=self._eps) for of_draw in bases]

    def samples(self, draws: Draws | None, generator: torch.Generator, random: "Block | None") -> dict[Claim, Sample]:
        """Return every claim on heads, with controls if there are draws; `random` holds the random subspaces."""
        values = relative_changes(self.before, self.after)
        controls: dict[Claim, dict[Control, Array]] = {claim: {} for claim in HEAD_CLAIMS}
        if draws is not None and random is not None:
            exchanged = [relative_changes(self.before, r) for r in self._exchanged(draws.other_tokens, generator)]
            same_rate = [
                relative_changes(b.before, b.after) for b in self.in_other_subspaces(draws.same_rate, generator)
            ]
            in_random = relative_changes(random.before, random.after)
            k = len(self._bases)
            nothing, size = np.zeros((1, k)), _relative(self.before.raw, self.size_alone)[np.newaxis]
            for claim in HEAD_CLAIMS:
                controls[claim] = {
                    **({NOTHING_ADDED: nothing, SIZE_ALONE: size} if claim is RAW else {SIZE_ALONE: nothing}),
                    OTHER_TOKENS: np.stack([changes[claim] for changes in exchanged]),
                    SAME_RATE: np.stack([changes[claim] for changes in same_rate]),
                    # A random subspace belongs to no head, so the same draws serve all heads.
                    RANDOM_SUBSPACE: np.repeat(in_random[claim][:, np.newaxis], k, axis=1),
                }
        return {claim: Sample(value=values[claim], controls=controls[claim]) for claim in HEAD_CLAIMS}

    def _exchanged(self, draws: int, generator: torch.Generator) -> Iterator[Rates]:
        """Yield rates of Z with additions of other tokens: in a random cycle, every token gets that of the next."""
        z = self._tokens
        for _ in range(draws):
            cycle = torch.randperm(len(z.before), generator=generator)
            source = torch.empty_like(cycle)
            source[cycle] = cycle.roll(-1)
            yield self.rates(z.before + (z.between - z.before)[source])


def _size(tokens: Tensor) -> float:
    return float(torch.linalg.vector_norm(tokens))

r"""The change of the coding rate in every head's subspace at one block, for one input and for its controls.

The projection of a token scaled to length one is the token's projection divided by its length, so all variants are
scalings of the same projection. Additions of other tokens are sums of projections that are known already.

Tokens are projected in the precision that the model gave them, single at least: the rounding of a product moves a rate
no more than the rounding of the tokens themselves. The rates of the model, and of controls that are compared with it
to the last digit, have products and determinants in double precision. In reflected subspaces they are in the precision
of the projections, where their error is shown to be below 2^-16 of the rate (`log_det`); elsewhere in double.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.logdet import log_det, log_det_of_gram
from clearhead.numerics.moments import Array
from clearhead.shapes import Float, Int
from clearhead.theories.coding_rate.claims import COMPRESSION, RAW, SCALE_MATCHED, UNIT_NORM
from clearhead.theories.coding_rate.subspaces import Reflections
from clearhead.theories.theory import Claim

__all__ = [
    "Bases",
    "Block",
    "Projected",
    "Rates",
    "draw_sources",
    "exchanged_additions",
    "relative_change",
    "relative_changes",
]

SMALLEST = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """Bases of k subspaces side by side, in the precision of the projections."""

    flat: Float[Tensor, "c kp"]
    k: int

    @classmethod
    def of(cls, bases: Float[Tensor, "k c p"], dtype: torch.dtype) -> "Bases":
        """Return bases for tokens of a dtype; the projections are in it, in single precision at least."""
        flat = bases.movedim(0, 1).flatten(1).to(torch.promote_types(dtype, torch.float32))
        return cls(flat=flat, k=len(bases))

    @property
    def width(self) -> int:
        """The dimension p of each subspace."""
        return self.flat.shape[1] // self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """Sets of tokens in subspaces, in coordinates of their bases, and the lengths of the tokens themselves."""

    coordinates: Float[Tensor, "*s k n p"]
    lengths: Float[Tensor, "*#s n"]

    @property
    def size(self) -> Float[Tensor, "*#s"]:
        """Frobenius norm of the tokens."""
        norm: Tensor = torch.linalg.vector_norm(self.lengths, dim=-1)
        return norm

    def of(self, index: int) -> "Projected":
        """Return one of several sets of tokens."""
        return Projected(coordinates=self.coordinates[index], lengths=self.lengths[index])

    def gram(self) -> Float[Tensor, "*s k p p"]:
        """Return the products of the coordinates."""
        return _gram(self.coordinates)

    def gram_at_length_one(self) -> Float[Tensor, "*s k p p"]:
        """Return the products of the coordinates of tokens scaled to length one."""
        return _gram(_at_length_one(self.coordinates, self.lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Coding rates in subspaces: of tokens at length one, at the size of tokens before the block, and as they are."""

    unit: Float[Tensor, "*s k"]
    matched: Float[Tensor, "*s k"]
    raw: Float[Tensor, "*s k"] | None


def relative_changes(before: Rates, after: Rates) -> dict[Claim, Array]:
    """Return (R+ - R) / R for each claim; NaN where R is zero. The primary is the less compressing of two."""
    unit, matched = relative_change(before.unit, after.unit), relative_change(before.matched, after.matched)
    changes = {COMPRESSION: np.maximum(unit, matched), UNIT_NORM: unit, SCALE_MATCHED: matched}
    if after.raw is not None:
        changes[RAW] = relative_change(before.matched, after.raw)
    return changes


def relative_change(before: Float[Tensor, "*#s k"], after: Float[Tensor, "*s k"]) -> Array:
    """Return (R+ - R) / R; NaN where R is zero."""
    change: Array = torch.where(before > 0, (after - before) / before.clamp_min(SMALLEST), torch.nan).numpy()
    return change


class Block:
    """Tokens Z before a block and their rates in subspaces U_h, whose bases are used as given."""

    def __init__(self, tokens: Float[Tensor, "n c"], bases: Bases, *, eps: float) -> None:
        self._bases = bases
        self._tokens = tokens
        self._a = bases.width / (len(tokens) * eps**2)
        self._projected = self.project(tokens)
        self._gram = self._projected.gram()
        unit, raw = self._rate(torch.stack([self._projected.gram_at_length_one(), self._gram]))
        self.before = Rates(unit=unit, matched=raw, raw=raw)

    def project(self, tokens: Float[Tensor, "*s n c"]) -> Projected:
        """Return tokens in these subspaces."""
        flat = self._bases.flat
        projected = (tokens.to(flat.dtype) @ flat).reshape(*tokens.shape[:-1], self._bases.k, -1).movedim(-2, -3)
        return Projected(coordinates=projected.double(), lengths=_lengths(tokens.double()))

    def exchange_additions(
        self, after: Projected, sources: Int[Tensor, "t n"], exchanged: Float[Tensor, "t n c"]
    ) -> Projected:
        """Return `exchanged_additions` in these subspaces, from Z and Z+ in them."""
        before = self._projected.coordinates
        additions = (after.coordinates - before)[:, sources].movedim(1, 0)
        return Projected(coordinates=before + additions, lengths=_lengths(exchanged))

    def rates(self, after: Projected) -> Rates:
        """Return the rates of tokens at length one, at the size of Z, and as they are."""
        gram = after.gram()
        ratio = (self._projected.size / after.size.clamp_min(SMALLEST)).square()[..., None, None, None]
        unit, matched, raw = self._rate(torch.stack([after.gram_at_length_one(), gram * ratio, gram]))
        return Rates(unit=unit, matched=matched, raw=raw)

    def rate_at_size(self, size: Float[Tensor, ""]) -> Float[Tensor, "k"]:
        """Return the rates of Z scaled to a Frobenius norm."""
        return self._rate(self._gram * (size / self._projected.size.clamp_min(SMALLEST)).square())

    def changes_in_reflected(
        self, tokens: Float[Tensor, "n c"], reflections: Reflections, *, raw: bool
    ) -> dict[Claim, Array]:
        """Return the relative changes from Z to these tokens in the subspaces S U_h, by draw and head.

        Z has the same raw rate there as in U_h.
        """
        flat, k = self._bases.flat, self._bases.k
        before, after = (reflections.project(z.to(flat.dtype), flat, k) for z in (self._tokens, tokens))
        lengths, size = _lengths(tokens), self._projected.size
        ratio = float((size / torch.linalg.vector_norm(lengths).clamp_min(SMALLEST)).square())
        same = self.before.matched.expand(len(reflections.signs), -1)
        of_before = Rates(unit=self._rate_of(_at_length_one(before, self._projected.lengths)), matched=same, raw=same)
        of_after = Rates(
            unit=self._rate_of(_at_length_one(after, lengths)),
            matched=self._rate_of(after, ratio),
            raw=self._rate_of(after) if raw else None,
        )
        return relative_changes(of_before, of_after)

    def _rate_of(self, coordinates: Float[Tensor, "k t n p"], factor: float = 1.0) -> Float[Tensor, "t k"]:
        return log_det(coordinates, a=self._a * factor).double().mT / 2

    def _rate(self, gram: Float[Tensor, "*s k p p"]) -> Float[Tensor, "*s k"]:
        return log_det_of_gram(gram, a=self._a) / 2


def join(parts: Sequence[Projected]) -> Projected:
    """Return several sets of tokens as one."""
    coordinates, lengths = ([getattr(part, name) for part in parts] for name in ("coordinates", "lengths"))
    return Projected(coordinates=torch.cat(coordinates), lengths=torch.cat(lengths))


def _lengths(tokens: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s n"]:
    lengths: Tensor = torch.linalg.vector_norm(tokens, dim=-1)
    return lengths


def _at_length_one(
    coordinates: Float[Tensor, "*s k n p"], lengths: Float[Tensor, "*#s n"]
) -> Float[Tensor, "*s k n p"]:
    """Return the coordinates of tokens scaled to length one; zero tokens stay zero."""
    inverse = torch.where(lengths > 0, 1 / lengths.clamp_min(SMALLEST), 0)
    return coordinates * inverse[..., None, :, None].to(coordinates.dtype)


def _gram(coordinates: Float[Tensor, "*s n p"]) -> Float[Tensor, "*s p p"]:
    coordinates = coordinates.contiguous()
    return coordinates.mT @ coordinates


def draw_sources(count: int, *, draws: int, generator: torch.Generator) -> Int[Tensor, "t n"]:
    """Return for every token the token whose addition it gets: that of the next in a random cycle."""
    sources = torch.empty(draws, count, dtype=torch.long)
    for source in sources:
        cycle = torch.randperm(count, generator=generator)
        source[cycle] = cycle.roll(-1)
    return sources


def exchanged_additions(
    before: Float[Tensor, "n c"], total: Float[Tensor, "n c"], sources: Int[Tensor, "t n"]
) -> Float[Tensor, "t n c"]:
    """Return Z with additions of other tokens."""
    return before + (total - before)[sources]

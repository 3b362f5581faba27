r"""The change of the coding rate in every head's subspace at one block, for one input and for its controls.

The projection of a token scaled to length one is the token's projection divided by its length, so all variants are
scalings of the same projection. Additions of other tokens are sums of projections that are known already.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.logdet import log_det_of_gram
from clearhead.numerics.moments import Array
from clearhead.shapes import Float, Int
from clearhead.theories.coding_rate.claims import COMPRESSION, RAW, SCALE_MATCHED, UNIT_NORM
from clearhead.theories.coding_rate.subspaces import Reflections
from clearhead.theories.theory import Claim

__all__ = ["Block", "Projected", "Rates", "draw_sources", "exchanged_additions", "relative_change", "relative_changes"]

SMALLEST = torch.finfo(torch.float64).tiny


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
        """Return the products of the coordinates of tokens scaled to length one; zero tokens stay zero."""
        inverse = torch.where(self.lengths > 0, 1 / self.lengths.clamp_min(SMALLEST), 0)
        return _gram(self.coordinates * inverse[..., None, :, None])


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
    """Tokens Z before a block and their rates in subspaces U_h, whose bases are used as given.

    Tokens are projected in `dtype`, the precision that the model gave them: the rounding of a product moves a rate no
    more than the rounding of the tokens themselves. Products of coordinates and determinants are in double precision.
    """

    def __init__(
        self, tokens: Float[Tensor, "n c"], bases: Float[Tensor, "k c p"], *, eps: float, dtype: torch.dtype
    ) -> None:
        self._k = len(bases)
        self._dtype = torch.promote_types(dtype, torch.float32)
        self._tokens = tokens.to(self._dtype)
        self._flat = bases.movedim(0, 1).flatten(1).to(self._dtype)
        self._a = bases.shape[-1] / (len(tokens) * eps**2)
        self._projected = self.project(tokens)
        self._gram = self._projected.gram()
        raw = self._rate(self._gram)
        self.before = Rates(unit=self._rate(self._projected.gram_at_length_one()), matched=raw, raw=raw)

    def project(self, tokens: Float[Tensor, "*s n c"]) -> Projected:
        """Return tokens in these subspaces."""
        return self._by_head(tokens.to(self._dtype) @ self._flat, tokens)

    def exchange_additions(
        self, after: Projected, sources: Int[Tensor, "t n"], exchanged: Float[Tensor, "t n c"]
    ) -> Projected:
        """Return `exchanged_additions` in these subspaces, from Z and Z+ in them."""
        before = self._projected.coordinates
        additions = (after.coordinates - before)[:, sources].movedim(1, 0)
        return Projected(coordinates=before + additions, lengths=_lengths(exchanged))

    def rates(self, after: Projected, *, raw: bool) -> Rates:
        """Return the rates of tokens at length one and at the size of Z, and if `raw` of the tokens as they are."""
        gram = after.gram()
        ratio = self._projected.size / after.size.clamp_min(SMALLEST)
        return Rates(
            unit=self._rate(after.gram_at_length_one()),
            matched=self._rate(gram * ratio.square()[..., None, None, None]),
            raw=self._rate(gram) if raw else None,
        )

    def rate(self, after: Projected) -> Float[Tensor, "*s k"]:
        """Return the rates of tokens as they are."""
        return self._rate(after.gram())

    def rate_at_size(self, size: Float[Tensor, ""]) -> Float[Tensor, "k"]:
        """Return the rates of Z scaled to a Frobenius norm."""
        return self._rate(self._gram * (size / self._projected.size.clamp_min(SMALLEST)).square())

    def changes_in_reflected(
        self, tokens: Float[Tensor, "n c"], reflections: Reflections, *, raw: bool
    ) -> dict[Claim, Array]:
        """Return the relative changes from Z to these tokens in the subspaces S U_h, by draw and head.

        Z has the same raw rate there as in U_h.
        """
        before, after = (
            self._by_head(reflections.project(z.to(self._dtype), self._flat), z[None]) for z in (self._tokens, tokens)
        )
        unit = self._rate(before.gram_at_length_one())
        same = self.before.matched.expand_as(unit)
        return relative_changes(Rates(unit=unit, matched=same, raw=same), self.rates(after, raw=raw))

    def _rate(self, gram: Float[Tensor, "*s k p p"]) -> Float[Tensor, "*s k"]:
        return log_det_of_gram(gram, a=self._a) / 2

    def _by_head(self, projected: Float[Tensor, "*s n kp"], tokens: Float[Tensor, "*#s n c"]) -> Projected:
        coordinates = projected.reshape(*projected.shape[:-1], self._k, -1).movedim(-2, -3)
        return Projected(coordinates=coordinates.double(), lengths=_lengths(tokens.double()))


def join(parts: Sequence[Projected]) -> Projected:
    """Return several sets of tokens as one."""
    coordinates, lengths = ([getattr(part, name) for part in parts] for name in ("coordinates", "lengths"))
    return Projected(coordinates=torch.cat(coordinates), lengths=torch.cat(lengths))


def _lengths(tokens: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s n"]:
    lengths: Tensor = torch.linalg.vector_norm(tokens, dim=-1)
    return lengths


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

r"""Coding rates in every head's subspace at one block, for one input and for its controls.

The projection of a token scaled to length one is the token's projection divided by its length, so all variants are
scalings of the same projection. Additions of other tokens are sums of projections that are known already.

Tokens are projected in the precision that the model gave them, single at least: the rounding of a product moves a rate
no more than the rounding of the tokens themselves. The rates of the model, and of controls that are compared with it
to the last digit, have products and determinants in double precision. In reflected subspaces they are in the precision
of the projections, where their error is shown to be below 2^-16 of the rate (`log_det`); elsewhere in double.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.logdet import log_det_by_gram, log_det_of_gram
from clearhead.numerics.moments import Array
from clearhead.shapes import Float, Int
from clearhead.theories.coding_rate.claims import COMPRESSION, RAW, SCALE_MATCHED, UNIT_NORM
from clearhead.theories.coding_rate.subspaces import Reflections
from clearhead.theories.theory import Claim

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
class TokenSets:
    """Sets of tokens of one input, first Z before the block, then Z+, and the lengths of the tokens.

    sources: further sets are Z with the additions Z+ - Z of other tokens, of these; see `draw_sources`
    exchanged: the lengths of the tokens of these sets
    """

    tokens: Float[Tensor, "s n c"]
    lengths: Float[Tensor, "s n"]
    sources: Int[Tensor, "t n"] | None = None
    exchanged: Float[Tensor, "t n"] | None = None

    @classmethod
    def of(cls, tokens: Float[Tensor, "s n c"], sources: Int[Tensor, "t n"] | None = None) -> "TokenSets":
        """Measure the tokens' lengths."""
        exchanged = None if sources is None else _lengths(exchanged_additions(tokens[0], tokens[1], sources))
        return cls(tokens=tokens, lengths=_lengths(tokens), sources=sources, exchanged=exchanged)

    @property
    def zeros(self) -> int:
        """Number of tokens of Z and Z+ that are zero, which cannot be scaled to length one."""
        return int((self.lengths[:2] == 0).sum())

    def only(self, *indices: int) -> "TokenSets":
        """Return some of the sets, without exchanged additions."""
        return TokenSets(tokens=self.tokens[list(indices)], lengths=self.lengths[list(indices)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Coding rates in subspaces: of tokens at length one, at the size of Z, and as they are. The first set is Z.

    raw: may be of the first sets alone; at_size: of Z at the size of Z+
    """

    unit: Float[Tensor, "s k"]
    matched: Float[Tensor, "s k"]
    raw: Float[Tensor, "r k"]
    at_size: Float[Tensor, "k"]


def relative_changes(rates: Rates) -> dict[Claim, Array]:
    """Return (R+ - R) / R from Z to every other set, for each claim; NaN where R is zero."""
    unit, matched, raw = (relative_change(x[0], x[1:]) for x in (rates.unit, rates.matched, rates.raw))
    return _by_claim(unit, matched) | {RAW: raw}


def relative_change(before: Float[Tensor, "*#s k"], after: Float[Tensor, "*s k"]) -> Array:
    """Return (R+ - R) / R; NaN where R is zero."""
    change: Array = torch.where(before > 0, (after - before) / before.clamp_min(SMALLEST), torch.nan).numpy()
    return change


def _by_claim(unit: Array, matched: Array) -> dict[Claim, Array]:
    """Return the changes by claim. The primary is the less compressing of two."""
    return {COMPRESSION: np.maximum(unit, matched), UNIT_NORM: unit, SCALE_MATCHED: matched}


class Block:
    """Sets of tokens in subspaces U_h, whose bases are used as given."""

    def __init__(self, sets: TokenSets, bases: Bases, *, eps: float) -> None:
        self._sets, self._bases = sets, bases
        self._a = bases.width / (sets.tokens.shape[1] * eps**2)
        self._projected = sets.tokens.to(bases.flat.dtype) @ bases.flat

    def rates(self, *, raw: int | None = None) -> Rates:
        """Return the rates of all sets; those of tokens as they are of the first `raw` sets, by default of all."""
        coordinates, lengths = self._with_exchanged()
        sizes = _size(lengths)
        count, raw = len(sizes), len(sizes) if raw is None else raw
        factors = torch.ones(2 * count + raw, dtype=torch.float64)
        factors[count : 2 * count] = (sizes[0] * _inverse(sizes)).square()
        factors[2 * count] = (sizes[1] * _inverse(sizes[0])).square()
        gram, at_length_one = self._gram(coordinates), self._gram(coordinates * _inverse(lengths).unsqueeze(-1))
        rates = log_det_of_gram(torch.cat([at_length_one, gram, gram[:raw]]), a=self._a * factors[:, None]) / 2
        unit, matched, others = rates[:count], rates[count : 2 * count], rates[2 * count :]
        return Rates(unit=unit, matched=matched, raw=torch.cat([matched[:1], others[1:]]), at_size=others[0])

    def _with_exchanged(self) -> tuple[Float[Tensor, "s n kp"], Float[Tensor, "s n"]]:
        """Return the coordinates and lengths of all sets, from Z and Z+ where additions are exchanged."""
        coordinates, sets = self._projected.double(), self._sets
        if sets.sources is None or sets.exchanged is None:
            return coordinates, sets.lengths
        before, after = coordinates[:2]
        exchanged = before + (after - before)[sets.sources]
        return torch.cat([coordinates, exchanged]), torch.cat([sets.lengths, sets.exchanged])

    def changes_in_reflected(
        self, same: Float[Tensor, "k"], reflections: Reflections, *, raw: bool
    ) -> dict[Claim, Array]:
        """Return the relative changes from Z to Z+ in the subspaces S U_h, by draw and head.

        same: the raw rate of Z in U_h, which it has in S U_h too
        """
        sizes = _size(self._sets.lengths[:2])
        ratio = float((sizes[0] * _inverse(sizes[1])).square())
        *unit, after = self._reflected(reflections)
        factors, sets = [1.0, 1.0, ratio, *[1.0] * raw], [*unit, after, *[after] * raw]
        grams = [self._gram(x) for x in (*unit, after)]
        rates = log_det_by_gram(
            torch.stack([*grams, *grams[-1:] * raw]),
            lambda: torch.stack([self._by_head(x) for x in sets]),
            a=self._a * torch.tensor(factors, dtype=torch.float64)[:, None, None],
        )
        of_before, of_after, matched, *as_they_are = rates.double() / 2
        changes = _by_claim(relative_change(of_before, of_after), relative_change(same, matched))
        return changes | ({RAW: relative_change(same, as_they_are[0])} if raw else {})

    def _reflected(self, reflections: Reflections) -> tuple[Tensor, Tensor, Tensor]:
        """Return the coordinates (t, n, kp) in reflected subspaces of Z and Z+ at length one, and of Z+ as it is."""
        inverse, n = _inverse(self._sets.lengths[:2]).to(self._projected.dtype).unsqueeze(-1), len(self._projected[0])
        scale = torch.cat([inverse[0], torch.ones_like(inverse[1])])
        tokens, projected = (x[:2].flatten(0, 1).to(scale.dtype) * scale for x in (self._sets.tokens, self._projected))
        reflected = reflections.project(tokens, projected, self._bases.flat)
        return reflected[:, :n], reflected[:, n:] * inverse[1], reflected[:, n:]

    def _by_head(self, coordinates: Float[Tensor, "s n kp"]) -> Float[Tensor, "s k n p"]:
        by_head = coordinates.reshape(*coordinates.shape[:-1], self._bases.k, self._bases.width)
        return by_head.movedim(-2, -3)

    def _gram(self, coordinates: Float[Tensor, "s n kp"]) -> Float[Tensor, "s k p p"]:
        """Return the products of the coordinates in each subspace."""
        x = self._by_head(coordinates).numpy()
        # numpy computes one half of a symmetric product, of matrices side by side too; torch would copy them.
        return torch.from_numpy(np.matmul(x.swapaxes(-1, -2), x))


def _lengths(tokens: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s n"]:
    lengths: Tensor = torch.linalg.vector_norm(tokens, dim=-1)
    return lengths


def _size(lengths: Float[Tensor, "*s n"]) -> Float[Tensor, "*s"]:
    """Return the Frobenius norm of tokens of these lengths."""
    size: Tensor = torch.linalg.vector_norm(lengths, dim=-1)
    return size


def _inverse(lengths: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Return the factor that scales a token, or tokens, of each length to length one; zero for zero tokens."""
    return torch.where(lengths > 0, 1 / lengths.clamp_min(SMALLEST), 0)


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

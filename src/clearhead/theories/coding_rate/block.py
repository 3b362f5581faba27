r"""The change of the coding rate in every head's subspace at one block, for one input and for its controls.

The projection of a token scaled to length one is the token's projection divided by its length, so all variants are
scalings of the same projection.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.logdet import log_det_of_gram
from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead.theories.coding_rate.claims import COMPRESSION, RAW, SCALE_MATCHED, UNIT_NORM
from clearhead.theories.coding_rate.subspaces import Reflections
from clearhead.theories.theory import Claim

__all__ = ["Block", "Rates", "exchanged_additions", "relative_changes", "resized"]

SMALLEST = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Coding rates in subspaces: of tokens as they are, at length one, and at the size of tokens before the block."""

    raw: Float[Tensor, "*s k"]
    unit: Float[Tensor, "*s k"]
    matched: Float[Tensor, "*s k"]

    def of(self, index: int) -> "Rates":
        """Return the rates of one of several sets of tokens."""
        return Rates(raw=self.raw[index], unit=self.unit[index], matched=self.matched[index])


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
    """Tokens Z before a block and their rates in subspaces U_h, whose bases are used as given."""

    def __init__(self, tokens: Float[Tensor, "n c"], bases: Float[Tensor, "k c p"], *, eps: float) -> None:
        self._tokens, self._k = tokens, len(bases)
        self._flat = bases.movedim(0, 1).flatten(1)
        self._a = bases.shape[-1] / (len(tokens) * eps**2)
        self.before = self.rates(tokens)

    def rates(self, tokens: Float[Tensor, "*s n c"]) -> Rates:
        """Return the rates of any tokens in these subspaces; "matched" is at the size of Z."""
        return self._rates(tokens, self._by_head(tokens @ self._flat))

    def changes_in_reflected(self, tokens: Float[Tensor, "n c"], reflections: Reflections) -> dict[Claim, Array]:
        """Return the relative changes from Z to these tokens in the subspaces S U_h, by draw and head.

        Z has the same raw rate there as in U_h.
        """
        before, after = (self._by_head(reflections.project(z, self._flat)) for z in (self._tokens, tokens))
        raw = self.before.raw.expand(before.shape[:-2])
        unit = self._log_det(_gram(before / _lengths(self._tokens)))
        return relative_changes(Rates(raw=raw, unit=unit, matched=raw), self._rates(tokens, after))

    def _rates(self, tokens: Float[Tensor, "*s n c"], projected: Float[Tensor, "*t k n p"]) -> Rates:
        factor = size(self._tokens) / size(tokens).clamp_min(SMALLEST)
        gram, unit = _gram(projected), _gram(projected / _lengths(tokens))
        matched = self._log_det(gram * factor.square()[..., None, None, None])
        return Rates(raw=self._log_det(gram), unit=self._log_det(unit), matched=matched)

    def _log_det(self, gram: Float[Tensor, "*s k p p"]) -> Float[Tensor, "*s k"]:
        return log_det_of_gram(gram, a=self._a) / 2

    def _by_head(self, projected: Float[Tensor, "*s n kp"]) -> Float[Tensor, "*s k n p"]:
        return projected.reshape(*projected.shape[:-1], self._k, -1).movedim(-2, -3)


def _lengths(tokens: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s 1 n 1"]:
    lengths: Tensor = torch.linalg.vector_norm(tokens, dim=-1).clamp_min(SMALLEST)[..., None, :, None]
    return lengths


def _gram(projected: Float[Tensor, "*s n p"]) -> Float[Tensor, "*s p p"]:
    projected = projected.contiguous()
    return projected.mT @ projected


def exchanged_additions(
    before: Float[Tensor, "n c"], total: Float[Tensor, "n c"], *, draws: int, generator: torch.Generator
) -> Float[Tensor, "t n c"]:
    """Return Z with additions of other tokens: in a random cycle, every token gets that of the next."""
    exchanged = []
    for _ in range(draws):
        cycle = torch.randperm(len(before), generator=generator)
        source = torch.empty_like(cycle)
        source[cycle] = cycle.roll(-1)
        exchanged.append(before + (total - before)[source])
    return torch.stack(exchanged)


def resized(before: Float[Tensor, "n c"], total: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return Z scaled to the size of Z+."""
    return before * (size(total) / size(before).clamp_min(SMALLEST))


def size(tokens: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s"]:
    """Return the Frobenius norm."""
    norm: Tensor = torch.linalg.vector_norm(tokens, dim=(-2, -1))
    return norm

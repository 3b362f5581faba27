r"""The bound beyond which entries of keys count as outliers: lambda and mu of RPC-Attention (Teo and Nguyen 2024).

Principal component pursuit takes mu = N D / (4 |K|_1), one over four times the mean size of an entry, and the bound
lambda / mu. The authors' released code multiplies, lambda mu, and counts the width of all heads in mu while it sums one
head's keys. The two are not one up to constants: lambda / mu follows the scale of the keys and lambda mu runs against
it. In the code of August 2024 mu is N d / (4 |K|_1) + 1e-8 and divides.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.symmetric_library import as_given
from clearhead.shapes import Bool, Float, ShapeError

__all__ = ["KeyBound", "KeyMu", "Scope", "Threshold", "Width"]

# mu of shorter keys than these is that of keys so short: the square of its inverse still fits single precision.
_LEAST_MEAN = 1e-18


def _is_number(value: object) -> bool:
    """Whether it is a number that fits a float, which what a file says may not be."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, float) or -sys.float_info.max <= value <= sys.float_info.max  # type: ignore[operator]


class Threshold(StrEnum):
    """What lambda and mu are made into. A function (lambda, mu) will do as well."""

    OVER_MU = "lambda/mu"
    TIMES_MU = "lambda*mu"


class Scope(StrEnum):
    """Over which keys mu is taken."""

    PREFIX = "prefix"
    """Those that a token may see: its past where the mask is causal, which leaks nothing; else all that there are."""
    HEAD = "head"
    """Those of the whole head, also where a token may not see them: the future leaks through mu."""
    SAMPLE = "sample"
    """Those of all heads of an input; leaks as well."""


class Width(StrEnum):
    """Which width stands in N D: that of one head, or, as the released code has it, of all heads together."""

    HEAD = "head"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMu:
    """mu of the keys themselves, N D / (4 |K|_1) + eps, for each head. Heads are the axis before n.

    detach: whether gradients stop here; the released code lets them through
    """

    width: Width = Width.HEAD
    scope: Scope = Scope.PREFIX
    detach: bool = False
    eps: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", Width(self.width))
        object.__setattr__(self, "scope", Scope(self.scope))
        if not isinstance(self.detach, bool):
            raise InputError(f"expected detach as True or False; got {self.detach!r}")
        if not _is_number(self.eps) or not 0 <= self.eps < math.inf:
            raise InputError(f"expected eps of zero or more; got {self.eps!r}")

    def inverse(self, k: Float[Tensor, "*b n d"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*b #n 1"]:
        """1 / (mu - eps), single precision at least: 0 for keys that are 0, where mu is infinite.

        One number for each head, or for each token where tokens see different keys.
        """
        wide = torch.promote_types(k.dtype, torch.float32)
        size = (k.detach() if self.detach else k).to(wide).abs().sum(dim=-1)
        total, count = _seen(size, mask, by_query=self.scope is Scope.PREFIX)
        if self.scope is Scope.SAMPLE and k.ndim > 2:
            total, count = total.mean(dim=-2, keepdim=True), count.mean(dim=-2, keepdim=True)
            total = total.expand(*k.shape[:-2], 1)
        heads = k.shape[-3] if self.width is Width.MODEL and k.ndim > 2 else 1
        return (4 / heads * total / (count * k.shape[-1]).clamp_min(1))[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBound:
    """The bound of keys.

    strength: lambda; None is 1/sqrt(max(N, D)), as in principal component pursuit; at infinity nothing is sparse
    threshold: how lambda and mu make the bound
    mu: taken from the keys, or a number, or a tensor that broadcasts to the leading axes of the keys and may be learned
    """

    strength: float | None = 4.0
    threshold: Threshold | Callable[[Tensor, Tensor], Tensor] = Threshold.OVER_MU
    mu: KeyMu | float | Tensor = KeyMu()

    def __post_init__(self) -> None:
        if not callable(self.threshold):
            object.__setattr__(self, "threshold", Threshold(self.threshold))
        if self.strength is not None and not (_is_number(self.strength) and self.strength >= 0):
            raise InputError(f"expected a strength, lambda, of zero or more; got {self.strength!r}")
        learned = isinstance(self.mu, KeyMu | Tensor)
        if not learned and not (_is_number(self.mu) and 0 < self.mu < math.inf):  # type: ignore[operator]
            raise InputError(f"expected a KeyMu, a tensor, or a mu above zero; got {self.mu!r}")

    def of(self, k: Float[Tensor, "*b n d"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*b #n 1"]:
        """The bound of every head, (..., 1, 1), or of every token, (..., n, 1), single precision at least."""
        strength, inverse, eps = self._strength(k, mask), self._inverse(k, mask), self._eps
        if self.strength == math.inf and isinstance(self.threshold, Threshold):
            return torch.full_like(inverse, math.inf)  # of which there is no gradient, where inf * 0 would make one
        if self.threshold is Threshold.OVER_MU:
            return strength * inverse / (1 + eps * inverse)
        # Infinite keys would give mu = 0, a bound of 0 and keys that are all equal, which hides them.
        mu = torch.where(inverse < math.inf, 1 / inverse.clamp_min(_LEAST_MEAN) + eps, torch.nan)
        return strength * mu if self.threshold is Threshold.TIMES_MU else self._asked(strength, mu)

    def mu_of(self, k: Float[Tensor, "*b n d"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*b #n 1"]:
        """mu of every head or token, large and finite where the keys are 0."""
        return 1 / self._inverse(k, mask).clamp_min(_LEAST_MEAN) + self._eps

    @property
    def _eps(self) -> float:
        return self.mu.eps if isinstance(self.mu, KeyMu) else 0.0

    def _inverse(self, k: Tensor, mask: Tensor | None) -> Tensor:
        if isinstance(self.mu, KeyMu):
            return self.mu.inverse(k, mask)
        wide = torch.promote_types(k.dtype, torch.float32)
        mu = torch.as_tensor(self.mu, dtype=wide, device=k.device)
        try:
            return (1 / mu).expand(k.shape[:-2])[..., None, None]
        except RuntimeError:
            raise ShapeError(
                f"expected a mu that broadcasts to {tuple(k.shape[:-2])}, the leading axes of k; "
                f"got mu {tuple(mu.shape)}, k {tuple(k.shape)}"
            ) from None

    def _strength(self, k: Tensor, mask: Tensor | None) -> Tensor:
        wide = torch.promote_types(k.dtype, torch.float32)
        if self.strength is not None:
            return torch.tensor(self.strength, dtype=wide, device=k.device)
        by_query = not isinstance(self.mu, KeyMu) or self.mu.scope is Scope.PREFIX
        ones = torch.ones(k.shape[:-1], dtype=wide, device=k.device)
        _, count = _seen(ones, mask, by_query=by_query)
        return count.clamp_min(k.shape[-1]).rsqrt()[..., None]

    def _asked(self, strength: Tensor, mu: Tensor) -> Tensor:
        made: Tensor = self.threshold(strength, mu)  # type: ignore[operator]
        if made.shape != mu.shape:
            raise ShapeError(f"expected one threshold for each mu {tuple(mu.shape)}; got {tuple(made.shape)}")
        return made


def _seen(
    size: Float[Tensor, "*b n"], mask: Bool[Tensor, "..."] | None, *, by_query: bool
) -> tuple[Float[Tensor, "*b #n"], Float[Tensor, "*b #n"]]:
    """Sum and number of the sizes of the keys that a token may see, or that any may; one number where that is equal."""
    if mask is None:
        return size.sum(dim=-1, keepdim=True), torch.full_like(size[..., :1], size.shape[-1])
    mask = mask.reshape((1,) * (size.ndim + 1 - mask.ndim) + mask.shape)
    mask = mask.expand(*mask.shape[:-1], size.shape[-1])
    if mask.shape[-2] > 1 and by_query:
        shown = mask.to(size.dtype)
        with as_given(size):  # in half precision sums overflow, and counts beyond 256 are not whole
            if size.ndim > 1 and shown.shape[-3] == 1:  # one mask for all heads: no copy of it for each
                shown = shown.squeeze(-3)
                return size @ shown.mT, torch.ones_like(size) @ shown.mT
            return (shown @ size[..., None])[..., 0], shown.sum(dim=-1).expand(size.shape)
    there = mask.any(dim=-2).expand(size.shape)
    return torch.where(there, size, 0).sum(dim=-1, keepdim=True), there.sum(dim=-1, keepdim=True, dtype=size.dtype)

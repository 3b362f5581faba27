r"""Clamped-key attention, and the bound of keys of RPC-Attention (lambda and mu of Teo and Nguyen 2024).

Principal component pursuit takes mu = N D / (4 |K|_1), one over four times the mean size of an entry, and the bound
lambda / mu. The authors' released code multiplies, lambda mu, and counts the width of all heads in mu while it sums one
head's keys. The two differ by more than constants: lambda / mu grows with the scale of the keys, lambda mu shrinks. In
the code of August 2024 mu is N d / (4 |K|_1) + 1e-8 and divides.

Clamped-key attention is one iteration of principal attention pursuit in the published order, exactly, because
:math:`x - \operatorname{shrink}_t(x) = \operatorname{clamp}(x, \pm t)`. It is the baseline of RPC-Attention.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from numbers import Real

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.operators.softmax import check_causal, slow_softmax_attention, softmax_attention, split_causal
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.symmetric_kernel import no_autocast
from clearhead.shapes import Bool, Float, ShapeError, check_attention_operands

# The mean size of keys is at least this in mu: the square of its inverse still fits single precision.
_LEAST_MEAN = 1e-18


def _is_number(value: object) -> bool:
    """Return True for a real number that fits a float; a file may hold anything."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, float) or -sys.float_info.max <= value <= sys.float_info.max  # type: ignore[operator]


class Threshold(StrEnum):
    """The rule that makes the bound from lambda and mu. A function (lambda, mu) is also accepted."""

    OVER_MU = "lambda/mu"
    TIMES_MU = "lambda*mu"


class Scope(StrEnum):
    """The keys over which mu is taken."""

    PREFIX = "prefix"
    """The keys that a token sees: its past under a causal mask, so nothing leaks; without one, all keys."""
    HEAD = "head"
    """All keys of the head, also those a token does not see: the future leaks through mu."""
    SAMPLE = "sample"
    """The keys of all heads of an input; the future leaks as well."""


class Width(StrEnum):
    """The width D in N D: that of one head, or, as in the released code, of all heads together."""

    HEAD = "head"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMu:
    """mu computed from the keys, N D / (4 |K|_1) + eps, for each head. Heads are the axis before n.

    detach: True to stop gradients at mu; the released code lets them through
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

    def inverse(
        self, k: Float[Tensor, "*b n d"], mask: Bool[Tensor, "..."] | None = None, *, is_causal: bool = False
    ) -> Float[Tensor, "*b #n 1"]:
        """Return 1 / (mu - eps) in single precision or better: 0 for keys that are 0, where mu is infinite.

        There is one number for each head, or for each token where tokens see different keys.
        """
        wide = torch.promote_types(k.dtype, torch.float32)
        size = (k.detach() if self.detach else k).to(wide).abs().sum(dim=-1)
        total, count = _visible_sums(size, mask, by_query=self.scope is Scope.PREFIX, is_causal=is_causal)
        if self.scope is Scope.SAMPLE and k.ndim > 2:
            total, count = total.mean(dim=-2, keepdim=True), count.mean(dim=-2, keepdim=True)
            total = total.expand(*k.shape[:-2], 1)
        heads = k.shape[-3] if self.width is Width.MODEL and k.ndim > 2 else 1
        return (4 / heads * total / (count * k.shape[-1]).clamp_min(1))[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBound:
    """The bound t of the entries of keys.

    strength: lambda; None is 1/sqrt(max(N, D)), as in principal component pursuit; infinity makes nothing sparse
    threshold: the rule that makes t from lambda and mu
    mu: a `KeyMu`, a number, or a tensor that broadcasts to the leading axes of the keys and may be learned
    """

    strength: float | None = 4.0
    threshold: Threshold | Callable[[Tensor, Tensor], Tensor] = Threshold.OVER_MU
    mu: KeyMu | float | Tensor = KeyMu()

    def __post_init__(self) -> None:
        if not callable(self.threshold):
            object.__setattr__(self, "threshold", Threshold(self.threshold))
        if self.strength is not None and not (_is_number(self.strength) and self.strength >= 0):
            raise InputError(f"expected a strength, lambda, of zero or more; got {self.strength!r}")
        computed = isinstance(self.mu, KeyMu | Tensor)
        if not computed and not (_is_number(self.mu) and 0 < self.mu < math.inf):  # type: ignore[operator]
            raise InputError(f"expected a KeyMu, a tensor, or a mu above zero; got {self.mu!r}")

    def compute(
        self, k: Float[Tensor, "*b n d"], mask: Bool[Tensor, "..."] | None = None, *, is_causal: bool = False
    ) -> Float[Tensor, "*b #n 1"]:
        """Return the bound of every head, (..., 1, 1), or of every token, (..., n, 1), in float32 or better.

        is_causal: True if a token sees no later token; the mask must then be None or the same for all queries
        """
        strength, inverse, eps = self._strength(k, mask, is_causal), self._inverse(k, mask, is_causal), self._eps
        if self.strength == math.inf and isinstance(self.threshold, Threshold):
            return torch.full_like(inverse, math.inf)  # a constant: inf * 0 would make its gradient NaN
        if self.threshold is Threshold.OVER_MU:
            return strength * inverse / (1 + eps * inverse)
        # Infinite keys would give mu = 0, a bound of 0 and keys that are all equal, which hides them.
        mu = torch.where(inverse < math.inf, 1 / inverse.clamp_min(_LEAST_MEAN) + eps, torch.nan)
        return strength * mu if self.threshold is Threshold.TIMES_MU else self._by_function(strength, mu)

    def compute_mu(
        self, k: Float[Tensor, "*b n d"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*b #n 1"]:
        """Return mu of every head or token, large and finite where the keys are 0."""
        return 1 / self._inverse(k, mask).clamp_min(_LEAST_MEAN) + self._eps

    @property
    def _eps(self) -> float:
        return self.mu.eps if isinstance(self.mu, KeyMu) else 0.0

    def _inverse(self, k: Tensor, mask: Tensor | None, is_causal: bool = False) -> Tensor:
        if isinstance(self.mu, KeyMu):
            return self.mu.inverse(k, mask, is_causal=is_causal)
        wide = torch.promote_types(k.dtype, torch.float32)
        mu = torch.as_tensor(self.mu, dtype=wide, device=k.device)
        try:
            return (1 / mu).expand(k.shape[:-2])[..., None, None]
        except RuntimeError:
            raise ShapeError(
                f"expected a mu that broadcasts to {tuple(k.shape[:-2])}, the leading axes of k; "
                f"got mu {tuple(mu.shape)}, k {tuple(k.shape)}"
            ) from None

    def _strength(self, k: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        wide = torch.promote_types(k.dtype, torch.float32)
        if self.strength is not None:
            return torch.tensor(self.strength, dtype=wide, device=k.device)
        by_query = not isinstance(self.mu, KeyMu) or self.mu.scope is Scope.PREFIX
        ones = torch.ones(k.shape[:-1], dtype=wide, device=k.device)
        _, count = _visible_sums(ones, mask, by_query=by_query, is_causal=is_causal)
        return count.clamp_min(k.shape[-1]).rsqrt()[..., None]

    def _by_function(self, strength: Tensor, mu: Tensor) -> Tensor:
        bound: Tensor = self.threshold(strength, mu)  # type: ignore[operator]
        if bound.shape != mu.shape:
            raise ShapeError(f"expected one threshold for each mu {tuple(mu.shape)}; got {tuple(bound.shape)}")
        return bound


def _visible_sums(
    size: Float[Tensor, "*b n"], mask: Bool[Tensor, "..."] | None, *, by_query: bool, is_causal: bool
) -> tuple[Float[Tensor, "*b #n"], Float[Tensor, "*b #n"]]:
    """Return sum and number of the sizes of visible keys: by query, or of keys that any query sees.

    There is one number instead of n where all queries see the same keys.
    """
    if is_causal and by_query:
        keys = torch.tensor(True, device=size.device) if mask is None else mask if mask.ndim < 2 else mask.squeeze(-2)
        keys = keys.expand(size.shape)
        return torch.where(keys, size, 0).cumsum(dim=-1), keys.cumsum(dim=-1, dtype=size.dtype)
    if mask is None:
        return size.sum(dim=-1, keepdim=True), torch.full_like(size[..., :1], size.shape[-1])
    mask = mask.reshape((1,) * (size.ndim + 1 - mask.ndim) + mask.shape)
    mask = mask.expand(*mask.shape[:-1], size.shape[-1])
    if mask.shape[-2] > 1 and by_query:
        return run_within_memory(
            partial(_sums_by_query, size, mask),
            task="the bound of keys that differ between queries",
            remedy='pass fewer tokens at once, or take mu over the whole head with KeyMu(scope="head")',
            device=size.device,
            needed=bytes_of_matrices(mask.shape, size.dtype, count=1),
        )
    visible = mask.any(dim=-2).expand(size.shape)
    return torch.where(visible, size, 0).sum(dim=-1, keepdim=True), visible.sum(dim=-1, keepdim=True, dtype=size.dtype)


def _sums_by_query(size: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    weights = mask.to(size.dtype)
    with no_autocast(size):  # in half precision sums overflow, and counts beyond 256 are not exact
        if size.ndim > 1 and weights.shape[-3] == 1:  # one mask for all heads: do not copy it for each
            weights = weights.squeeze(-3)
            return size @ weights.mT, torch.ones_like(size) @ weights.mT
        return (weights @ size[..., None])[..., 0], weights.sum(dim=-1).expand(size.shape)


RELEASED_BOUND = KeyBound(threshold=Threshold.TIMES_MU, mu=KeyMu(width=Width.MODEL))
"""The bound of the authors' released code of October 2024."""


def clamped_key_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    bound: KeyBound = RELEASED_BOUND,
) -> Float[Tensor, "*b n e"]:
    r"""Return attention over keys whose entries are clamped to a bound.

    .. math:: O = \operatorname{softmax}(\text{scale}\; Q K_c^T) V, \qquad K_c = \operatorname{clamp}(K, \pm t)

    q: Q; None for Q = K_c, keys as queries, as published
    mask, is_causal, scale: as in `symmetric_attention`
    bound: t, the bound of the keys
    """
    check_attention_operands(k if q is None else q, k, v, mask=mask)
    check_causal(k if q is None else q, k, is_causal)
    mask, is_causal = split_causal(mask, k, is_causal=is_causal)
    t = bound.compute(k, mask, is_causal=is_causal)
    wide = torch.promote_types(k.dtype, torch.float32)
    with no_autocast(k):
        clamped = k.to(wide).clamp(-t, t)
        if q is None:
            return symmetric_attention(clamped, v.to(wide), mask=mask, is_causal=is_causal, scale=scale).to(v.dtype)
        out = softmax_attention(q.to(wide), clamped, v.to(wide), mask=mask, is_causal=is_causal, scale=scale)
        return out.to(v.dtype)


def slow_clamped_key_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    bound: KeyBound = RELEASED_BOUND,
) -> Float[Tensor, "*b n e"]:
    """Compute `clamped_key_attention` by clamping each entry, then softmax attention."""
    t = bound.compute(k, mask).to(k.dtype)
    clamped = torch.where(k > t, t, torch.where(k < -t, -t, k))
    return slow_softmax_attention(clamped if q is None else q, clamped, v, mask=mask, scale=scale)


def last_clamped_key_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    tokens: int,
    mask: Bool[Tensor, "... n m"] | None = None,
    scale: float | None = None,
    bound: KeyBound = RELEASED_BOUND,
) -> Float[Tensor, "*b n e"]:
    """Return the last rows of causal `clamped_key_attention`, at a cost linear in m.

    q: the queries of the last tokens; None for clamped keys as queries
    tokens: n
    mask: causal without the hidden keys, a row for each of the last tokens; None if n = 1 and no key is hidden
    """
    keys = None if mask is None else mask[..., -1:, :]
    t = bound.compute(k, keys, is_causal=True)
    wide = torch.promote_types(k.dtype, torch.float32)
    with no_autocast(k):
        clamped = k.to(wide).clamp(-t, t)
        queries = clamped[..., k.shape[-2] - tokens :, :] if q is None else q.to(wide)
        return softmax_attention(queries, clamped, v.to(wide), mask=mask, scale=scale).to(v.dtype)

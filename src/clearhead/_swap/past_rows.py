"""Rows of earlier tokens that a step with a cache need not compute again, kept with the layer that computed them.

A row depends on the keys and values up to its token and on which of them are hidden. A cache of keys and values may be
reordered, cropped or replaced between two steps, and a static one is overwritten in place. So the rows are stored with
copies of all that they depend on, and used only where the step's own tensors are equal to the copies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.shapes import Bool, Float

__all__ = ["PastRows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    k: Tensor
    v: Tensor
    keys: Tensor
    scale: float | None
    rows: Tensor

    def equal_length(self, k: Tensor, v: Tensor, keys: Tensor, scale: float | None) -> int:
        """Return the number of leading tokens whose rows hold for k, v and the visible keys: all that fit, or 0."""
        length = min(self.k.shape[-2], k.shape[-2])
        pairs = [(self.k[..., :length, :], k[..., :length, :]), (self.v[..., :length, :], v[..., :length, :])]
        if scale != self.scale or any((a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) for a, b in pairs):
            return 0
        same_keys = (self.keys[..., :length] == keys[..., :length]).all()
        return length if bool(same_keys) and all(torch.equal(a, b) for a, b in pairs) else 0


class PastRows:
    """The rows of the tokens in the last step with a cache, of one layer. Copies and files of a model hold none.

    There are none for a step with gradients, which they would not carry, and in code that torch compiles.
    """

    def __init__(self) -> None:
        self._stored: _Stored | None = None

    def extend(
        self,
        compute: Callable[[int], Tensor],
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        keys: Bool[Tensor, "... #m"],
        *,
        scale: float | None,
    ) -> Float[Tensor, "*b m e"]:
        """Return the rows of all m tokens, of which only those without a stored row are computed.

        compute: returns the rows from a token on
        keys: True for the keys that are visible to later tokens
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return compute(0)
        stored = self._stored  # another thread may replace it meanwhile
        known = 0 if stored is None else stored.equal_length(k, v, keys, scale)
        known = max(0, min(known, k.shape[-2] - 1))  # there is always a row to compute
        rows = compute(known)
        if stored is not None and known:
            rows = torch.cat([stored.rows[..., :known, :], rows], dim=-2)
        self._stored = _Stored(k=k.clone(), v=v.clone(), keys=keys.clone(), scale=scale, rows=rows)
        return rows

    def clear(self) -> None:
        """Drop the rows."""
        self._stored = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and files hold."""
        return {"_stored": None}

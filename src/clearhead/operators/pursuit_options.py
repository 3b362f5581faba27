r"""The options of principal attention pursuit as values, and the published choices as presets.

docs/theory/rpc-attention.md describes where the paper, its released code and principal component pursuit differ.
strength is lambda; S, L, Y are the sparse part, the low-rank part and the dual variable.

Thresholds are proximal steps, :math:`\operatorname{prox}_f(x) = \arg\min_y f(y) + |y - x|^2 / 2`: soft thresholding is
that of t times the sum of absolute values, hard thresholding that of t^2 / 2 times the number of nonzero entries.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.clamped_keys import RELEASED_BOUND, KeyBound, KeyMu, Scope, Threshold, Width
from clearhead.shapes import Float

DualSign = Literal[-1, 1]
"""Sign of the dual variable in the step of the low-rank part: +1 in the method, -1 as it was once misprinted."""


def soft_threshold(x: Float[Tensor, "..."], t: Float[Tensor, "..."] | float) -> Float[Tensor, "..."]:
    r"""Move every entry towards zero by t, at most to zero: :math:`\operatorname{sign}(x) \max(|x| - t, 0)`.

    The difference x - soft_threshold(x, t) is x clamped to [-t, t].
    """
    return x.sign() * (x.abs() - t).clamp_min(0)


def hard_threshold(x: Float[Tensor, "..."], t: Float[Tensor, "..."] | float) -> Float[Tensor, "..."]:
    """Set entries of size at most t to zero; leave the others, and NaN, unchanged."""
    return torch.where(x.abs() <= t, 0, x)


class Order(StrEnum):
    """The order of the steps in an iteration."""

    SPARSE_FIRST = "SLY"
    """As published: one iteration is symmetric attention on clamped keys."""
    LOW_RANK_FIRST = "LSY"
    """As in principal component pursuit: one iteration is symmetric attention."""


class Shrink(StrEnum):
    """The sparse part of an entry beyond the bound: its excess over the bound, or the whole entry."""

    SOFT = "soft"
    HARD = "hard"


class Inner(StrEnum):
    """The sparse part in all iterations but the last."""

    SHRINK = "shrink"
    ALL = "all"
    """The whole residual, K - L + Y / mu: no shrinkage, as in one branch of the code of August 2024."""
    HALF = "half"
    """Half of the residual, as in its other branch."""


class DropoutIterations(StrEnum):
    """The iterations in which dropout applies to attention weights."""

    LAST = "last"
    ALL = "all"
    NONE = "none"


_ENUMS = {"order": Order, "shrink": Shrink, "inner": Inner, "dropout": DropoutIterations}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pursuit:
    """The options of principal attention pursuit.

    iterations: number of iterations
    bound: the bound of the keys, beyond which entries are sparse
    dual_sign: sign of Y / mu in the keys of the attention: -1 as published, +1 as in ADMM
    centred: True to subtract the mean of the queries from each
    """

    iterations: int = 4
    bound: KeyBound = field(default_factory=KeyBound)
    order: Order = Order.SPARSE_FIRST
    dual_sign: DualSign = -1
    shrink: Shrink = Shrink.SOFT
    inner: Inner = Inner.SHRINK
    dropout: DropoutIterations = DropoutIterations.LAST
    centred: bool = False

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise InputError(f"expected a whole number of iterations, one or more; got {self.iterations}")
        if self.dual_sign not in (-1, 1):
            raise InputError(f"expected a dual sign of -1 or 1; got {self.dual_sign!r}")
        if not isinstance(self.bound, KeyBound) or not isinstance(self.centred, bool):
            raise InputError(f"expected a KeyBound, and centred as True or False; got {self.bound!r}, {self.centred!r}")

    @property
    def in_kernel(self) -> bool:
        """True if the compiled kernel implements these steps."""
        shrinks = self.iterations == 1 or self.inner is Inner.SHRINK
        return self.order is Order.SPARSE_FIRST and self.shrink is Shrink.SOFT and shrinks and not self.centred

    def subtract_sparse(self, residual: Tensor, bound: Tensor, *, last: bool) -> Tensor:
        """Return the residual K - L + Y / mu minus its sparse part; with soft shrinkage that is its clamp."""
        if self.inner is Inner.ALL and not last:
            return torch.zeros_like(residual)
        if self.inner is Inner.HALF and not last:
            return residual / 2
        if self.shrink is Shrink.HARD:
            return torch.where(residual.abs() <= bound, residual, 0)
        return residual.clamp(-bound, bound)

    def to_dict(self) -> dict[str, Any]:
        """Return strings and numbers for JSON. Raise ValueError if the threshold is a function or mu a tensor."""
        if not isinstance(self.bound.threshold, Threshold) or isinstance(self.bound.mu, Tensor):
            raise InputError("a pursuit whose threshold is a function, or whose mu is a tensor, cannot be saved")
        plain: dict[str, Any] = dataclasses.asdict(self, dict_factory=_plain)
        return plain

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Pursuit":
        """Return the pursuit that `to_dict` stored. Raise ValueError for anything else."""
        try:
            settings = dict(**stored["bound"])
            mu = settings["mu"]
            if isinstance(mu, Mapping):
                mu = KeyMu(**{**mu, "width": Width(mu["width"]), "scope": Scope(mu["scope"])})
            bound = KeyBound(**{**settings, "threshold": Threshold(settings["threshold"]), "mu": mu})
            enums = {name: kind(stored[name]) for name, kind in _ENUMS.items()}
            return cls(**{**stored, **enums, "bound": bound})
        except (KeyError, TypeError) as error:
            raise InputError(f"expected the options of a pursuit; got {stored!r} ({error})") from None


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in items}


PRESETS: Mapping[str, Pursuit] = {
    "paper": Pursuit(),
    "code-2024-10": Pursuit(bound=RELEASED_BOUND),
    "code-2024-08-base": Pursuit(iterations=1, bound=KeyBound(strength=3.0, mu=KeyMu(eps=1e-8)), inner=Inner.HALF),
    "admm": Pursuit(bound=KeyBound(strength=None), order=Order.LOW_RANK_FIRST, dual_sign=1),
}
"""Published choices.

paper: the bound lambda / mu, with lambda and iterations of the released code, because the paper does not state them
code-2024-10: the released code of October 2024, for the tiny model
code-2024-08-base: the released code of August 2024, the branch of the base model
admm: the signs, the order and the lambda of principal component pursuit
"""


def preset(name: str | Pursuit, *, iterations: int | None = None, strength: float | None = None) -> Pursuit:
    """Return the preset of that name, or the given pursuit, with `iterations` and `strength` replaced unless None."""
    if not isinstance(name, Pursuit) and name not in PRESETS:
        raise InputError(f"there is no preset {name!r}; choose from {', '.join(PRESETS)}")
    pursuit = name if isinstance(name, Pursuit) else PRESETS[name]
    bound = pursuit.bound if strength is None else dataclasses.replace(pursuit.bound, strength=strength)
    iterations = pursuit.iterations if iterations is None else iterations
    return dataclasses.replace(pursuit, iterations=iterations, bound=bound)

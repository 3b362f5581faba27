"""The options of principal attention pursuit as values, and the published choices among them by name.

What the paper, its released code and principal component pursuit do differently is described in
docs/theory/rpc-attention.md. Names: strength is lambda, and S, L, Y are the sparse part, the low-rank part and the dual
variable.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.component_pursuit import DualSign
from clearhead.operators.key_bound import KeyBound, KeyMu, Scope, Threshold, Width

__all__ = ["PRESETS", "DropoutPlace", "Inner", "Order", "Pursuit", "Shrink", "preset"]


class Order(StrEnum):
    """Of the steps in an iteration."""

    SPARSE_FIRST = "SLY"
    """As published: one iteration is symmetric attention on clamped keys."""
    LOW_RANK_FIRST = "LSY"
    """As principal component pursuit has it: one iteration is symmetric attention."""


class Shrink(StrEnum):
    """What counts as sparse: how far entries lie beyond the bound, or those entries as a whole."""

    SOFT = "soft"
    HARD = "hard"


class Inner(StrEnum):
    """The sparse part in all iterations but the last."""

    SHRINK = "shrink"
    ALL = "all"
    """Everything that is left, K - L + Y / mu: no shrinkage, as in one branch of the code of August 2024."""
    HALF = "half"
    """Half of what is left, as in its other branch."""


class DropoutPlace(StrEnum):
    """In which iterations attention weights are dropped, where dropout is asked for."""

    LAST = "last"
    ALL = "all"
    NONE = "none"


_WORDS = {"order": Order, "shrink": Shrink, "inner": Inner, "dropout": DropoutPlace}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pursuit:
    """How principal attention pursuit goes.

    dual_sign: of Y / mu in the keys of the attention: -1 as published, +1 as the method has it
    centred: whether the mean of the queries is taken from each
    """

    iterations: int = 4
    bound: KeyBound = field(default_factory=KeyBound)
    order: Order = Order.SPARSE_FIRST
    dual_sign: DualSign = -1
    shrink: Shrink = Shrink.SOFT
    inner: Inner = Inner.SHRINK
    dropout: DropoutPlace = DropoutPlace.LAST
    centred: bool = False

    def __post_init__(self) -> None:
        for name, kind in _WORDS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise InputError(f"expected a whole number of iterations, one or more; got {self.iterations}")
        if self.dual_sign not in (-1, 1):
            raise InputError(f"expected a dual sign of -1 or 1; got {self.dual_sign!r}")
        if not isinstance(self.bound, KeyBound) or not isinstance(self.centred, bool):
            raise InputError(f"expected a KeyBound, and centred as True or False; got {self.bound!r}, {self.centred!r}")

    @property
    def fused(self) -> bool:
        """Whether the compiled kernel has these steps."""
        alone = self.iterations == 1 or self.inner is Inner.SHRINK
        return self.order is Order.SPARSE_FIRST and self.shrink is Shrink.SOFT and alone and not self.centred

    def rest(self, left: Tensor, bound: Tensor, *, last: bool) -> Tensor:
        """What is left, K - L + Y / mu, less the sparse part: clamped, where that is softly thresholded."""
        if self.inner is Inner.ALL and not last:
            return torch.zeros_like(left)
        if self.inner is Inner.HALF and not last:
            return left / 2
        if self.shrink is Shrink.HARD:
            return torch.where(left.abs() <= bound, left, 0)
        return left.clamp(-bound, bound)

    def as_json(self) -> dict[str, Any]:
        """Plain words and numbers. ValueError for a rule that is a function, or a mu that is a tensor."""
        if not isinstance(self.bound.threshold, Threshold) or isinstance(self.bound.mu, Tensor):
            raise InputError("a threshold rule that is a function, or a learned mu, cannot be written down")
        plain: dict[str, Any] = dataclasses.asdict(self, dict_factory=_plain)
        return plain

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Pursuit":
        """What `as_json` wrote. ValueError for anything else."""
        try:
            written = dict(**stored["bound"])
            mu = written["mu"]
            if isinstance(mu, Mapping):
                mu = KeyMu(**{**mu, "width": Width(mu["width"]), "scope": Scope(mu["scope"])})
            bound = KeyBound(**{**written, "threshold": Threshold(written["threshold"]), "mu": mu})
            words = {name: kind(stored[name]) for name, kind in _WORDS.items()}
            return cls(**{**stored, **words, "bound": bound})
        except (KeyError, TypeError) as error:
            raise InputError(f"these are no options of a pursuit: {error}") from None


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in items}


PRESETS: Mapping[str, Pursuit] = {
    "paper": Pursuit(),
    "code-2024-10": Pursuit(bound=KeyBound(threshold=Threshold.TIMES_MU, mu=KeyMu(width=Width.MODEL))),
    "code-2024-08-base": Pursuit(iterations=1, bound=KeyBound(strength=3.0, mu=KeyMu(eps=1e-8)), inner=Inner.HALF),
    "admm": Pursuit(bound=KeyBound(strength=None), order=Order.LOW_RANK_FIRST, dual_sign=1),
}
"""Published choices.

paper: the bound lambda / mu, with lambda and iterations of the released code, as the paper's are not known
code-2024-10: the released code as it stood in October 2024, for the tiny model
code-2024-08-base: its state of August 2024, the branch of the base model
admm: the signs, the order and the lambda that principal component pursuit has
"""


def preset(name: str | Pursuit, *, iterations: int | None = None, strength: float | None = None) -> Pursuit:
    """The preset of that name, or the options given, with other iterations or another lambda where given."""
    if not isinstance(name, Pursuit) and name not in PRESETS:
        raise InputError(f"no preset is called {name}; there is {', '.join(PRESETS)}")
    chosen = name if isinstance(name, Pursuit) else PRESETS[name]
    bound = chosen.bound if strength is None else dataclasses.replace(chosen.bound, strength=strength)
    return dataclasses.replace(chosen, iterations=chosen.iterations if iterations is None else iterations, bound=bound)

"""Operators as values that can stand in for a layer's own attention: a name, and numbers that a file can hold.

A drop-in is called as every operator is, (q, k, v, *, mask, scale), and says what it needs of the place it is put into.
Anything that is called so can be swapped in; only what is listed here can be saved, for a file names no code.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.clamped_keys import KeyBound, clamped_key_attention
from clearhead.operators.learned_scaling import Scaled
from clearhead.operators.pursuit_options import Pursuit, preset
from clearhead.operators.rpc import rpc_attention
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import Bool, Float

__all__ = [
    "DROP_INS",
    "RPC",
    "ClampedKeys",
    "DropIn",
    "Queries",
    "Scaled",
    "Softmax",
    "Symmetric",
    "drop_in_as_json",
    "drop_in_from_json",
]

Queries = Literal["keys", "given"]
"""Who asks: every token by its own key, as the symmetric operators were published, or by the layer's own query."""


class DropIn(Protocol):
    """What a place has to know of an operator that is put into it.

    name: by which it is saved
    square: whether it attends within one sequence, so that there is one query for every key
    needs_past_queries: whether earlier tokens' queries enter a later token's output; a cache keeps keys and values only
    uses_queries: whether the layer's own queries enter at all
    takes: which of bias, softcap, sinks and dropout it takes as further arguments

    One that learns something has `build()` in place of a call: every place gets a module of its own, called so.
    """

    name: ClassVar[str]

    @property
    def square(self) -> bool: ...  # noqa: D102
    @property
    def needs_past_queries(self) -> bool: ...  # noqa: D102
    @property
    def uses_queries(self) -> bool: ...  # noqa: D102
    @property
    def takes(self) -> frozenset[str]: ...  # noqa: D102

    def __call__(  # noqa: D102
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """`softmax_attention`, what most layers do anyway."""

    name: ClassVar[str] = "softmax"
    square: ClassVar[bool] = False
    needs_past_queries: ClassVar[bool] = False
    uses_queries: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"bias", "softcap", "sinks"})

    def __call__(  # noqa: D102
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
        **more: Any,
    ) -> Float[Tensor, "*b n e"]:
        return softmax_attention(q, k, v, mask=mask, scale=scale, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric:
    """`symmetric_attention`: the layer's queries are left out, and every token asks by its key."""

    name: ClassVar[str] = "symmetric"
    square: ClassVar[bool] = True
    needs_past_queries: ClassVar[bool] = False
    uses_queries: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset()

    def __call__(  # noqa: D102
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b n d"],
        v: Float[Tensor, "*b n e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "*b n e"]:
        return symmetric_attention(k, v, mask=mask, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedKeys:
    """`clamped_key_attention` with the bound of a preset.

    bound: the preset; strength: another lambda than it has
    """

    name: ClassVar[str] = "clamped"
    square: ClassVar[bool] = True
    needs_past_queries: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset()
    bound: str = "code-2024-10"
    strength: float | None = None
    queries: Queries = "keys"
    limit: KeyBound = field(init=False, repr=False, compare=False)
    """The bound itself."""

    def __post_init__(self) -> None:
        _check_queries(self.queries)
        object.__setattr__(self, "limit", preset(self.bound, strength=self.strength).bound)

    @property
    def uses_queries(self) -> bool:
        """Whether the layer's queries ask."""
        return self.queries == "given"

    def __call__(  # noqa: D102
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b n d"],
        v: Float[Tensor, "*b n e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "*b n e"]:
        queries = q if self.uses_queries else None
        return clamped_key_attention(k, v, bound=self.limit, queries=queries, mask=mask, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class RPC:
    """`rpc_attention`.

    pursuit: the name of a preset, or options of your own
    iterations, strength: other iterations, another lambda than the pursuit has
    """

    name: ClassVar[str] = "rpc"
    square: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"dropout"})
    pursuit: str | Pursuit = "code-2024-10"
    iterations: int | None = None
    strength: float | None = None
    queries: Queries = "keys"
    options: Pursuit = field(init=False, repr=False, compare=False)
    """What is pursued, with all that was chosen."""

    def __post_init__(self) -> None:
        _check_queries(self.queries)
        if isinstance(self.pursuit, Mapping):
            object.__setattr__(self, "pursuit", Pursuit.from_dict(self.pursuit))
        object.__setattr__(self, "options", preset(self.pursuit, iterations=self.iterations, strength=self.strength))

    @property
    def uses_queries(self) -> bool:
        """Whether the layer's queries ask."""
        return self.queries == "given"

    @property
    def needs_past_queries(self) -> bool:
        """Whether a token's output depends on what earlier tokens asked: through L, from the second iteration on."""
        return self.uses_queries and self.options.iterations > 1

    def __call__(  # noqa: D102
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b n d"],
        v: Float[Tensor, "*b n d"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "*b n d"]:
        queries = q if self.uses_queries else None
        return rpc_attention(k, v, pursuit=self.options, queries=queries, mask=mask, scale=scale, dropout=dropout)


def _check_queries(queries: str) -> None:
    if queries not in ("keys", "given"):
        raise InputError(f'expected queries "keys" or "given"; got {queries!r}')


DROP_INS: dict[str, type[Any]] = {kind.name: kind for kind in (Softmax, Symmetric, ClampedKeys, RPC, Scaled)}
"""Every operator that can be named in a file."""


def drop_in_as_json(operator: Any) -> dict[str, Any]:
    """The operator as a name and plain settings. ValueError for one that is not of `DROP_INS`."""
    if type(operator) not in DROP_INS.values():
        known = ", ".join(DROP_INS)
        raise InputError(f"only operators with a name can be saved ({known}); got {operator!r}: undo it before saving")
    settings = {name: getattr(operator, name) for name in _settings(type(operator))}
    plain = {name: value.to_dict() if isinstance(value, Pursuit) else value for name, value in settings.items()}
    return {"operator": operator.name, **plain}


def drop_in_from_json(stored: Any) -> Any:
    """The operator that `drop_in_as_json` wrote. ValueError for anything else."""
    name = stored.get("operator") if isinstance(stored, Mapping) else None
    if not isinstance(name, str) or name not in DROP_INS:
        raise InputError(f"expected an operator among {', '.join(DROP_INS)}; got {stored!r}")
    settings = {name: value for name, value in stored.items() if name != "operator"}
    kind = DROP_INS[name]
    unknown = settings.keys() - _settings(kind)
    if unknown:
        raise InputError(f"{kind.name} has no setting {', '.join(sorted(unknown))}")
    try:
        return kind(**settings)
    except TypeError as error:
        raise InputError(f"{kind.name} cannot be set so: {error}") from None


def _settings(kind: type[Any]) -> list[str]:
    return [setting.name for setting in dataclasses.fields(kind) if setting.init]

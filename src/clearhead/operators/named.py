"""Operators with a name and settings, which can be swapped into a layer and saved to a file.

A named operator is called as every operator is, (q, k, v, *, mask, scale), and declares what it requires of the layer.
Any function with this signature can be swapped in; only named operators can be saved, because a file holds no code: it
holds the name, which the registry `OPERATORS` knows, and the settings.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.clamped_keys import KeyBound, clamped_key_attention, last_clamped_key_attention
from clearhead.operators.learned_scaling import Scaled
from clearhead.operators.pursuit_options import Pursuit, preset
from clearhead.operators.rpc import rpc_attention
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.weights import clamped_key_weights, rpc_weights, softmax_attention_weights
from clearhead.registry import Registry
from clearhead.shapes import Bool, Float

__all__ = [
    "OPERATORS",
    "PROPERTIES",
    "RPC",
    "ClampedKeys",
    "NamedOperator",
    "Queries",
    "Scaled",
    "Softmax",
    "Symmetric",
    "is_named",
    "operator_from_dict",
    "operator_to_dict",
]

Queries = Literal["keys", "given"]
"""The queries: "keys" to use keys as queries, as the symmetric operators were published; "given" for the layer's."""


class NamedOperator(Protocol):
    """An operator with the properties that a swap needs to know: a frozen dataclass, whose fields are its settings.

    name: the name in a saved file, and in the registry
    square: True if it attends within one sequence, with one query for every key
    needs_past_queries: True if the queries of earlier tokens enter a later token's output; a cache holds only keys and
        values
    uses_queries: True if it uses the layer's queries
    takes: which of bias, softcap, sinks and dropout it accepts as further arguments

    An operator may have `attend_last(q, k, v, *, mask, scale)` for steps with a cache: it returns the outputs of the
    last n of m tokens, for n queries and the last n rows of a mask that is causal without the hidden keys. With
    `has_key_rows` it has `attend_with_rows(..., rows)` instead, with `rows` of all m tokens: `key_rows(k, v, *, mask,
    scale)` returns the last of them, one for each row of the mask. A row may depend on the visible keys and values up
    to its token only, because a later step uses it again where these are equal.

    An operator may have `weights_and_values(q, k, v, *, mask, scale)`, which takes the further arguments too and is
    called only if attention weights are asked for. It returns the weights, (..., n, m), and the values whose means they
    make the output, or None for these if the output is not such a mean. q may be the last n of m queries, as above.

    An operator with parameters has `build()` instead of a call: every layer gets a module, which is called.
    """

    name: ClassVar[str]

    @property
    def square(self) -> bool:
        """False unless an operator says otherwise."""
        return False

    @property
    def needs_past_queries(self) -> bool:
        """False unless an operator says otherwise."""
        return False

    @property
    def uses_queries(self) -> bool:
        """True unless an operator says otherwise."""
        return True

    @property
    def takes(self) -> frozenset[str]:
        """Nothing unless an operator says otherwise."""
        return frozenset()

    def __call__(  # noqa: D102
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """`softmax_attention`, which most layers compute anyway."""

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
        **options: Any,
    ) -> Float[Tensor, "*b n e"]:
        return softmax_attention(q, k, v, mask=mask, scale=scale, **options)

    def weights_and_values(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Return the weights, and v."""
        return softmax_attention_weights(q, k, **options), v


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric:
    """`symmetric_attention`: the layer's queries are ignored, and keys are the queries."""

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

    def attend_last(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None
    ) -> Tensor:
        """Return the outputs of the last tokens, as many as q has."""
        return softmax_attention(k[..., k.shape[-2] - q.shape[-2] :, :], k, v, mask=mask, scale=scale)

    def weights_and_values(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Return the weights, and v."""
        return softmax_attention_weights(k[..., k.shape[-2] - q.shape[-2] :, :], k, **options), v


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedKeys:
    """`clamped_key_attention` with the bound of a preset.

    bound: the name of the preset
    strength: lambda; that of the preset if None
    queries: "keys" or "given"
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
        """True if it uses the layer's queries."""
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
        return clamped_key_attention(queries, k, v, bound=self.limit, mask=mask, scale=scale)

    def attend_last(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None
    ) -> Tensor:
        """Return the outputs of the last tokens, as many as q has."""
        queries, tokens = q if self.uses_queries else None, q.shape[-2]
        return last_clamped_key_attention(queries, k, v, tokens=tokens, bound=self.limit, mask=mask, scale=scale)

    def weights_and_values(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Return the weights, and v."""
        queries = q if self.uses_queries else None
        return clamped_key_weights(queries, k, tokens=q.shape[-2], bound=self.limit, **options), v


@dataclass(frozen=True, slots=True, kw_only=True)
class RPC:
    """`rpc_attention`.

    pursuit: the name of a preset, or a `Pursuit`
    iterations, strength: override the number of iterations, and lambda, of the pursuit
    queries: "keys" or "given"
    """

    name: ClassVar[str] = "rpc"
    square: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"dropout"})
    pursuit: str | Pursuit = "code-2024-10"
    iterations: int | None = None
    strength: float | None = None
    queries: Queries = "keys"
    options: Pursuit = field(init=False, repr=False, compare=False)
    """The pursuit, with iterations and strength replaced."""

    def __post_init__(self) -> None:
        _check_queries(self.queries)
        if isinstance(self.pursuit, Mapping):
            object.__setattr__(self, "pursuit", Pursuit.from_dict(self.pursuit))
        object.__setattr__(self, "options", preset(self.pursuit, iterations=self.iterations, strength=self.strength))

    @property
    def uses_queries(self) -> bool:
        """True if it uses the layer's queries."""
        return self.queries == "given"

    @property
    def needs_past_queries(self) -> bool:
        """True if the queries of earlier tokens enter the output: through L, from the second iteration on."""
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
        return rpc_attention(queries, k, v, pursuit=self.options, mask=mask, scale=scale, dropout=dropout)

    def weights_and_values(
        self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return the weights of the last iteration without dropout, and v; with dropout None for the latter."""
        queries = q if self.uses_queries else None
        return rpc_weights(queries, k, v, pursuit=self.options, **options), None if dropout else v


def _check_queries(queries: str) -> None:
    if queries not in ("keys", "given"):
        raise InputError(f'expected queries "keys" or "given"; got {queries!r}')


PROPERTIES = ("square", "needs_past_queries", "uses_queries", "takes")
"""The properties that a named operator declares."""


def _expected(name: str, unit: Any) -> str:
    is_operator = isinstance(unit, type) and dataclasses.is_dataclass(unit) and getattr(unit, "name", None) == name
    declares = all(hasattr(unit, declared) for declared in PROPERTIES)
    return "" if is_operator and declares else f"a NamedOperator, a dataclass with the name {name}"


OPERATORS = Registry[type[Any]](
    "clearhead.operators",
    "operator",
    _expected,
    {
        "softmax": "clearhead.operators.named:Softmax",
        "symmetric": "clearhead.operators.named:Symmetric",
        "clamped": "clearhead.operators.named:ClampedKeys",
        "rpc": "clearhead.operators.named:RPC",
        "scaled": "clearhead.operators.learned_scaling:Scaled",
    },
)
"""All operators that can be saved, by name."""


def is_named(operator: Any) -> bool:
    """Return whether the operator's class is the one that `OPERATORS` has by its name."""
    name = getattr(type(operator), "name", None)
    return isinstance(name, str) and name in OPERATORS and OPERATORS.get(name) is type(operator)


def operator_to_dict(operator: Any) -> dict[str, Any]:
    """Return the operator's name and settings. Raise InputError if it is not one of `OPERATORS`."""
    if not is_named(operator):
        known = ", ".join(OPERATORS.names())
        raise InputError(
            f"only named operators can be saved ({known}); got {operator!r}: list its class among the entry points of "
            "a package (docs/howto/extend.md), or undo the swap before saving"
        )
    settings = {name: _as_plain(name, getattr(operator, name)) for name in _settings(type(operator))}
    return {"operator": operator.name, **settings}


def operator_from_dict(stored: Any) -> Any:
    """Return the operator that `operator_to_dict` stored. Raise InputError for anything else.

    The name is looked up in `OPERATORS`; settings are values that the operator's own class checks.
    """
    name = stored.get("operator") if isinstance(stored, Mapping) else None
    if not isinstance(name, str) or name not in OPERATORS:
        raise InputError(f"expected an operator among {', '.join(OPERATORS.names())}; got {stored!r}")
    settings = {name: value for name, value in stored.items() if name != "operator"}
    kind = OPERATORS.get(name)
    unknown = settings.keys() - _settings(kind)
    if unknown:
        raise InputError(f"{kind.name} has no setting {', '.join(sorted(unknown))}")
    try:
        return kind(**settings)
    except TypeError as error:
        raise InputError(f"bad settings for {kind.name}: {error}") from None


def _as_plain(name: str, value: Any) -> Any:
    plain = value.to_dict() if isinstance(value, Pursuit) else value
    if not isinstance(plain, bool | int | float | str | list | tuple | dict | None):
        raise InputError(f"a file cannot hold the setting {name}, {value!r}: give numbers, words, or lists of them")
    return plain


def _settings(kind: type[Any]) -> list[str]:
    return [setting.name for setting in dataclasses.fields(kind) if setting.init]

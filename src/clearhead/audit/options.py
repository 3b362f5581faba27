"""The options of an audit: what it measures, and how. Each is written once, here, and nothing heavy is imported.

The command line, the arguments of `clearhead.audit`, their help and the manifest are made of these fields.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from clearhead.errors import AuditError, InputError

if TYPE_CHECKING:
    from clearhead.interfaces import AttentionSpec

__all__ = [
    "CONTROL_INPUTS", "AuditOptions", "Baseline", "Claims", "as_plain", "from_plain", "layer_numbers", "option",
    "takes_options",
]  # fmt: skip

CONTROL_INPUTS = 24
"""Number of inputs that controls are measured on: the first ones. The values of the model are measured on all inputs.

It is a multiple of the inputs that make a group."""
LARGEST = 2**63 - 1
Function = TypeVar("Function", bound=Callable[..., Any])


class Baseline(StrEnum):
    """The theories that are also measured on the model with fresh random weights."""

    AUTO = "auto"
    ALL = "all"
    NONE = "none"


class Claims(StrEnum):
    """The claims of each theory that are measured."""

    PRIMARY = "primary"
    ALL = "all"


def option(
    default: Any,
    help: str,
    typed: Any,
    *,
    python: str = "",
    flag: str = "",
    metavar: str | None = None,
    least: int | None = None,
    most: int = LARGEST,
    in_commands: Any = dataclasses.MISSING,
    added: bool = False,
) -> Any:
    """Return the field of an option.

    help: of the command line, and in Python together with `python`
    typed: what the command line and a manifest hold; flag: the name on the command line, if it is not the field's
    least, most: of a number
    in_commands: the default of commands, if it is another one
    added: whether manifests of earlier audits may lack the option, for which the default of commands holds
    """
    in_commands = default if in_commands is dataclasses.MISSING else in_commands
    told = {"help": help, "typed": typed, "python": python, "flag": flag, "metavar": metavar, "least": least}
    return field(default=default, metadata={**told, "most": most, "in_commands": in_commands, "added": added})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """What an audit measures, and how. `of` makes it of arguments; every value is checked."""

    theories: tuple[str, ...] = option(
        (), "A theory to test; can be repeated. Default: all.", list[str] | None, flag="--theory",
        python="Keys of theories, Theory objects, or one of them.",
        in_commands=None,
    )  # fmt: skip
    claims: Claims = option(
        Claims.PRIMARY,
        "The claims to measure: the primary ones, which decide whether a theory holds, or all, with further "
        "consequences and statistics as published. All take several times as long.",
        Claims,
        python="The primary ones include the statistics that verdicts require, and curves over depth.",
    )
    layers: tuple[int, ...] | None = option(
        None, "Layers to measure, in forward-pass order: 0,2,5 or 0-3. Default: all.", str | None,
        python="Also a collection of numbers.",
    )  # fmt: skip
    seed: int = option(0, "Seed of all random draws.", int, least=0)
    describe: "Path | tuple[AttentionSpec, ...]" = option(
        (),
        "TOML file that describes attention layers which no interface finds (docs/describing-a-model.md).",
        Path | None,
        python="Also a sequence of AttentionSpec.",
        in_commands=None,
    )
    allow_unseen: bool = option(False, "Continue if modules that look like attention are not captured.", bool)
    allow_swapped: bool = option(
        False, "Measure the other layers of a model with swapped operators, which theories are not about.", bool,
        added=True,
    )  # fmt: skip
    baseline: Baseline = option(
        Baseline.AUTO,
        "Also measure the model with fresh random weights: for the theories that need it (auto), "
        "for all theories, or for none.",
        Baseline,
        python="Also the model before training, or several draws of it; None for none. Each head of it is one more "
        "control for the same head. Theories that need a baseline need several draws, and are measured again on each "
        'with the norms of the model. "auto" draws five, if Clearhead can: for models of transformers and its own, '
        'without a swapped operator, and batches that are no iterator. "all" raises if it cannot.',
    )
    baseline_for: tuple[str, ...] | None = option(
        None, "A theory to compare with the baseline; can be repeated. Default: those that --baseline says.",
        list[str] | None, metavar="THEORY", python="The keys of theories, or one key; for given models all by default.",
        added=True,
    )  # fmt: skip
    loss: Callable[[Any, Any], Any] | str | None = option(
        None,
        "package.module:function of (output, batch) that returns a loss, for theories that need gradients. "
        "Runs its code.",
        str | None,
        python="Also the function. Only claims that are not primary need it.",
    )
    control_inputs: int = option(
        CONTROL_INPUTS, "Inputs that controls are measured on, the first ones.", int, least=0,
        python="Each head is compared with its controls on these; its own value and interval are over all inputs.",
        added=True,
    )  # fmt: skip
    device: str = option(
        "cpu",
        "Where theories compute, such as cuda; the model runs where it was loaded. Max margin and the coding rate "
        "always use the CPU.",
        str,
        metavar="DEVICE",
        python="Random numbers are drawn on the CPU, so they do not depend on it.",
        added=True,
    )
    # A command owns its process. A program in Python may hold threads and locks that do not survive a fork.
    workers: int | None = option(
        1,
        "Processes that measure theories while the model runs; 1 for none. By default one for each core, at most "
        "8, on Linux. The numbers do not depend on it, up to rounding.",
        int | None,
        least=1,
        most=255,
        python="In Python 1 by default, and None for one for each core: processes are forked.",
        in_commands=None,
        added=True,
    )

    def __post_init__(self) -> None:
        if self.layers is not None and not self.layers:
            raise AuditError("layers is empty, so there is nothing to measure; leave it out for all layers")
        if not 0 <= self.seed <= LARGEST:
            raise AuditError(f"the seed must be from 0 to {LARGEST}, not {self.seed}")
        if self.control_inputs < 0:
            raise AuditError(f"control_inputs is a number of inputs, not {self.control_inputs}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "AuditOptions":
        """Return the options of arguments, of which some may be left out.

        A command's text, a single theory and other collections than tuples are understood too.
        """
        known = {entry.name for entry in dataclasses.fields(cls)}
        if unknown := [name for name in values if name not in known]:
            raise TypeError(
                f"there is no option {unknown[0]!r} of an audit; its options are {', '.join(sorted(known))}"
            )
        return cls(**{name: _READ.get(name, _as_it_is)(value) for name, value in values.items()})

    @property
    def descriptions(self) -> "tuple[AttentionSpec, ...]":
        """The descriptions, which `usable_options` has read."""
        assert not isinstance(self.describe, Path)
        return self.describe

    @property
    def loss_function(self) -> Callable[[Any, Any], Any] | None:
        """The loss, which `usable_options` has imported."""
        assert not isinstance(self.loss, str)
        return self.loss

    def changed(self, values: Mapping[str, Any]) -> "AuditOptions":
        """Return the options with other values of some of them, in the forms of arguments."""
        return AuditOptions.of(
            {**{entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}, **values}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values. Descriptions and a function of Python are told, and cannot be read."""
        return as_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AuditOptions":
        """Return the options of plain values. Raise InputError if one cannot be used.

        Options that manifests of earlier audits do not have are those of a command.
        """
        return cls.of(from_plain(cls, values))


def layer_numbers(text: str, name: str = "--layers") -> tuple[int, ...]:
    """Return the layers of a list such as 0,2,5 or 0-3."""
    layers: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", item)
        if match is None:
            raise InputError(f"{name} takes numbers of at most four digits, such as 0,2,5 or 0-3, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f"{name} {item.strip()} runs backwards; give {last}-{first}")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))


def as_plain(options: Any) -> dict[str, Any]:
    """Return the options of a dataclass as plain values, with absolute paths."""
    values = {entry.name: getattr(options, entry.name) for entry in dataclasses.fields(options) if entry.metadata}
    return {name: _plain(name, value) for name, value in values.items()}


def from_plain(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a dataclass from plain values. Raise InputError if one is missing or cannot be used."""
    read = {}
    for entry in (entry for entry in dataclasses.fields(kind) if entry.metadata):
        told = entry.metadata
        value = values.get(entry.name, told["in_commands"] if told["added"] else dataclasses.MISSING)
        numbered = isinstance(value, int) and not isinstance(value, bool)
        if not _fits(value, told["typed"]) or (numbered and not (told["least"] or 0) <= value <= told["most"]):
            raise InputError(f"the manifest has no usable option {entry.name}; audit the model again")
        read[entry.name] = Path(value) if isinstance(value, str) and Path in _kinds(told["typed"]) else value
    return read


def _kinds(typed: Any) -> tuple[Any, ...]:
    return get_args(typed) if get_origin(typed) is types.UnionType else (typed,)


def _fits(value: Any, typed: Any) -> bool:
    """Return whether a plain value is what a command could have got."""
    return any(_is(value, kind) for kind in _kinds(typed))


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if issubclass(kind, StrEnum):
        return isinstance(value, str) and value in list(kind)
    return isinstance(value, str if kind is Path else kind)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Path):
        return str(value.absolute())
    if name == "layers" and value is not None:
        return ",".join(map(str, value))
    if name == "describe":
        return repr(list(value)) if value else None
    if isinstance(value, tuple):
        return list(value)
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__name__)}"
    return value


def _choice(kind: type[StrEnum], name: str, words: str) -> Callable[[Any], StrEnum]:
    def read(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in list(kind):
            raise AuditError(f"{name} is {words}, not {value!r}")
        return kind(value)

    return read


def _keys(value: Any) -> tuple[str, ...]:
    """Return the keys of theories that are given by keys or as objects, or of one of them."""
    given = (value,) if isinstance(value, str) or not isinstance(value, Iterable | None) else tuple(value or ())
    if all(isinstance(theory, str) for theory in given):
        return given
    from clearhead.theories.catalogue import key_of

    return tuple(theory if isinstance(theory, str) else key_of(theory) for theory in given)


def _layers(value: str | Iterable[int] | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    return layer_numbers(value) if isinstance(value, str) else tuple(sorted({int(number) for number in value}))


def _as_it_is(value: Any) -> Any:
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "theories": _keys,
    "claims": _choice(Claims, "claims", '"primary" or "all"'),
    "layers": _layers,
    "describe": lambda value: Path(value) if isinstance(value, str | Path) else tuple(value or ()),
    "baseline": _choice(Baseline, "the baseline", '"auto", "all", None, a model or several models'),
    "baseline_for": lambda value: None if value is None else _keys(value),
    "device": str,
}
"""How the values of arguments are read."""


def takes_options(function: Function) -> Function:
    """Give a function with `**options` the signature and the description of its options."""
    signature = inspect.signature(function)
    own = [entry for entry in signature.parameters.values() if entry.kind is not entry.VAR_KEYWORD]
    fields = dataclasses.fields(AuditOptions)
    parameters = [
        inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=entry.default, annotation=entry.type)
        for entry in fields
    ]
    function.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
    lines = (f"    {entry.name}: {entry.metadata['help']} {entry.metadata['python']}".rstrip() for entry in fields)
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n" + "\n".join(lines) + "\n    "
    return function

"""Records: plain values, as JSON and TOML have them, read as the type that the code annotates.

The annotations are the schema, and there is no other: a dataclass or a TypedDict says which keys its record has and
what their values are. A checksum shows only that a file is as it was written, not that Clearhead wrote it.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from clearhead.storage import DamagedFileError

__all__ = ["RecordError", "check_fields", "read_record"]

T = TypeVar("T")
MAX_WHOLE = 2**63
"""Whole numbers of a record have at most 64 bits."""
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}
_PLAIN = (*_NAMES, list, tuple, dict, Mapping, Sequence)


class RecordError(DamagedFileError):
    """Values that are not the record they should be."""


def read_record(kind: Callable[..., T], stored: Any, source: object, *, remedy: str, defaults: bool = False) -> T:
    """Return plain values as `kind`. Raise RecordError, naming `source`, the place and the remedy, if they are not.

    kind: a dataclass, TypedDict, Enum, Literal, Mapping, Sequence, dict, list, tuple, union or plain type, of such
        types; Any is any plain value
    defaults: whether keys may be missing for which a dataclass has a default, as in files that people write

    A dataclass has no other keys than its own; a TypedDict may, as it describes the part of a record that is used.
    Numbers are finite and whole numbers have at most 64 bits, also where the type is Any.
    """
    try:
        value: T = _read(kind, stored, "", defaults)
    except _MisfitError as error:
        raise RecordError(f"{source} cannot be read: {error}; {remedy}") from None
    return value


def check_fields(made: T, source: object, *, remedy: str) -> T:
    """Return a dataclass made of a record. Raise RecordError if a field is not what the class annotates.

    Numbers may be NaN or infinite. Instances of other classes are taken as they are.
    """
    kind: Any = type(made)
    hints, _, known = _schema(kind)
    for name in known:
        try:
            _read(hints[name], getattr(made, name), name, False)
        except _NotFiniteError:
            continue
        except _MisfitError as error:
            raise RecordError(f"{source} cannot be read: {error}; {remedy}") from None
    return made


class _MisfitError(Exception):
    """A value that is not what its place needs."""


class _NotFiniteError(_MisfitError):
    """A number that is NaN or infinite."""


def _read(kind: Any, value: Any, place: str, defaults: bool) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return _plain(value, place)
    base = origin or kind
    if isinstance(base, type) and base not in _PLAIN and not is_typeddict(base) and isinstance(value, base):
        return value  # made of a record before
    if origin in (Union, types.UnionType):
        return _one_of(kind, parts, value, place, defaults)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in parts):
            return value
        raise _misfit(place, value, " or ".join(map(repr, parts)))
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return _fields(kind, value, place, defaults)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if value in [str(member.value) for member in kind]:
            return kind(value)
        raise _misfit(place, value, " or ".join(repr(str(member.value)) for member in kind))
    if base in (list, tuple, Sequence):
        return _entries(base, parts, value, place, defaults)
    if base in (dict, Mapping):
        if not isinstance(value, dict):
            raise _misfit(place, value, "a table")
        entries = parts[1] if parts else Any  # keys are text
        return {key: _read(entries, entry, _at(place, key), defaults) for key, entry in value.items()}
    return _number_or_text(kind, value, place)


def _number_or_text(kind: Any, value: Any, place: str) -> Any:
    accepted = (int, float) if kind is float else kind
    if kind not in _NAMES or not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _misfit(place, value, _NAMES.get(kind, str(kind)))
    _plain(value, place)
    return float(value) if kind is float else value


def _one_of(kind: Any, parts: Sequence[Any], value: Any, place: str, defaults: bool) -> Any:
    """Read the first type of a union that fits. With one type besides None, its own message says what is wrong."""
    if value is None and type(None) in parts:
        return None
    # Functions are for callers: no file holds one.
    others = [part for part in parts if part is not type(None) and get_origin(part) is not Callable]
    for part in others[:-1]:
        try:
            return _read(part, value, place, defaults)
        except _MisfitError:
            continue
    return _read(others[-1], value, place, defaults)


def _entries(base: Any, parts: Sequence[Any], value: Any, place: str, defaults: bool) -> Any:
    if not isinstance(value, list | tuple):
        raise _misfit(place, value, "a list")
    fixed = base is tuple and parts[-1:] != (...,)
    if fixed and len(value) != len(parts):
        raise _misfit(place, value, f"a list of {len(parts)} values")
    kinds = parts if fixed else [parts[0] if parts else Any] * len(value)
    read = [_read(kind, entry, _at(place, number), defaults)
            for number, (kind, entry) in enumerate(zip(kinds, value, strict=True))]  # fmt: skip
    return tuple(read) if base is tuple else read


def _fields(kind: Any, value: Any, place: str, defaults: bool) -> Any:
    if not isinstance(value, dict):
        raise _misfit(place, value, "a table")
    hints, needed, known = _schema(kind)
    missing = [name for name in (needed if defaults else known) if name not in value]
    if missing:
        raise _MisfitError(f"{_at(place, missing[0])} is missing")
    if is_typeddict(kind):
        return {**value, **{name: _read(hints[name], value[name], _at(place, name), defaults) for name in known}}
    unknown = [name for name in value if name not in known]
    if unknown:
        raise _MisfitError(f"{_at(place, unknown[0])} is not known")
    read = {name: _read(hints[name], entry, _at(place, name), defaults) for name, entry in value.items()}
    try:
        return kind(**read)
    except ValueError as error:  # of its own checks
        raise _MisfitError(str(error)) from None


@functools.cache
def _schema(kind: Any) -> tuple[Mapping[str, Any], Sequence[str], Sequence[str]]:
    """Return the types of a class's keys, the keys without a default, and all keys."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, tuple(hints), tuple(hints)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    plain = dataclasses.MISSING
    needed = tuple(field.name for field in fields if field.default is plain and field.default_factory is plain)
    return hints, needed, tuple(field.name for field in fields)


def _plain(value: Any, place: str) -> Any:
    """Return a value whose numbers are finite and not too long."""
    if isinstance(value, int) and not -MAX_WHOLE <= value < MAX_WHOLE:
        raise _MisfitError(f"{place or 'it'} is a number of more than 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise _NotFiniteError(f"{place or 'it'} is {value}, not a finite number")
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _plain(entry, place)
    return value


def _at(place: str, step: Any) -> str:
    name = str(step)[:40]
    return f"{place}.{name}" if place else name


def _misfit(place: str, value: Any, expected: str) -> _MisfitError:
    got = {dict: "a table", list: "a list", tuple: "a list", type(None): "nothing"}.get(type(value))
    return _MisfitError(f"{place or 'it'} is {got or repr(value)[:60]}, expected {expected}")

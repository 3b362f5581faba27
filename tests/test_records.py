"""Plain values are read as the type that is annotated, or refused with their place."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from clearhead.errors import InputError
from clearhead.records import RecordError, check_fields, read_record


class Kind(StrEnum):
    """Two words."""

    ONE = "one"
    TWO = "two"


@dataclass(frozen=True)
class Inner:
    """A record with its own check."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if self.share > 1:
            raise InputError(f"a share is at most 1, not {self.share}")


@dataclass(frozen=True)
class Outer:
    """A record of every kind of value."""

    name: str
    count: int
    inner: Inner
    pair: tuple[int, str]
    words: tuple[str, ...] = ()
    numbers: Sequence[float] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    kind: Kind = Kind.ONE
    choice: Literal["a", 1] = "a"
    maybe: int | None = None
    either: str | float = ""
    plain: Any = None
    flag: bool = False


class Used(TypedDict):
    """The part of a record that is used."""

    name: str


WHOLE: dict[str, Any] = {
    "name": "x", "count": 3, "inner": {"share": 1}, "pair": [1, "b"], "words": ["u", "v"], "numbers": [1, 2.5],
    "table": {"t": 2}, "kind": "two", "choice": 1, "maybe": 4, "either": 0.25, "plain": {"p": [1]}, "flag": True,
}  # fmt: skip


def read(kind: Any, stored: Any, **options: Any) -> Any:
    """Read a record of the file it.json."""
    return read_record(kind, stored, "it.json", remedy="write it again", **options)


def test_every_kind_of_value_is_read() -> None:
    made = read(Outer, WHOLE)
    assert made == Outer(
        "x", 3, Inner(1.0), (1, "b"), ("u", "v"), [1.0, 2.5], {"t": 2}, Kind.TWO, 1, 4, 0.25, {"p": [1]}, True
    )
    assert type(made.inner.share) is float
    assert read(Outer, {**WHOLE, "maybe": None}).maybe is None
    assert read(Outer, {**WHOLE, "either": "text"}).either == "text"
    short = {name: WHOLE[name] for name in ("name", "count", "inner", "pair")}
    assert read(Outer, short, defaults=True) == Outer("x", 3, Inner(1.0), (1, "b"))
    assert read(Used, {"name": "x", "other": 1}) == {"name": "x", "other": 1}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("name", 3, "name is 3, expected text"), ("name", None, "name is nothing, expected text"),
        ("count", True, "count is True, expected a whole number"), ("count", 2**63, "count is a number of more"),
        ("count", 1.0, "count is 1.0, expected a whole number"), ("inner", [], "inner is a list, expected a table"),
        ("count", -(2**63) - 1, "count is a number of more"), ("inner", {"share": True}, "inner.share is True"),
        ("inner", {"share": math.nan}, "inner.share is nan, not a finite"), ("inner", {}, "inner.share is missing"),
        ("inner", {"share": 2}, "a share is at most 1"), ("inner", {"share": 1, "run": 2}, "inner.run is not known"),
        ("pair", [1], "pair is a list, expected a list of 2 values"), ("pair", ["b", 1], "pair.0 is 'b'"),
        ("words", "uv", "words is 'uv', expected a list"), ("words", ["u", 1], "words.1 is 1, expected text"),
        ("numbers", [math.inf], "numbers.0 is inf"), ("table", [["t", 2]], "table is a list, expected a table"),
        ("table", {"t": "2"}, "table.t is '2'"), ("kind", "three", "kind is 'three', expected 'one' or 'two'"),
        ("kind", ["one"], "kind is a list"), ("choice", True, "choice is True, expected 'a' or 1"),
        ("maybe", "4", "maybe is '4', expected a whole number"), ("either", [], "either is a list"),
        ("plain", {"p": [2**64]}, "number of more than 64 bits"), ("plain", [math.nan], "not a finite number"),
        ("flag", 1, "flag is 1, expected true or false"), ("unknown", 1, "unknown is not known"),
    ],
)  # fmt: skip
def test_other_values_are_refused_with_their_place(name: str, value: Any, message: str) -> None:
    with pytest.raises(RecordError, match=r"it\.json cannot be read: .*; write it again") as error:
        read(Outer, {**WHOLE, name: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("stored", [None, [], "x", 3])
@pytest.mark.parametrize("kind", [Outer, Used])
def test_what_is_no_table_is_refused(kind: Any, stored: Any) -> None:
    with pytest.raises(RecordError, match=r"it is .*, expected a table"):
        read(kind, stored)


def test_missing_keys_need_a_default_and_permission() -> None:
    with pytest.raises(RecordError, match="words is missing"):
        read(Outer, {name: value for name, value in WHOLE.items() if name != "words"})
    with pytest.raises(RecordError, match="count is missing"):
        read(Outer, {"name": "x"}, defaults=True)
    with pytest.raises(RecordError, match="name is missing"):
        read(Used, {}, defaults=True)


@dataclass
class Made:
    """Made of a record: arrays and instances of classes are no plain values."""

    inner: Inner
    values: NDArray[np.float64]
    share: float = 0.0
    names: tuple[str, ...] = ()


def test_fields_of_what_was_made_are_checked_and_may_be_nan() -> None:
    made = Made(Inner(), np.zeros(2), math.nan, ("a",))
    assert check_fields(made, "it.json", remedy="write it again") is made
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"inner": {}}, "inner"), ({"values": [0.0]}, "values"), ({"share": "x"}, "share is 'x'"),
        ({"names": "a"}, "names is 'a', expected a list"), ({"names": (1,)}, "names.0 is 1"),
        ({"share": math.nan, "names": 3}, "names is 3"),
    ]  # fmt: skip
    for change, message in wrong:
        fields = {"inner": Inner(), "values": np.zeros(2), **change}
        with pytest.raises(RecordError, match=message):
            check_fields(Made(**fields), "it.json", remedy="write it again")

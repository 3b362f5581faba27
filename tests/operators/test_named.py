"""Operators by name: what may have one, and what a file may hold of it."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from clearhead.errors import InputError
from clearhead.operators import OPERATORS, NamedOperator, Symmetric, operator_from_dict, operator_to_dict
from clearhead.operators.named import is_named
from clearhead.operators.requirements import requirements_of, resolve_operator


@dataclass(frozen=True, kw_only=True)
class Values(NamedOperator):
    """The values themselves."""

    name = "values"
    share: Any = 1.0
    needed: Any = field(default=None)

    def __call__(self, q: Any, k: Any, v: Any, *, mask: Any = None, scale: Any = None) -> Any:
        return self.share * v


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the operator for a test."""
    monkeypatch.setattr(OPERATORS, "_registered", {})
    OPERATORS.register("values", Values)


def test_own_operators_have_their_names() -> None:
    assert OPERATORS.names() == ["softmax", "symmetric", "clamped", "rpc", "scaled", "values"]
    assert [OPERATORS.get(name).name for name in OPERATORS.names()] == OPERATORS.names()


def test_a_registered_operator_is_found_by_name_and_converts() -> None:
    assert resolve_operator("values") == Values()
    stored = operator_to_dict(Values(share=0.5))
    assert stored == {"operator": "values", "share": 0.5, "needed": None}
    assert operator_from_dict(stored) == Values(share=0.5)
    needs = requirements_of(Values())
    assert (needs.name, needs.square, needs.needs_past_queries, needs.uses_queries) == ("values", False, False, True)
    assert (needs.takes, needs.plain) == (frozenset(), False)


def test_a_class_with_the_name_of_another_cannot_be_saved() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Impostor(NamedOperator):
        name = "symmetric"

    assert is_named(Symmetric())
    assert not is_named(Impostor())
    with pytest.raises(InputError, match=r"only named operators .*docs/howto/extend\.md"):
        operator_to_dict(Impostor())


@pytest.mark.parametrize("value", [torch.ones(2), len, object()])
def test_a_setting_that_a_file_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="cannot hold the setting share"):
        operator_to_dict(Values(share=value))


@pytest.mark.parametrize("unit", [Values, Values(), len, int, type("Bare", (), {"name": "bare"})])
def test_what_is_no_named_operator_is_refused(unit: Any) -> None:
    with pytest.raises(InputError, match="a NamedOperator, a dataclass with the name bare"):
        OPERATORS.register("bare", unit)

"""The checker of the typed session checks as beartype does, wherever and however often a function is defined."""

from collections.abc import Callable

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from torch import Tensor

from clearhead.shapes import Float
from tests import annotations

typed = jaxtyped(typechecker=annotations.checked)


def transposed(width: int) -> Callable[[Tensor], Tensor]:
    """A nested function, which is defined again in each call."""

    @typed
    def swap(x: Float[Tensor, "n d"]) -> Float[Tensor, "d n"]:  # noqa: F722
        return x.mT[..., :width]

    return swap


def test_every_definition_is_checked_separately() -> None:
    x = torch.ones(3, 5)
    for _ in range(3):
        assert transposed(3)(x).shape == (5, 3)
        with pytest.raises(TypeCheckError, match="return value"):
            transposed(2)(x)
        with pytest.raises(TypeCheckError, match="parameters"):
            transposed(3)(x[0])


def test_the_same_name_with_other_annotations_is_another_function() -> None:
    def named(annotation: type) -> Callable[..., object]:
        @typed
        def one(x: annotation) -> annotation:
            return x

        return one

    for right, wrong in ((1, "a"), ("a", 1)) * 2:
        assert named(type(right))(right) == right
        with pytest.raises(TypeCheckError):
            named(type(right))(wrong)


def test_other_kinds_of_arguments_are_another_function() -> None:
    def named(by_name: bool) -> Callable[..., int]:
        if by_name:

            @typed
            def one(x: int, *, y: int) -> int:
                return x - y
        else:

            @typed
            def one(x: int, y: int) -> int:
                return x - y

        return one

    for _ in range(2):
        assert (named(True)(2, y=1), named(False)(2, 1)) == (1, 1)


def test_beartype_is_called_once_per_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        asked.append(function.__name__)
        return beartype(function)

    monkeypatch.setattr(annotations, "beartype", counted)
    monkeypatch.setattr(annotations, "_CHECKED", {})
    for given in (2, 3, 5):

        @typed
        def plain(x: int) -> int:
            return x

        @typed
        def with_default(x: int = given) -> int:
            return x

        @annotations.checked
        def enclosing(x: int) -> int:
            return x + given  # noqa: B023

        assert (plain(1), with_default(), enclosing(1)) == (1, given, 1 + given)
    # Twice for a function: its arguments alone, and with what it returns.
    assert {name: asked.count(name) for name in asked} == {"plain": 2, "with_default": 6, "enclosing": 3}

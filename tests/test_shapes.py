import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.spectrum import Features, captured_fraction, centred
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import ShapeError, all_finite, check_attention_operands

SHAPES = {"q": (2, 3, 5, 11), "k": (2, 3, 7, 11), "v": (2, 3, 7, 13)}


def operands(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.zeros(shape) for name, shape in {**SHAPES, **shapes}.items()}


def test_operands_that_fit_are_accepted() -> None:
    check_attention_operands(**operands())
    check_attention_operands(**operands(q=(5, 11), k=(7, 11), v=(7, 13)))
    check_attention_operands(**operands(q=(0, 3, 5, 11), k=(0, 3, 7, 11), v=(0, 3, 7, 13)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"q": (2, 3, 5, 13)},
        {"k": (2, 3, 7, 13)},
        {"k": (2, 3, 5, 11)},
        {"v": (2, 3, 5, 13)},
        {"q": (3, 2, 5, 11)},
        {"k": (3, 7, 11)},
        {"v": (1, 3, 7, 13)},
        {"q": (11,)},
        {"v": (13,)},
        {"k": ()},
    ],
    ids=str,
)
def test_operands_that_do_not_fit_are_all_named(wrong: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ShapeError) as error:
        check_attention_operands(**operands(**wrong))
    message = str(error.value)
    assert message.startswith("expected q (..., n, d), k (..., m, d), v (..., m, e)")
    for name, shape in {**SHAPES, **wrong}.items():
        assert f"{name} {shape}" in message


FITTING = [(), (7,), (1,), (5, 7), (5, 1), (1, 7), (3, 5, 7), (1, 5, 7), (2, 3, 5, 7), (2, 1, 1, 7)]
NOT_FITTING = [(5,), (7, 5), (2, 7), (2, 5, 7), (3, 3, 5, 7), (1, 2, 3, 5, 7), (0,)]


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("shape", FITTING, ids=str)
def test_masks_and_biases_that_broadcast_are_accepted(name: str, shape: tuple[int, ...]) -> None:
    extra = torch.ones(shape, dtype=torch.bool if name == "mask" else torch.float32)
    assert extra.expand(2, 3, 5, 7).shape == (2, 3, 5, 7)
    check_attention_operands(**operands(), **{name: extra})


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("shape", NOT_FITTING, ids=str)
def test_masks_and_biases_that_do_not_broadcast_are_refused(name: str, shape: tuple[int, ...]) -> None:
    extra = torch.ones(shape, dtype=torch.bool if name == "mask" else torch.float32)
    with pytest.raises(ShapeError) as error:
        check_attention_operands(**operands(), **{name: extra})
    for part in (f"expected {name} to broadcast to (..., n, m) = (2, 3, 5, 7)", f"{name} {shape}", "q (2, 3, 5, 11)"):
        assert part in str(error.value)


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), min_size=2, max_size=4))
def test_accepted_broadcasts_are_those_that_torch_expands(shape: list[int], scores: list[int]) -> None:
    *leading, n, m = scores
    fitting = {"q": (*leading, n, 11), "k": (*leading, m, 11), "v": (*leading, m, 13)}
    mask = torch.ones(shape, dtype=torch.bool)
    try:
        mask.expand(scores)
    except RuntimeError:
        with pytest.raises(ShapeError):
            check_attention_operands(**operands(**fitting), mask=mask)
    else:
        check_attention_operands(**operands(**fitting), mask=mask)


def test_dtypes_are_checked() -> None:
    fitting = operands()
    mask, bias = torch.ones(5, 7, dtype=torch.bool), torch.zeros(5, 7)
    check_attention_operands(**fitting, mask=mask, bias=bias)
    cases = {
        "one floating dtype; got q torch.float32, k torch.float64": {**fitting, "k": fitting["k"].double()},
        "one floating dtype; got q torch.int64": {name: x.long() for name, x in fitting.items()},
        "boolean mask, True where a key is visible; got a mask of torch.float32": {**fitting, "mask": mask.float()},
        "floating additive bias; got a bias of torch.bool": {**fitting, "bias": mask},
    }
    for message, wrong in cases.items():
        with pytest.raises(ValueError, match=message) as error:
            check_attention_operands(**wrong)
        assert not isinstance(error.value, ShapeError)


def test_devices_are_checked() -> None:
    fitting = operands()
    with pytest.raises(ValueError, match="one device; got q cpu, k meta, v cpu"):
        check_attention_operands(**{**fitting, "k": fitting["k"].to("meta")})
    for name, extra in (("mask", torch.ones(5, 7, dtype=torch.bool)), ("bias", torch.zeros(5, 7))):
        with pytest.raises(ValueError, match=f"one device; got q cpu, {name} meta"):
            check_attention_operands(**fitting, **{name: extra.to("meta")})


def test_a_shape_error_is_a_value_error() -> None:
    assert issubclass(ShapeError, ValueError)


def test_the_import_hook_checks_shapes_in_its_session_and_not_as_shipped(typechecked: bool) -> None:
    """Features of other vectors than their lengths are nonsense that computes."""
    pivots = torch.zeros(2, 7, dtype=torch.long)
    fitting = Features(direction=torch.ones(2, 5, 7), log_norm=torch.zeros(2, 5), pivots=pivots)
    assert captured_fraction(centred(fitting.direction), torch.eye(7)).shape == (2,)
    if typechecked:
        from jaxtyping import TypeCheckError

        with pytest.raises(TypeCheckError, match="log_norm"):
            Features(direction=torch.ones(2, 5, 7), log_norm=torch.zeros(2, 3), pivots=pivots)
        with pytest.raises(TypeCheckError, match="rows"):
            centred(torch.zeros(5))
    else:
        wrong = Features(direction=torch.ones(2, 5, 7), log_norm=torch.zeros(2, 3), pivots=pivots)
        assert wrong.log_norm.shape == (2, 3)
        with pytest.raises(IndexError):
            centred(torch.zeros(5))


def test_shape_errors_come_from_our_checks_or_from_the_import_hook(typechecked: bool) -> None:
    wrong = operands(k=(2, 3, 7, 13))
    if typechecked:
        from jaxtyping import TypeCheckError

        with pytest.raises(TypeCheckError):
            softmax_attention(**wrong)
    else:
        with pytest.raises(ShapeError, match=r"got q \(2, 3, 5, 11\), k \(2, 3, 7, 13\), v \(2, 3, 7, 13\)"):
            softmax_attention(**wrong)
    assert softmax_attention(**operands()).shape == (2, 3, 5, 13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_finite_finds_one_entry_and_accepts_sums_that_overflow(dtype: torch.dtype) -> None:
    x = torch.full((3, 5, 7), torch.finfo(dtype).max, dtype=dtype).mT
    assert not x.sum().isfinite()
    assert all_finite(x)
    assert all_finite(x[:0])
    assert all_finite(torch.zeros(3, dtype=dtype))
    for entries in ((math.nan,), (math.inf,), (-math.inf,), (math.inf, -math.inf)):
        y = torch.zeros(3, 5, 7, dtype=dtype)
        y[1, 2, 3 : 3 + len(entries)] = torch.tensor(entries, dtype=dtype)
        assert not all_finite(y)

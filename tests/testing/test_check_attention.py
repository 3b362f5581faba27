"""check_attention: third-party operators and modules, its output, its errors, and its lack of side effects."""

import copy
import functools
import re

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.modules import MultiHeadAttention, ScaledAttention
from clearhead.operators import (
    AlphaSymmetric,
    Scaled,
    general_attention,
    scaled_attention,
    softmax_attention,
)
from clearhead.operators.scaled import slow_scaled_attention
from clearhead.operators.softmax import slow_softmax_attention
from clearhead.testing import OPERATOR_CHECKS as CHECKS
from clearhead.testing import Check, ContractResult, NotChecked
from clearhead.testing.operator_checks import MASK_CHECKS, REFERENCE_CHECKS
from tests.testing import broken_modules as broken
from tests.testing import test_operator_checks as operators

check = functools.partial(ch.check_attention, show=False, compile=False)


def failures(result: ContractResult) -> set[str]:
    return {check.name for check in result.failed}


def not_checked(result: ContractResult) -> set[str]:
    return {one.name for one in result.not_checked}


def within_one_sequence(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    return scaled_attention(q, k, v, s=AlphaSymmetric(0.5), mask=mask)


OURS = {
    "softmax": (softmax_attention, {"strict_errors": True}),
    "softmax with its reference": (
        softmax_attention,
        {"reference": slow_softmax_attention, "strict_errors": True},
    ),
    "general": (general_attention, {}),
    "scaled, learned": (Scaled(form="asymmetric").build(), {"square": True}),
    "scaled, one length": (
        Scaled(form="matrix", num_tokens=5, num_heads=3).build(),
        {"square": True, "skip": ["single_token", "gradients", "leading_axes", "mismatched_shapes"]},
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_our_operators_pass(name: str) -> None:
    operator, options = OURS[name]
    result = check(operator, **options)
    assert failures(result) == set()
    assert result.passed
    left = {"compile"} | (set() if "reference" in options else REFERENCE_CHECKS.keys()) | set(options.get("skip", ()))
    assert not_checked(result) == left


WITHOUT_REFERENCE = {
    operators.mask_ignored: {"hidden_keys", "causality", "fully_masked_rows", "wrong_masks"},
    operators.nan_without_keys: {"fully_masked_rows", "half_range"},
    operators.noisy: {"determinism", "vmap"},
    operators.without_gradient: {"single_token", "gradients", "determinism", "empty_batch", "fully_masked_rows",
                                 "hidden_keys"},
    operators.keys_without_gradient: {"gradients"},
    operators.always_single: {"gradients", "leading_axes", "wrong_dtypes"},
    operators.half_returns_single: {"dtype_ladder"},
    operators.squeezed: {"single_token"},
    operators.in_place: {"inputs_untouched", "fully_masked_rows", "gradients", "non_contiguous", "vmap"},
    operators.mean_over_batch: {"batch_independence", "dtype_ladder", "fully_masked_rows", "leading_axes",
                                "hidden_keys", "single_token", "vmap"},
    operators.missing_scale: set(),
}  # fmt: skip
"""The checks that each operator fails without a reference. Another formula cannot be detected then."""


@pytest.mark.parametrize("operator", WITHOUT_REFERENCE, ids=lambda operator: operator.__name__)
def test_broken_operators_are_found_without_a_reference(operator, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some operands before the operators can")
    result = check(operator)
    assert failures(result) == WITHOUT_REFERENCE[operator]
    assert not_checked(result) >= REFERENCE_CHECKS.keys()


def test_another_formula_is_found_by_a_reference_and_not_called_right_without_one() -> None:
    assert "reference_float64" in failures(check(operators.missing_scale, reference=slow_softmax_attention))
    alone = check(operators.missing_scale)
    assert alone.passed
    assert not_checked(alone) >= REFERENCE_CHECKS.keys()
    assert "not checked: reference_float64" in str(alone)


def test_masks_are_found_in_the_signature() -> None:
    def maskless(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return softmax_attention(q, k, v)

    assert not_checked(check(maskless)) >= MASK_CHECKS.keys()
    assert not_checked(check(torch.nn.functional.scaled_dot_product_attention)) >= MASK_CHECKS.keys()
    assert not not_checked(check(functools.partial(softmax_attention, scale=1.0))) & {"causality"}
    assert "causality" in failures(check(operators.mask_ignored))
    assert "causality" not in failures(check(operators.mask_ignored, masks=False))


def test_error_messages_are_checked_only_on_request() -> None:
    def crude(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v

    assert failures(check(crude)) == {"half_range"}
    assert failures(check(crude, strict_errors=True)) == {"half_range", "mismatched_shapes", "wrong_dtypes"}


class Wrapped(nn.Module):
    """torch's module as a user wraps it; it also returns weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x, key_padding_mask=key_padding_mask)


class WrappedTheOtherWay(Wrapped):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().forward(x, key_padding_mask=None if key_padding_mask is None else ~key_padding_mask)


def test_torchs_module_and_its_mask_polarity() -> None:
    assert failures(check(Wrapped())) == {"fully_hidden"}  # torch gives NaN for rows without visible keys
    wrong = check(WrappedTheOtherWay())
    assert "key_mask" in failures(wrong)
    assert "key_padding_mask is False at tokens" in str(wrong)


def test_facts_that_are_neither_right_nor_wrong() -> None:
    assert any("give permuted outputs" in fact for fact in check(broken.Right()).observed)
    assert any("do not give permuted outputs" in fact for fact in check(broken.Positions()).observed)
    assert any("tokens see later tokens" in fact for fact in check(broken.Right()).observed)


def test_input_layouts_are_recognised_by_their_shape() -> None:
    layer = ScaledAttention(12, num_heads=3, form="matrix", num_tokens=5)
    assert failures(check(layer)) == {"output"}
    assert "S is for 5 tokens and there are 7" in check(layer).failed[0].detail
    assert check(layer, shape=(2, 5, 12), skip=["single_token"]).passed
    images = check(ch.modules.SpatialAttention(11), shape=(2, 11, 2, 3))
    assert images.passed
    assert not_checked(images) >= {"key_mask", "single_token", "causal"}


def test_the_check_leaves_no_trace() -> None:
    module = MultiHeadAttention(12, num_heads=3).train()
    module.out.weight.grad = torch.ones_like(module.out.weight)
    module.key.weight.requires_grad_(False)
    before, numbers = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    with torch.no_grad():
        assert check(module).passed
        assert check(broken.AlwaysDropsOut()).failed
    numbers_after_drawing = torch.get_rng_state()
    broken.AlwaysDropsOut()
    assert not torch.equal(numbers_after_drawing, torch.get_rng_state())  # control: creating one draws numbers
    torch.set_rng_state(numbers)
    broken.AlwaysDropsOut()
    assert torch.equal(numbers_after_drawing, torch.get_rng_state())  # the check draws none from the global generator
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.out.weight.dtype is torch.float32
    assert torch.equal(module.out.weight.grad, torch.ones_like(module.out.weight))
    assert not module.key.weight.requires_grad
    assert not any(module._forward_hooks)


def test_a_module_whose_copy_is_itself_is_unchanged() -> None:
    module = broken.CopyOfItself()
    assert failures(check(module)) == {"copy"}
    assert module.out.weight.dtype is torch.float32


def test_an_operator_that_cannot_be_copied_is_a_result() -> None:
    class Uncopied(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return softmax_attention(q, k, v)

        def __deepcopy__(self, memory: dict) -> nn.Module:
            raise TypeError("there is one only")

    result = check(Uncopied())
    assert [(one.name, one.detail) for one in result.checks] == [("copy", "TypeError: there is one only")]
    assert not_checked(result) == CHECKS.keys()


def test_failures_are_printed_and_the_rest_is_summarised(capsys: pytest.CaptureFixture[str]) -> None:
    result = ch.check_attention(broken.LooksAhead(), compile=False)
    printed = capsys.readouterr().out
    assert printed == f"{result}\n"
    lines = printed.splitlines()
    assert lines[0] == "LooksAhead: 1 of 18 checks fail"
    assert lines[1].startswith("  causal  tokens from 1 on changed outputs before them by ")
    assert lines[2].startswith("passed: output, ")
    assert "not checked: compile (compile=False)" in lines
    check(broken.LooksAhead())
    assert capsys.readouterr().out == ""


def test_the_text_of_a_result() -> None:
    result = ContractResult(
        subject="mine",
        checks=(Check("output", passed=True), Check("causal", passed=False, detail=f"{'x' * 200}\nmore")),
        not_checked=(NotChecked("compile", "why"), NotChecked("copy", "why"), NotChecked("key_mask", "why not")),
        observed=("it rains",),
    )
    assert str(result).splitlines() == [
        "mine: 1 of 2 checks fail",
        f"  causal  {'x' * 97}...",
        "passed: output",
        "not checked: compile, copy (why)",
        "not checked: key_mask (why not)",
        "observed: it rains",
    ]
    narrow = result.in_columns(23).splitlines()
    assert max(len(line) for line in narrow) == 23
    assert narrow[:2] == ["mine: 1 of 2 checks", "    fail"]
    assert "".join("".join(narrow).split()) == "".join(str(result).split())
    assert not result.passed
    assert not ContractResult(subject="nothing", checks=()).passed


def no_tokens(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        (7, {}, "expected an operator, called with .* or a module, called with .*; got 7"),
        (MultiHeadAttention, {}, "got the class MultiHeadAttention: pass an instance"),
        (no_tokens, {}, r"no_tokens is called with \(x\): wrap it"),
        (nn.MultiheadAttention(12, 3), {}, r"MultiheadAttention is called with \(query, key, value\): wrap it"),
        (softmax_attention, {"shape": (2, 7, 11)}, "shape: not an option for an operator"),
        (
            broken.Right(),
            {"reference": softmax_attention, "square": True},
            "reference, square: not an option",
        ),
        (softmax_attention, {"skip": ["no_such_check"]}, r"among output, .*got \['no_such_check'\]"),
        (broken.Right(), {"skip": ["no_such_check"]}, r"among output, .*got \['no_such_check'\]"),
    ],
)
def test_bad_arguments_raise_with_a_message(attention: object, options: dict, message: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of these before the function can")
    with pytest.raises(ValueError, match=message):
        check(attention, **options)


def test_a_mask_that_is_not_accepted_is_named() -> None:
    def fussy(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
        if mask is not None and mask.ndim < 2:
            raise IndexError("too few axes")
        return softmax_attention(q, k, v, mask=mask)

    failed = {one.name: one.detail for one in check(fussy).failed}
    assert list(failed) == ["mask_shapes"]
    assert re.fullmatch(r"mask of shape \(\d+,\): IndexError: too few axes", failed["mask_shapes"])


def test_any_error_of_an_attention_is_a_result() -> None:
    def raises(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError("not yet")

    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("not yet")

    # Any error counts as a refusal.
    refusals = {"mismatched_shapes", "wrong_dtypes", "wrong_masks"}
    assert failures(check(raises)) == CHECKS.keys() - REFERENCE_CHECKS.keys() - refusals - {"compile"}
    assert "NotImplementedError: not yet" in check(Raises()).failed[0].detail


def test_scaled_attention_and_its_reference_within_one_sequence() -> None:
    slow = functools.partial(slow_scaled_attention, s=AlphaSymmetric(0.5))
    result = check(within_one_sequence, reference=slow, square=True, skip=["mismatched_shapes"])
    assert result.passed
    assert not result.not_checked or not_checked(result) == {"compile", "mismatched_shapes"}

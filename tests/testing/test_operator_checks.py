"""Every check of the operator contract fails for some operator with one flaw."""

import dataclasses
import functools
import math

import pytest
import torch
from torch import Tensor

from clearhead.operators.softmax import slow_softmax_attention, softmax_attention
from clearhead.shapes import check_attention_operands
from clearhead.testing import OPERATOR_CHECKS as CHECKS
from clearhead.testing import Check, ContractResult, check_attention
from clearhead.testing.operator_checks import MASK_CHECKS


def weights_of(q: Tensor, k: Tensor, mask: Tensor | None = None, *, dim: int = -1, hidden: float = -math.inf) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores if mask is None else scores.masked_fill(~mask, hidden)).softmax(dim=dim)


def missing_scale(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask, scale=1.0)


def transposed(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask).mT


def transposed_and_reshaped(q, k, v, *, mask=None):
    out = softmax_attention(q, k, v, mask=mask)
    return out.mT.reshape(out.shape)


def softmax_over_queries(q, k, v, *, mask=None):
    return weights_of(q, k, mask, dim=-2) @ v


def mask_ignored(q, k, v, *, mask=None):
    return softmax_attention(q, k, v)


def mask_inverted(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=None if mask is None else ~mask)


def mask_of_first_head(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask if mask is None or mask.ndim < 4 else mask[:, :1])


def mask_not_broadcast(q, k, v, *, mask=None):
    if mask is not None and mask.ndim < 2:
        raise ValueError("expected a mask of at least two axes")
    return softmax_attention(q, k, v, mask=mask)


def mask_of_large_numbers(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, bias=None if mask is None else torch.where(mask, 0.0, -1e4).to(q.dtype))


def looks_ahead_a_little(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask) + 1e-6 * v.mean(dim=-2, keepdim=True)


def nan_without_keys(q, k, v, *, mask=None):
    return weights_of(q, k, mask) @ v


def nan_gradient_without_keys(q, k, v, *, mask=None):
    out = nan_without_keys(q, k, v, mask=mask)
    return out if mask is None else torch.where(mask.any(dim=-1, keepdim=True), out, 0)


def mean_without_keys(q, k, v, *, mask=None):
    return weights_of(q, k, mask, hidden=-1e30) @ v


def constant(q, k, v, *, mask=None):
    return (0 * softmax_attention(q, k, v, mask=mask)) + 1


def uniform(q, k, v, *, mask=None):
    return softmax_attention(0 * q, k, v, mask=mask)


def noisy(q, k, v, *, mask=None):
    out = softmax_attention(q, k, v, mask=mask)
    return out * (1 + torch.finfo(out.dtype).eps * torch.randint_like(out, 3))


def without_gradient(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask).detach()


def keys_without_gradient(q, k, v, *, mask=None):
    return softmax_attention(q, k.detach(), v, mask=mask)


def always_single(q, k, v, *, mask=None):
    return softmax_attention(q.float(), k.float(), v.float(), mask=mask).to(q.dtype)


def single_in_half(q, k, v, *, mask=None):
    if q.dtype is not torch.float32:
        return softmax_attention(q, k, v, mask=mask)
    return softmax_attention(q.half(), k.half(), v.half(), mask=mask).float()


def half_returns_single(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask).to(torch.promote_types(q.dtype, torch.float32))


def half_overflows(q, k, v, *, mask=None):
    return nan_without_keys(q, k, v, mask=mask)


def squeezed(q, k, v, *, mask=None):
    return softmax_attention(q, k, v, mask=mask).squeeze(-2)


def global_maximum(q, k, v, *, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = (scores - scores.max()).exp()
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def mean_over_batch(q, k, v, *, mask=None):
    return softmax_attention(q, k, v - v.mean(dim=0, keepdim=True) if v.ndim == 4 else v, mask=mask)


def viewed(q, k, v, *, mask=None):
    flat = [x.view(-1, *x.shape[-2:]) for x in (q, k, v)]
    return softmax_attention(*flat).reshape(*q.shape[:-1], v.shape[-1])


def four_axes_only(q, k, v, *, mask=None):
    check_attention_operands(q, k, v, mask=mask)
    return torch.einsum("bhnm,bhme->bhne", weights_of(q, k, mask), v)


def in_place(q, k, v, *, mask=None):
    out = softmax_attention(q, k, v, mask=mask)
    with torch.no_grad():
        k.mul_(2)
    return out


def looks_at_numbers(q, k, v, *, mask=None):
    if q.sum().item() == 0:
        return torch.zeros_like(q)
    return softmax_attention(q, k, v, mask=mask)


def looks_at_the_mask(q, k, v, *, mask=None):
    if mask is not None and mask.all():
        mask = None
    return softmax_attention(q, k, v, mask=mask)


def crude_errors(q, k, v, *, mask=None):
    assert q.shape[-1] == k.shape[-1]
    return nan_without_keys(q, k, v, mask=mask)


def speechless_errors(q, k, v, *, mask=None):
    try:
        check_attention_operands(q, k, v, mask=mask)
    except ValueError as error:
        raise type(error)("these operands do not fit") from None
    return softmax_attention(q, k, v, mask=mask)


def accepts_anything(q, k, v, *, mask=None):
    mask = None if mask is None else mask.bool()
    return softmax_attention(q.double(), k.double(), v.double(), mask=mask).to(q.dtype)


BROKEN = {
    missing_scale: {"reference_float64", "reference_float32", "reference_gradients", "dtype_ladder", "leading_axes"},
    transposed: {"output", "reference_float64", "single_token"},
    transposed_and_reshaped: {"reference_float64", "reference_gradients"},
    softmax_over_queries: {"reference_float64", "reference_float32", "reference_gradients"},
    mask_ignored: {"padding_mask", "causal_mask", "boolean_mask", "hidden_keys", "causality"},
    mask_inverted: {"padding_mask", "causal_mask", "boolean_mask", "fully_masked_rows", "causality"},
    mask_of_first_head: {"boolean_mask"},
    mask_not_broadcast: {"mask_shapes"},
    mask_of_large_numbers: {"hidden_keys", "causality", "fully_masked_rows"},
    looks_ahead_a_little: {"causality", "hidden_keys", "causal_mask"},
    nan_without_keys: {"fully_masked_rows"},
    nan_gradient_without_keys: {"fully_masked_rows"},
    mean_without_keys: {"fully_masked_rows"},
    constant: {"depends_on_inputs", "reference_float64", "reference_gradients"},
    uniform: {"reference_float64", "reference_float32", "reference_gradients", "dtype_ladder"},
    noisy: {"determinism"},
    without_gradient: {"reference_gradients", "gradients", "empty_batch"},
    keys_without_gradient: {"reference_gradients", "gradients"},
    always_single: {"reference_float64", "gradients"},
    single_in_half: {"reference_float32"},
    half_returns_single: {"dtype_ladder"},
    half_overflows: {"half_range"},
    squeezed: {"single_token"},
    global_maximum: {"empty_batch"},
    mean_over_batch: {"batch_independence", "reference_float64", "vmap"},
    viewed: {"non_contiguous"},
    four_axes_only: {"leading_axes", "vmap"},
    in_place: {"inputs_untouched"},
    looks_at_numbers: {"compile", "vmap"},
    looks_at_the_mask: {"compile", "vmap"},
    crude_errors: {"mismatched_shapes", "wrong_dtypes", "wrong_masks"},
    speechless_errors: {"mismatched_shapes", "wrong_masks"},
    accepts_anything: {"wrong_dtypes", "wrong_masks"},
}


check = functools.partial(check_attention, show=False, strict_errors=True)


def failures(result: ContractResult) -> set[str]:
    return {check.name for check in result.failed}


@pytest.mark.parametrize("operator", BROKEN, ids=lambda operator: operator.__name__)
def test_a_broken_operator_is_caught_by_the_check_that_is_meant_for_it(operator, typechecked: bool) -> None:
    expected = BROKEN[operator]
    kept = expected - {"compile"} if typechecked else expected
    result = check(operator, reference=slow_softmax_attention, skip=CHECKS.keys() - kept)
    assert failures(result) == kept
    assert all(check.detail for check in result.checks)


def test_every_check_is_broken_by_some_operator() -> None:
    assert set().union(*BROKEN.values()) == CHECKS.keys()


def test_a_flaw_fails_only_its_own_check() -> None:
    flaws = failures(check(half_returns_single, reference=slow_softmax_attention, compile=False))
    assert flaws == {"dtype_ladder"}


def test_a_correct_operator_passes_all_checks(typechecked: bool) -> None:
    checks = check(softmax_attention, reference=slow_softmax_attention, compile=not typechecked)
    assert checks.passed
    assert {check.name for check in checks.checks} == CHECKS.keys() - ({"compile"} if typechecked else set())


def test_operators_without_mask_are_checked_without_one() -> None:
    def maskless(q, k, v):
        return softmax_attention(q, k, v)

    checks = check(maskless, reference=maskless, masks=False, compile=False)
    assert failures(checks) == set()
    assert not {check.name for check in checks.checks} & MASK_CHECKS.keys()


def symmetric(attention):
    def operator(q, k, v, *, mask=None):
        check_attention_operands(q, k, v, mask=mask)
        check_attention_operands(k, q, v, mask=mask)
        return attention(k, k, v, mask=mask)

    return operator


def test_operators_within_one_sequence_get_square_operands() -> None:
    operator, slow = symmetric(softmax_attention), symmetric(slow_softmax_attention)
    assert failures(check(operator, reference=slow, square=True, compile=False)) == set()
    assert "output" in failures(check(operator, reference=slow, compile=False))


def test_square_operators_must_refuse_other_lengths() -> None:
    checks = check(softmax_attention, reference=slow_softmax_attention, square=True, compile=False)
    assert failures(checks) == {"mismatched_shapes"}


def test_any_error_of_an_operator_is_a_failed_check() -> None:
    def raises(q, k, v, *, mask=None):
        raise NotImplementedError("not yet")

    checks = check(raises, reference=slow_softmax_attention, compile=False)
    assert failures(checks) == {check.name for check in checks.checks}
    assert checks.checks[0] == Check("output", passed=False, detail="NotImplementedError: not yet")


def test_unknown_checks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"among output, .*got \['no_such_check'\]"):
        check(softmax_attention, reference=slow_softmax_attention, skip=["no_such_check"])


def test_checks_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Check("output", passed=False).passed = True

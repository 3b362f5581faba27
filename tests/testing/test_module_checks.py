"""Every check of the module contract fails for some module with one flaw."""

import pytest
import torch

from clearhead.testing import MODULE_CHECKS, ContractResult, check_attention
from tests.testing import broken_modules as broken

RANDOM = {
    "determinism",
    "batch_independence",
    "gradients",
    "non_contiguous",
    "dtype_ladder",
    "autocast",
    "state_dict",
    "copy",
}
DIFFERENTIATED = {
    "determinism", "gradients", "single_token", "empty_batch", "zero_inputs", "large_inputs", "key_mask",
    "fully_hidden", "causal",
}  # fmt: skip
"""Checks that need a gradient."""
BROKEN = {
    broken.Silent: {"output"},
    broken.SingleOnly: {"output"},
    broken.Constant: {"depends_on_inputs", "key_mask", "causal"},
    broken.CountsCalls: {"determinism"},
    broken.AlwaysDropsOut: RANDOM | {"compile", "key_mask", "causal"},
    broken.InPlace: DIFFERENTIATED | {"inputs_untouched", "non_contiguous"},
    broken.MeanOverBatch: {"batch_independence", "key_mask"},
    broken.KeysWithoutGradient: {"gradients"},
    broken.SoftmaxInSingle: {"gradients"},
    broken.OneTokenLess: {"single_token"},
    broken.GlobalMaximum: {"empty_batch"},
    broken.DividesByNorm: {"zero_inputs"},
    broken.Overflows: {"large_inputs"},
    broken.Views: {"non_contiguous"},
    broken.ReturnsSingle: {"dtype_ladder"},
    broken.NoAutocast: {"autocast"},
    broken.LooksAtNumbers: {"compile"},
    broken.HiddenState: {"state_dict"},
    broken.CopyOfItself: {"copy"},
    broken.MaskIgnored: {"key_mask"},
    broken.MaskInverted: {"key_mask"},
    broken.NanWithoutTokens: {"fully_hidden"},
    broken.LooksAhead: {"causal"},
    broken.LeaksAHair: {"causal"},
    broken.Positions: {"permutation"},
    broken.Cut: DIFFERENTIATED,
}
"""Broken modules and the checks that each fails."""


def failures(result: ContractResult) -> set[str]:
    return {check.name for check in result.failed}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_module_breaks_what_it_should_and_nothing_else(kind: type, typechecked: bool) -> None:
    torch.manual_seed(0)
    compiled = "compile" in BROKEN[kind] and not typechecked
    result = check_attention(kind(), compile=compiled, show=False, equivariant=kind is broken.Positions)
    assert failures(result) == BROKEN[kind] - (set() if compiled else {"compile"})
    assert all(check.detail for check in result.failed)
    assert {check.name for check in (*result.checks, *result.not_checked)} == MODULE_CHECKS.keys()


def test_every_check_is_broken_by_some_module() -> None:
    assert set().union(*BROKEN.values()) == MODULE_CHECKS.keys()


def test_a_correct_module_passes_all_checks(typechecked: bool) -> None:
    result = check_attention(broken.Right(), equivariant=True, compile=not typechecked, show=False)
    assert result.passed
    assert {check.name for check in result.not_checked} == ({"compile"} if typechecked else set())


def test_the_message_describes_the_flaw() -> None:
    torch.manual_seed(0)

    def detail(kind: type) -> str:
        return check_attention(kind(), compile=False, show=False).failed[0].detail

    assert "key_mask is True at tokens" in detail(broken.MaskInverted)
    assert "state outside it: gain" in detail(broken.HiddenState)
    assert "shares its parameters" in detail(broken.CopyOfItself)
    assert "pass shape=" in detail(broken.SingleOnly)
    assert "float16" not in detail(broken.ReturnsSingle).split("got")[1]

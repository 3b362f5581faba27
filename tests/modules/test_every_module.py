"""What every module owes: the contract, what autocast makes of its dtype, refusals in words, and names that stay."""

import pytest
import torch
from torch import Tensor

import clearhead.modules
from clearhead.modules import (
    CausalTokenStatisticsAttention,
    KernelPCAAttention,
    LearnedQueryAttention,
    MultiHeadAttention,
    RPCAttention,
    ScaledAttention,
    SelfAttention,
    SpatialAttention,
    SubspaceAttention,
    SymmetricAttention,
    TokenStatisticsAttention,
)
from clearhead.numerics.precision import tolerance
from clearhead.operators.clamped import clamped_key_attention
from clearhead.testing import MODULE_CHECKS, ModuleSubject, require_close
from clearhead.testing.check import not_applicable
from tests.modules.drawing import boolean, differ, normal, randomised

MAKE = {
    "self": lambda: SelfAttention(11, key_width=5, value_width=7),
    "learned query": lambda: LearnedQueryAttention(11, queries=3, key_width=5, value_width=7),
    "equal heads": lambda: MultiHeadAttention(11, heads=3, head_widths=5),
    "unequal heads": lambda: MultiHeadAttention(11, heads=3, head_widths=[5, 2, 5], value_widths=[3, 7, 3]),
    "shared keys": lambda: MultiHeadAttention(11, heads=6, head_widths=3, key_heads=2),
    "kernel PCA": lambda: KernelPCAAttention(11, heads=3, head_width=5, axes=2, learn_axes=True),
    "symmetric": lambda: SymmetricAttention(11, heads=3, head_width=5, value_width=7),
    "clamped keys": lambda: SymmetricAttention(11, heads=3, head_width=5, operator=clamped_key_attention),
    "RPC": lambda: RPCAttention(11, heads=3, head_width=5, iterations=3, strength=0.3),
    "RPC, asking": lambda: RPCAttention(11, heads=3, head_width=5, pursuit="paper", strength=0.5, queries="given"),
    "RPC, learned mu": lambda: RPCAttention(11, heads=3, head_width=5, pursuit="admm", strength=0.5, learned_mu=0.4),
    "scaled by a matrix": lambda: ScaledAttention(11, heads=3, head_width=5, form="matrix", tokens=6),
    "scaled by alpha": lambda: ScaledAttention(11, heads=3, head_width=5, value_width=7, form="symmetric"),
    "scaled by alphas": lambda: ScaledAttention(11, heads=3, head_width=5, form="asymmetric", per_head=True),
    "subspace": lambda: SubspaceAttention(11, heads=3, head_width=5),
    "subspace, tied": lambda: SubspaceAttention(11, heads=3, head_width=5, tied=True),
    "token statistics": lambda: TokenStatisticsAttention(11, heads=3, head_width=5),
    "token statistics, causal": lambda: CausalTokenStatisticsAttention(11, heads=3, head_width=5, tokens=7),
    "spatial": lambda: SpatialAttention(11, heads=2, head_widths=[3, 5]),
    "spatial, channels last": lambda: SpatialAttention(11, channel_axis=-1),
}


def inputs_of(name: str) -> tuple[Tensor, dict[str, Tensor]]:
    x = normal(2, 11, 2, 3) if "spatial" in name else normal(2, 6, 11)
    return (x.movedim(1, -1) if "last" in name else x), {"key_mask": boolean(2, 6)}


def subject_of(name: str) -> ModuleSubject:
    return ModuleSubject(module=randomised(MAKE[name]()).eval(), shape=tuple(inputs_of(name)[0].shape), key_count=6)


NOT_APPLICABLE = {
    ("scaled by a matrix", "single_token"): "it is made for six tokens",
    ("token statistics, causal", "key_mask"): "the last tokens, which are hidden there, reach none before them anyway",
}
CASES = [
    (name, check)
    for name in MAKE
    for check in MODULE_CHECKS
    if check not in not_applicable(subject_of(name)) and (name, check) not in NOT_APPLICABLE
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_contract(name: str, check: str, typechecked: bool) -> None:
    if typechecked and check == "compile":
        pytest.skip("torch.compile is tested in the session without the import hook")
    MODULE_CHECKS[check](subject_of(name))


@pytest.mark.parametrize("name", MAKE)
def test_only_what_does_not_apply_is_left_out(name: str) -> None:
    left = set(MODULE_CHECKS) - {check for of, check in CASES if of == name} - {"permutation"}
    if "spatial" in name:
        assert left == {"single_token", "key_mask", "fully_hidden", "causal"}
    else:
        without = {"learned query": {"causal"}, "scaled by a matrix": {"single_token"}}
        without |= {"token statistics": {"causal"}, "token statistics, causal": {"causal", "key_mask"}}
        assert left == without.get(name, set())


@pytest.mark.parametrize("name", MAKE)
def test_a_module_made_anew_takes_the_state(name: str) -> None:
    """From its constructor, which may hold what a copy would share."""
    module, other, (x, options) = randomised(MAKE[name]()), randomised(MAKE[name](), seed=1), inputs_of(name)
    assert differ(other(x, **options), module(x, **options))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x, **options), module(x, **options))


@pytest.mark.parametrize("name", MAKE)
def test_autocast_chooses_the_dtype(name: str) -> None:
    module, (x, options) = MAKE[name](), inputs_of(name)
    want = module(x.float(), **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, of_half = module(x.float(), **options), module(x.bfloat16(), **options)
    assert got.dtype is of_half.dtype is torch.bfloat16
    require_close(got, want, within=tolerance(torch.bfloat16), what=name)
    require_close(of_half, want, within=tolerance(torch.bfloat16), what=f"{name}, inputs of another dtype")


@pytest.mark.parametrize("name", MAKE)
def test_another_dtype_than_the_parameters_is_refused_in_words(name: str, typechecked: bool) -> None:
    module, (x, _) = MAKE[name](), inputs_of(name)
    with pytest.raises(ValueError, match=r"dtype of the parameters, .*torch.float32.*; got .*torch.float64"):
        module(x)
    if typechecked:
        pytest.skip("the import hook refuses integers before the module can")
    with pytest.raises(ValueError, match=r"dtype of the parameters.*got .*torch.int64"):
        module(x.long())


def test_the_public_names_are_pinned() -> None:
    assert clearhead.modules.__all__ == [
        "CausalTokenStatisticsAttention",
        "KernelPCAAttention",
        "LearnedQueryAttention",
        "MultiHeadAttention",
        "OvercompleteStep",
        "PaddedSets",
        "RPCAttention",
        "RateReductionLoss",
        "ScaledAttention",
        "SelfAttention",
        "SparseCodingStep",
        "SpatialAttention",
        "SubspaceAttention",
        "SymmetricAttention",
        "TokenStatisticsAttention",
        "pad_sets",
    ]

"""Every module: the contract, autocast, error messages, and pinned names."""

import functools
import inspect

import pytest
import torch
from torch import Tensor, nn

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
from clearhead.operators.clamped_keys import clamped_key_attention
from clearhead.testing import MODULE_CHECKS, ModuleSubject, require_close
from clearhead.testing.check import not_applicable
from tests.modules.drawing import boolean, differ, normal, randomised

MAKE = {
    "self": lambda **factory: SelfAttention(11, head_dim=5, value_dim=7, **factory),
    "learned query": lambda **factory: LearnedQueryAttention(11, num_queries=3, head_dim=5, value_dim=7, **factory),
    "equal heads": lambda **factory: MultiHeadAttention(11, num_heads=3, head_dim=5, **factory),
    "unequal heads": lambda **factory: MultiHeadAttention(
        11, num_heads=3, head_dim=[5, 2, 5], value_dim=[3, 7, 3], **factory
    ),
    "shared keys": lambda **factory: MultiHeadAttention(11, num_heads=6, head_dim=3, num_kv_heads=2, **factory),
    "kernel PCA": lambda **factory: KernelPCAAttention(11, num_heads=3, head_dim=5, axes=2, learn_axes=True, **factory),
    "symmetric": lambda **factory: SymmetricAttention(11, num_heads=3, head_dim=5, value_dim=7, **factory),
    "clamped keys": lambda **factory: SymmetricAttention(
        11, num_heads=3, head_dim=5, operator=functools.partial(clamped_key_attention, None), **factory
    ),
    "RPC": lambda **factory: RPCAttention(11, num_heads=3, head_dim=5, iterations=3, strength=0.3, **factory),
    "RPC, given_queries": lambda **factory: RPCAttention(
        11, num_heads=3, head_dim=5, pursuit="paper", strength=0.5, queries="given", **factory
    ),
    "RPC, learned mu": lambda **factory: RPCAttention(
        11, num_heads=3, head_dim=5, pursuit="admm", strength=0.5, learned_mu=0.4, **factory
    ),
    "scaled by a matrix": lambda **factory: ScaledAttention(
        11, num_heads=3, head_dim=5, form="matrix", num_tokens=6, **factory
    ),
    "scaled by alpha": lambda **factory: ScaledAttention(
        11, num_heads=3, head_dim=5, value_dim=7, form="symmetric", **factory
    ),
    "scaled by alphas": lambda **factory: ScaledAttention(
        11, num_heads=3, head_dim=5, form="asymmetric", per_head=True, **factory
    ),
    "subspace": lambda **factory: SubspaceAttention(11, num_heads=3, head_dim=5, **factory),
    "subspace, tied": lambda **factory: SubspaceAttention(11, num_heads=3, head_dim=5, tied=True, **factory),
    "token statistics": lambda **factory: TokenStatisticsAttention(11, num_heads=3, head_dim=5, **factory),
    "token statistics, causal": lambda **factory: CausalTokenStatisticsAttention(
        11, num_heads=3, head_dim=5, max_tokens=7, **factory
    ),
    "spatial": lambda **factory: SpatialAttention(11, num_heads=2, head_dim=[3, 5], **factory),
    "spatial, channels last": lambda **factory: SpatialAttention(11, channel_axis=-1, **factory),
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
def test_only_checks_that_do_not_apply_are_left_out(name: str) -> None:
    left = set(MODULE_CHECKS) - {check for of, check in CASES if of == name} - {"permutation"}
    if "spatial" in name:
        assert left == {"single_token", "key_mask", "fully_hidden", "causal"}
    else:
        without = {"learned query": {"causal"}, "scaled by a matrix": {"single_token"}}
        without |= {"token statistics": {"causal"}, "token statistics, causal": {"causal", "key_mask"}}
        assert left == without.get(name, set())


@pytest.mark.parametrize("name", MAKE)
def test_a_new_module_loads_the_state_dict(name: str) -> None:
    """Build a new module by its constructor: a copy could share state."""
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
def test_inputs_of_another_dtype_than_the_parameters_raise_an_error(name: str, typechecked: bool) -> None:
    module, (x, _) = MAKE[name](), inputs_of(name)
    with pytest.raises(ValueError, match=r"dtype of the parameters, .*torch.float32.*; got .*torch.float64"):
        module(x)
    if typechecked:
        pytest.skip("the import hook refuses integers before the module can")
    with pytest.raises(ValueError, match=r"dtype of the parameters.*got .*torch.int64"):
        module(x.long())


@pytest.mark.parametrize("name", MAKE)
def test_device_and_dtype_reach_every_parameter(name: str) -> None:
    module = MAKE[name](device="meta", dtype=torch.bfloat16)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


DEFAULTS = {
    "embed_dim": inspect.Parameter.empty, "num_heads": inspect.Parameter.empty, "kdim": None, "vdim": None,
    "head_dim": None, "value_dim": None, "out_dim": None, "num_kv_heads": None, "dropout": 0.0, "bias": True,
    "out_bias": True, "scale": None, "device": None, "dtype": None,
}  # fmt: skip
"""Arguments that several modules share, in their order, with their defaults."""
CLASSES = [kind for kind in vars(clearhead.modules).values() if isinstance(kind, type) and issubclass(kind, nn.Module)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_arguments_have_one_order_and_one_default(kind: type[nn.Module]) -> None:
    arguments = inspect.signature(kind).parameters
    shared = [name for name in arguments if name in DEFAULTS]
    assert shared == sorted(shared, key=list(DEFAULTS).index)
    one_head = {"num_heads": 1} if kind is SpatialAttention else {}
    assert {name: arguments[name].default for name in shared} == {name: DEFAULTS[name] for name in shared} | one_head


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_no_argument_is_a_bool_in_init_and_a_tensor_in_forward(kind: type[nn.Module]) -> None:
    flags = {name for name, argument in inspect.signature(kind).parameters.items() if argument.annotation is bool}
    assert not flags & inspect.signature(kind.forward).parameters.keys()


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

"""What every module owes: compilation, its state, its dtypes, copies, and names that stay."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import clearhead.modules
from clearhead.modules import (
    KernelPCAAttention,
    LearnedQueryAttention,
    MultiHeadAttention,
    RPCAttention,
    ScaledAttention,
    SelfAttention,
    SpatialAttention,
    SymmetricAttention,
)
from clearhead.numerics.precision import tolerance
from clearhead.operators.clamped import clamped_key_attention
from clearhead.operators.contract_subject import require_close
from tests.modules.drawing import boolean, differ, normal, randomised, require_same

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
    "spatial": lambda: SpatialAttention(11, heads=2, head_widths=[3, 5]),
    "spatial, channels last": lambda: SpatialAttention(11, channel_axis=-1),
}


def inputs_of(name: str) -> tuple[Tensor, dict[str, Tensor]]:
    x = normal(2, 11, 2, 3) if "spatial" in name else normal(2, 6, 11)
    return (x.movedim(1, -1) if "last" in name else x), {"key_mask": boolean(2, 6)}


@pytest.mark.parametrize("name", MAKE)
def test_compiles_without_a_graph_break(name: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    module, (x, options) = randomised(MAKE[name]()), inputs_of(name)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    require_same(compiled(x), module(x))
    require_same(compiled(x, **options), module(x, **options))
    assert differ(module(x, **options), module(x))


@pytest.mark.parametrize("name", MAKE)
def test_the_state_dict_is_all_there_is(name: str) -> None:
    module, other, (x, options) = randomised(MAKE[name]()), randomised(MAKE[name](), seed=1), inputs_of(name)
    assert differ(other(x, **options), module(x, **options))
    saved = io.BytesIO()
    torch.save(module.state_dict(), saved)
    saved.seek(0)
    other.load_state_dict(torch.load(saved, weights_only=True))
    assert torch.equal(other(x, **options), module(x, **options))


@pytest.mark.parametrize("name", MAKE)
def test_a_copy_is_a_module_of_its_own(name: str) -> None:
    module, (x, _) = randomised(MAKE[name]()), inputs_of(name)
    copied, before = copy.deepcopy(module), module(x)
    for parameter in copied.parameters():
        nn.init.ones_(parameter)
    assert torch.equal(module(x), before)
    assert differ(copied(x), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MAKE)
def test_each_dtype_is_as_exact_as_it_can_be(name: str, dtype: torch.dtype) -> None:
    module, (x, options) = randomised(MAKE[name]()), inputs_of(name)
    rounded = copy.deepcopy(module).to(dtype)
    module.load_state_dict(rounded.state_dict())  # so that both have the same parameters
    want = module(x.to(dtype).double(), **options)
    got = rounded(x.to(dtype), **options)
    assert got.dtype is dtype
    require_close(got, want, within=tolerance(dtype), what=name)


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
def test_an_empty_batch_has_an_empty_output(name: str) -> None:
    module, (x, _) = randomised(MAKE[name]()), inputs_of(name)
    assert module(x[:0]).shape == (0, *module(x).shape[1:])


@pytest.mark.parametrize("name", MAKE)
def test_gradients_are_right(name: str) -> None:
    module, (x, options) = randomised(MAKE[name]()), inputs_of(name)
    parameters = dict(module.named_parameters())

    def attend(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,), options)

    assert torch.autograd.gradcheck(attend, (x.requires_grad_(), *parameters.values()), fast_mode=True)


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
        "KernelPCAAttention",
        "LearnedQueryAttention",
        "MultiHeadAttention",
        "PaddedSets",
        "RPCAttention",
        "ScaledAttention",
        "SelfAttention",
        "SpatialAttention",
        "SymmetricAttention",
        "pad_sets",
    ]

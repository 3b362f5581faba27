"""Every public function and module that computes with tensors, with operands of a given length and its definition.

The definition is the slow reference in double precision where there is one, and the same function in double precision
where there is none.
"""

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import modules as mods
from clearhead import operators as ops
from clearhead.operators.general import slow_general_attention
from clearhead.operators.rpc import slow_rpc_attention
from clearhead.operators.scaled import slow_scaled_attention

__all__ = ["NO_NUMBERS", "SUBJECTS", "Operands", "Subject", "public_names"]

Operands = dict[str, Tensor]
HEADS, WIDTH = 2, 4
NO_NUMBERS = frozenset({"operator_from_dict", "operator_to_dict", "preset", "spatial_size", "warn_of_step", "fold"})
"""Public functions without arithmetic: names, settings, sizes; `fold` is the inverse of `unfold`."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A function of tensors.

    compute: returns its result from the operands by name, and `mask` if it takes one
    definition: the same in double precision; `compute` if None
    draw: returns operands for n tokens
    mask: the last axes of the mask it takes, "pairs" (n, n) or "keys" (n); None if it takes none
    narrow: True if the definition cancels or overflows at 1e38 where the function does not; `compute` stands in there
    ill: kinds whose result depends on the last bit of the operands
    """

    compute: Callable[..., Tensor]
    draw: Callable[[int, torch.Generator], Operands]
    definition: Callable[..., Tensor] | None = None
    mask: str | None = None
    narrow: bool = False
    ill: frozenset[str] = frozenset()


def public_names() -> set[str]:
    """Return the public functions of operators and the public modules, by name."""
    functions = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
    return (functions | set(ops.OPERATORS.names()) | set(mods.__all__)) - NO_NUMBERS - {"PaddedSets"}


def _drawn(*names: str) -> Callable[[int, torch.Generator], Operands]:
    def draw(n: int, generator: torch.Generator) -> Operands:
        return {name: torch.randn(1, HEADS, n, WIDTH, generator=generator) for name in names}

    return draw


def _with(draw: Callable[[int, torch.Generator], Operands], **shapes: tuple[int, ...]) -> Any:
    def drawn(n: int, generator: torch.Generator) -> Operands:
        further = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        return draw(n, generator) | further

    return drawn


def _general(similarity: Callable[..., Any], draw: Any = None) -> Subject:
    def compute(function: Callable[..., Tensor], weight: Tensor | None = None, **operands: Any) -> Tensor:
        return function(**operands, similarity=similarity() if weight is None else similarity(weight))

    return Subject(
        compute=lambda **operands: compute(ops.general_attention, **operands),
        definition=lambda **operands: compute(slow_general_attention, **operands),
        draw=draw or QKV,
        mask="pairs",
        narrow=True,
    )


def _operator(name: str) -> Subject:
    operator: Any = ops.OPERATORS.get(name)()
    if hasattr(operator, "build"):
        torch.manual_seed(0)
        return _module(operator.build(), QKV, mask="pairs")
    return Subject(compute=operator, draw=QKV, mask="pairs")


def _module(module: nn.Module, draw: Callable[[int, torch.Generator], Operands], *, mask: str | None = None) -> Subject:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    double = copy.deepcopy(module).double()
    name = "key_mask" if mask == "keys" else "mask"

    def call(which: nn.Module, mask: Tensor | None = None, **operands: Tensor) -> Tensor:
        result: Tensor = which(*operands.values(), **({} if mask is None else {name: mask}))
        return result

    return Subject(
        compute=lambda **operands: call(module, **operands),
        definition=lambda **operands: call(double, **operands),
        draw=draw,
        mask=mask,
    )


def _tokens(width: int = 6) -> Callable[[int, torch.Generator], Operands]:
    return lambda n, generator: {"x": torch.randn(2, n, width, generator=generator)}


def _image(n: int, generator: torch.Generator) -> Operands:
    return {"x": torch.randn(2, 6, n, 1, generator=generator)}


def _images(n: int, generator: torch.Generator) -> Operands:
    return {name: torch.randn(2, WIDTH, n, 1, generator=generator) for name in ("q", "k", "v")}


def _s(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v, mask=None: function(q, k, v, s=ops.AlphaSymmetric(0.5), mask=mask)


QKV, KV, K, V, W, Z = (_drawn(*names) for names in (("q", "k", "v"), ("k", "v"), ("k",), ("v",), ("w",), ("z",)))
PURSUIT: dict[str, Any] = {"iterations": 3, "threshold": 0.7}
BASES = _with(Z, bases=(3, WIDTH, 2))
STEP = {"length": 0.5}


def _members(n: int, generator: torch.Generator) -> Operands:
    memberships = torch.rand(1, HEADS, 3, n, generator=generator).softmax(dim=-2)
    return BASES(n, generator) | {"memberships": memberships}


def _pair(name: str, draw: Any, *, mask: str | None = None, narrow: bool = False, **options: Any) -> Subject:
    """Return a function whose slow definition stands in the same module."""
    fast = getattr(ops, name)
    slow = getattr(sys.modules[fast.__module__], f"slow_{name}")
    return Subject(
        compute=lambda **operands: fast(**operands, **options),
        definition=lambda **operands: slow(**operands, **options),
        draw=draw,
        mask=mask,
        narrow=narrow,
    )


SUBJECTS: dict[str, Subject] = {
    "softmax_attention": _pair("softmax_attention", QKV, mask="pairs"),
    "softmax_attention with a soft cap": _pair("softmax_attention", QKV, mask="pairs", softcap=2.0),
    "symmetric_attention": _pair("symmetric_attention", KV, mask="pairs"),
    "subspace_attention": _pair("subspace_attention", V, mask="pairs"),
    "general_attention": _pair("general_attention", QKV, mask="pairs", narrow=True),
    "gaussian": _general(ops.gaussian),
    "embedded_gaussian": _general(lambda: ops.embedded_gaussian(torch.tanh, torch.tanh)),
    "dot_product": _general(ops.dot_product),
    "concatenation": _general(ops.concatenation, _with(QKV, weight=(2 * WIDTH,))),
    "gaussian_distance": _general(lambda: ops.gaussian_distance(bandwidth=1.5)),
    "clamped_key_attention": _pair("clamped_key_attention", QKV, mask="pairs"),
    "rpc_attention": _pair("rpc_attention", QKV, mask="pairs", narrow=True),
    "rpc_attention of keys": _pair("rpc_attention", KV, mask="pairs", narrow=True, q=None),
    "principal_attention_pursuit": _pair("principal_attention_pursuit", KV, mask="pairs", narrow=True, **PURSUIT),
    "trace_pursuit": Subject(
        compute=lambda k, v, **options: ops.trace_pursuit(None, k, v, **options).out,
        definition=lambda k, v, **options: slow_rpc_attention(None, k, v, **options),
        draw=KV,
        mask="pairs",
        narrow=True,
    ),
    "scaled_attention": Subject(
        compute=_s(ops.scaled_attention), definition=_s(slow_scaled_attention), draw=QKV, mask="pairs"
    ),
    "kernel_pca": Subject(compute=lambda k, **o: ops.kernel_pca(k, axes=2, **o).energy, draw=K, mask="keys"),
    "kernel_pca_spectrum": Subject(compute=lambda k, **o: ops.kernel_pca_spectrum(k, **o).energy, draw=K, mask="keys"),
    "kernel_pca_attention": Subject(
        compute=lambda q, k, **o: ops.kernel_pca_attention(q, k, axes=1, **o).square(),  # whatever the axis's sign
        draw=_drawn("q", "k"),
        mask="pairs",
    ),
    "token_statistics_attention": _pair("token_statistics_attention", W),
    "causal_token_statistics_attention": _pair("causal_token_statistics_attention", W),
    "token_statistics_step": _pair("token_statistics_step", BASES, **STEP),
    "subspace_step": _pair("subspace_step", BASES, **STEP),
    "variational_rate": Subject(compute=ops.variational_rate, draw=_members),
    "ista_step": _pair("ista_step", _with(Z, dictionary=(WIDTH, WIDTH))),
    "overcomplete_step": _pair("overcomplete_step", _with(Z, dictionary=(WIDTH, 7), decoder=(WIDTH, 7))),
    "largest_step": Subject(
        compute=lambda dictionary: torch.tensor(ops.largest_step(dictionary)),
        draw=lambda n, generator: {"dictionary": torch.randn(WIDTH, n, generator=generator)},
    ),
    "resize_matrix": Subject(
        compute=lambda matrix: ops.resize_matrix(matrix, 5),
        draw=lambda n, generator: {"matrix": torch.randn(n, n, generator=generator)},
    ),
    "spatial_attention": _pair("spatial_attention", _images, narrow=True),
    "unfold": Subject(compute=ops.unfold, draw=_image),
    **{name: _operator(name) for name in ops.OPERATORS.names()},
    "pad_sets": Subject(compute=lambda x: mods.pad_sets(list(x) if x.ndim else [x]).tokens, draw=_tokens()),
    "SelfAttention": _module(mods.SelfAttention(6), _tokens(), mask="keys"),
    "LearnedQueryAttention": _module(mods.LearnedQueryAttention(6, num_queries=3), _tokens(), mask="keys"),
    "MultiHeadAttention": _module(mods.MultiHeadAttention(6, 2), _tokens(), mask="keys"),
    # Keys that are equal up to rounding have an axis, of their rounding errors.
    "KernelPCAAttention": dataclasses.replace(
        _module(mods.KernelPCAAttention(6, 2, axes=1), _tokens(), mask="keys"), ill=frozenset({"all equal"})
    ),
    "SymmetricAttention": _module(mods.SymmetricAttention(6, 2), _tokens(), mask="keys"),
    "RPCAttention": _module(mods.RPCAttention(6, 2), _tokens(), mask="keys"),
    "ScaledAttention": _module(mods.ScaledAttention(6, 2, form="symmetric"), _tokens(), mask="keys"),
    "SubspaceAttention": _module(mods.SubspaceAttention(6, 2), _tokens(), mask="keys"),
    "TokenStatisticsAttention": _module(mods.TokenStatisticsAttention(6, 2), _tokens(), mask="keys"),
    "CausalTokenStatisticsAttention": _module(
        mods.CausalTokenStatisticsAttention(6, 2, max_tokens=300), _tokens(), mask="keys"
    ),
    "SparseCodingStep": _module(mods.SparseCodingStep(6, step=0.01), _tokens()),
    "OvercompleteStep": _module(mods.OvercompleteStep(6, step=0.01), _tokens()),
    "SpatialAttention": _module(mods.SpatialAttention(6, 2), _image),
    "RateReductionLoss": _module(
        mods.RateReductionLoss(), lambda n, generator: {"features": torch.randn(n, 6, generator=generator)}
    ),
}

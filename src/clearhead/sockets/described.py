"""The socket of layers that write their attention out: somebody says where q, k, v and the output are.

A description names children of the attention module. Their outputs are the projections, the input of the `out` child is
the attention's output; whether that is true is checked by recomputing it.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.sockets.call import Call
from clearhead.sockets.tap import (
    AttentionNotSeenError,
    Tap,
    causal_mask,
    named_arguments,
    overridden_forward,
    split_mask,
    windows_of,
)

__all__ = [
    "AttentionSpec",
    "attribute_of",
    "child_of",
    "described_socket",
    "read_described",
    "read_descriptions",
    "split_heads",
]

_CHILD = re.compile(r"(?P<name>[\w.]+)(\[(?P<part>\d)\])?")

Bias = Callable[[nn.Module, dict[str, Any]], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Where one kind of attention module keeps q, k, v and its output.

    `module`: the dotted name of its class, or the end of it. `q`, `k`, `v`: a child whose output is that projection,
    (b, n, h*d) or (b, h, n, d); "qkv[0]" is the first third of a fused projection. `out`: a child whose input is the
    attention's output with heads joined; empty if the module itself returns that. `heads`: the attribute, or the
    number, that splits the projections. `scale`: a number, an attribute, or None for 1/sqrt(d). `mask`, `bias`,
    `causal`: names of arguments of the module's forward (a bias may be a function of the module and its arguments).
    """

    module: str
    q: str
    k: str
    v: str
    out: str = ""
    heads: str | int = "num_heads"
    scale: str | float | None = None
    mask: str | None = None
    bias: str | Bias | None = None
    causal: str | bool = False
    socket: str = field(default="description")

    def describes(self, module: nn.Module) -> bool:
        """Whether the module is of the class that this speaks of."""
        path = f"{type(module).__module__}.{type(module).__qualname__}"
        return path == self.module or path.endswith("." + self.module)


def read_descriptions(path: Path) -> list[AttentionSpec]:
    """Read descriptions from a TOML file: one [[attention]] table each, with the fields of `AttentionSpec`."""
    known = {f.name for f in fields(AttentionSpec)} - {"socket"}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("attention", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read the description {path}: {error}") from error
    if not tables:
        raise InputError(f"{path} describes nothing: write one [[attention]] table per kind of module")
    for table in tables:
        if not {"module", "q", "k", "v"} <= table.keys() <= known:
            raise InputError(
                f"{path}: an [[attention]] table needs module, q, k, v; it takes {', '.join(sorted(known))}"
            )
    return [AttentionSpec(**table) for table in tables]


@contextmanager
def described_socket(tap: Tap, specs: Sequence[AttentionSpec]) -> Iterator[None]:
    """Watch every module that one of the descriptions speaks of and that no earlier description has claimed."""
    with ExitStack() as stack:
        for spec in specs:
            for module in tap.model.modules():
                if spec.describes(module) and id(module) not in tap.claimed:
                    tap.claimed.update(id(part) for part in module.modules())
                    stack.enter_context(_described_module(tap, spec, module))
        yield


@contextmanager
def _described_module(tap: Tap, spec: AttentionSpec, module: nn.Module) -> Iterator[None]:
    call: dict[str, Any] = {}

    def keep(key: str, part: int | None) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            if "arguments" in call:
                call[key] = output if part is None else output.chunk(3, dim=-1)[part]

        return hook

    def leave(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if "arguments" not in call or "done" in call:
            return None
        replaced = _emit(tap, spec, module, call, args[0])
        return None if replaced is None else (replaced, *args[1:])

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call.clear()
        call["arguments"] = named_arguments(original, *args, **kwargs)
        try:
            output = original(*args, **kwargs)
            if not spec.out:
                first = output[0] if isinstance(output, tuple) else output
                replaced = _emit(tap, spec, module, call, first)
                if replaced is not None:
                    output = (replaced, *output[1:]) if isinstance(output, tuple) else replaced
            return output
        finally:
            call.clear()

    with ExitStack() as stack:
        for key in ("q", "k", "v"):
            child, part = child_of(module, spec, getattr(spec, key))
            stack.callback(child.register_forward_hook(keep(key, part)).remove)
        if spec.out:
            stack.callback(child_of(module, spec, spec.out)[0].register_forward_pre_hook(leave).remove)
        stack.enter_context(overridden_forward(module, forward))
        yield


def child_of(module: nn.Module, spec: AttentionSpec, where: str) -> tuple[nn.Module, int | None]:
    """The child that a description names, and which third of its output is meant."""
    match = _CHILD.fullmatch(where)
    try:
        if match is None:
            raise AttributeError
        child = module.get_submodule(match["name"])
    except AttributeError:
        names = ", ".join(name for name, _ in module.named_children())
        raise AttentionNotSeenError(f"{spec.module} has no child {where!r}; its children are {names}") from None
    return child, None if match["part"] is None else int(match["part"])


def _emit(tap: Tap, spec: AttentionSpec, module: nn.Module, call: dict[str, Any], joined: Tensor) -> Tensor | None:
    name = tap.names.get(id(module), spec.module)
    asked = read_described(spec, module, call, name)
    heads = int(attribute_of(module, spec.heads))
    windows = windows_of(module, joined, tap)
    seen = asked.seen(name=name, out=split_heads(joined, heads), windows=windows, socket=spec.socket)
    replaced = tap.emit(seen, joined)
    return None if replaced is None else replaced.to(joined.dtype).transpose(1, 2).reshape(joined.shape)


def read_described(spec: AttentionSpec, module: nn.Module, call: dict[str, Any], name: str) -> Call:
    """What the layer asks, from its children's outputs q, k and v and its arguments; notes that it was read."""
    missing = [key for key in ("q", "k", "v") if key not in call]
    if missing:
        raise AttentionNotSeenError(
            f"{name}: the children described as {', '.join(missing)} did not run before its output; mend it"
        )
    call["done"] = True
    heads = int(attribute_of(module, spec.heads))
    q, k, v = (split_heads(call[key], heads) for key in ("q", "k", "v"))
    arguments = call["arguments"]
    mask, bias = split_mask(arguments.get(spec.mask) if spec.mask else None)
    if spec.bias is not None:
        added = arguments.get(spec.bias) if isinstance(spec.bias, str) else spec.bias(module, arguments)
        bias = added if bias is None else bias if added is None else bias + added
    if arguments.get(spec.causal, False) if isinstance(spec.causal, str) else spec.causal:
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device) if mask is None else mask
    return Call(
        q=q,
        k=k,
        v=v,
        scale=q.shape[-1] ** -0.5 if spec.scale is None else float(attribute_of(module, spec.scale)),
        mask=_four_axes(mask),
        bias=_four_axes(bias),
        dropout=_dropout(module),
    )


def attribute_of(module: nn.Module, where: str | float | int) -> Any:
    """A number, or the attribute that has it."""
    return getattr(module, where) if isinstance(where, str) else where


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, n, h * d) as (b, h, n, d)."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def _four_axes(x: Tensor | None) -> Tensor | None:
    if x is None or x.ndim >= 4:
        return x
    return x[None, None] if x.ndim == 2 else x.unsqueeze(1)


def _dropout(module: nn.Module) -> float:
    """The strongest dropout that could have acted inside: which part of a module is the attention's is not known."""
    if not module.training or not torch.is_tensor(next(module.parameters(), None)):
        return 0.0
    return max((part.p for part in module.modules() if isinstance(part, nn.Dropout)), default=0.0)

"""Layers that write their attention out: a description says where q, k, v and the output are.

A description names children of the attention module. Their outputs are the projections, and the input of the `out`
child is the attention output. The layer's own attention is always computed: there is no call in it to leave out.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.interfaces.attachment import Attachment, Detach, Handler, Interface, Layer, attach_to
from clearhead.interfaces.call import AttentionNotSeenError, Call, causal_mask, split_mask
from clearhead.interfaces.descriptions import SHIPPED, AttentionSpec
from clearhead.interfaces.forward import named_arguments, unwrap_forward, wrap_forward

NAME = "description"


def find(model: nn.Module, specs: Sequence[AttentionSpec] = SHIPPED) -> list[Layer]:
    """Return the modules that a description applies to, the first that does."""
    layers = []
    for path, module in model.named_modules():
        spec = next((spec for spec in specs if spec.describes(module)), None)
        if spec is not None:
            layers.append(Layer(path=path, module=module, details=spec))
    return layers


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the layer's attention output."""
    return attach_to(layer, handler, _DescribedAttachment)


INTERFACE = Interface(name=NAME, find=find, attach=attach)


@dataclass(slots=True)
class _Run:
    """The tensors that a described layer has computed so far in its present forward pass."""

    attachment: "_DescribedAttachment"
    arguments: dict[str, Any]
    projections: dict[str, Tensor] = field(default_factory=dict)
    handled: bool = False


_RUN: ContextVar[_Run | None] = ContextVar("run", default=None)
"""The described layer that runs in this thread."""


class _DescribedAttachment(Attachment):
    """Wraps the forward of a layer and of the children that its description names."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.spec: AttentionSpec = layer.details
        self.children: list[tuple[nn.Module, _Child]] = []

    def install(self) -> None:
        for role in ("q", "k", "v"):
            child, third = self.spec.child(self.module, getattr(self.spec, role))
            self.children.append((child, _Child(self, role, third)))
        if self.spec.out:
            self.children.append((self.spec.child(self.module, self.spec.out)[0], _Child(self, "out", None)))
        for child, wrapper in self.children:
            wrap_forward(child, wrapper)
        wrap_forward(self.module, self)

    def remove(self) -> None:
        unwrap_forward(self.module, self)
        for child, wrapper in self.children:
            unwrap_forward(child, wrapper)

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the forward, with the handlers at the attention output before it enters `out` or is returned."""
        if self.permanent and torch.compiler.is_compiling():  # torch then runs this layer uncompiled unless fullgraph
            raise InputError("a layer swapped through a description cannot be compiled: compile without fullgraph")
        run = _Run(self, named_arguments(proceed, *args, **kwargs))
        token = _RUN.set(run)
        try:
            output = proceed(*args, **kwargs)
            if not self.spec.out:
                first = output[0] if isinstance(output, tuple) else output
                handled = self.handle(run, first)
                output = (handled, *output[1:]) if isinstance(output, tuple) else handled
        finally:
            _RUN.reset(token)
        if self.permanent and not run.handled:
            raise AttentionNotSeenError(
                f"{self.name} ran without its child {self.spec.out!r}, so its operator was not used: correct the "
                "description, or leave it out of layers="
            )
        return output

    def handle(self, run: _Run, joined: Tensor) -> Tensor:
        """Run the handlers; return the attention output with heads joined, itself if they leave it."""
        run.handled = True
        call = self._call(run)
        heads = int(_value(self.module, self.spec.heads))
        own_output = _split_heads(joined, heads)
        if call.v.shape[-1] != own_output.shape[-1]:
            raise AttentionNotSeenError(f"{self.name}: v and the output differ in width: correct the description")
        out, own = self.run(call, lambda: (own_output, joined))
        if out is own.output:
            return joined
        return out.to(joined.dtype).transpose(1, 2).reshape(joined.shape)

    def _call(self, run: _Run) -> Call:
        spec, module, arguments = self.spec, self.module, run.arguments
        missing = [role for role in ("q", "k", "v") if role not in run.projections]
        if missing:
            raise AttentionNotSeenError(
                f"{self.name}: the children described as {', '.join(missing)} did not run before its output; "
                "correct the description"
            )
        heads = int(_value(module, spec.heads))
        q, k, v = (_split_heads(run.projections[role], heads) for role in ("q", "k", "v"))
        mask, bias = split_mask(arguments.get(spec.mask) if spec.mask else None)
        if spec.bias is not None:
            added = arguments.get(spec.bias) if isinstance(spec.bias, str) else spec.bias(module, arguments)
            bias = added if bias is None else bias if added is None else bias + added
        if arguments.get(spec.causal, False) if isinstance(spec.causal, str) else spec.causal:
            mask = causal_mask(q.shape[-2], k.shape[-2], q.device) if mask is None else mask
        return Call(
            name=self.name,
            module=module,
            interface=self.interface,
            q=q,
            k=k,
            v=v,
            scale=q.shape[-1] ** -0.5 if spec.scale is None else float(_value(module, spec.scale)),
            mask=_four_axes(mask),
            bias=_four_axes(bias),
            dropout=_dropout(module),
        )


class _Child:
    """Keeps a projection, or a third of one, or runs the handlers at the input of `out`."""

    def __init__(self, attachment: _DescribedAttachment, role: str, third: int | None) -> None:
        self.attachment, self.role, self.third = attachment, role, third

    @property
    def permanent(self) -> bool:
        return self.attachment.permanent

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = _RUN.get()
        if run is None or run.attachment is not self.attachment:
            return proceed(*args, **kwargs)
        if self.role == "out":
            if not run.handled:
                args = (self.attachment.handle(run, args[0]), *args[1:])
            return proceed(*args, **kwargs)
        output = proceed(*args, **kwargs)
        run.projections[self.role] = output if self.third is None else output.chunk(3, dim=-1)[self.third]
        return output


def _value(module: nn.Module, where: str | float | int) -> Any:
    """Return a number, or the attribute that holds it."""
    return getattr(module, where) if isinstance(where, str) else where


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Return (b, n, h * d) as (b, h, n, d)."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def _four_axes(x: Tensor | None) -> Tensor | None:
    if x is None or x.ndim >= 4:
        return x
    return x[None, None] if x.ndim == 2 else x.unsqueeze(1)


def _dropout(module: nn.Module) -> float:
    """Return the largest dropout inside the module: which of them acts on the attention is not known."""
    if not module.training or not torch.is_tensor(next(module.parameters(), None)):
        return 0.0
    return max((part.p for part in module.modules() if isinstance(part, nn.Dropout)), default=0.0)

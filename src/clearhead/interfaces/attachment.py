"""Handlers at the attention calls of one module: attach, detach, and the order in which they run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from clearhead.interfaces.call import AttentionNotSeenError, Call, Original

ATTRIBUTES = ("_clearhead_attention", "_clearhead_model_attention")
"""The attributes of a module that hold attachments: to its own calls, and to those of all modules inside it."""


@runtime_checkable
class Handler(Protocol):
    """A function at attention calls: `handler(call, original)` returns the output the model continues with.

    replaces: whether it may return something other than `original()`
    permanent: whether it is part of the model, copied and saved with it. It is then innermost and never calls
        `original`, so the layer's own attention need not be computed.
    """

    replaces: bool
    permanent: bool

    def __call__(self, call: Call, original: Original) -> Tensor: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One attention layer of a model: its path, its module, and how it exposes attention.

    interface: the name of the interface that found it, which `find` fills in
    details: what that interface needs to attach a handler
    softmax: whether it computes softmax attention; if not, it can be swapped and not measured
    runs_in: the module that runs whenever the layer does; the layer's own by default
    """

    path: str
    module: nn.Module
    interface: str = ""
    details: Any = None
    softmax: bool = True
    runs_in: nn.Module | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A way in which models expose attention.

    name: as messages and reports show it
    find: returns the attention layers of a model that it serves
    attach: puts a handler at a layer's attention calls, by `attach_to` with an `Attachment` of its own
    certain: False if only a run shows whether the modules that it finds compute attention; such a module counts if no
        other layer is inside it or around it
    """

    name: str
    find: Callable[[nn.Module], Iterable[Layer]]
    attach: Callable[[Layer, Handler], "Detach"]
    certain: bool = True


class Attachment:
    """The handlers of one module, innermost first. Subclasses intercept the calls of one kind of layer.

    It refers to its module, so a copy of the module has an attachment of its own.

    attribute: the attribute of the module that holds it
    """

    attribute = ATTRIBUTES[0]

    def __init__(self, layer: Layer) -> None:
        self.name, self.module, self.interface = layer.path or "(model)", layer.module, layer.interface
        self.handlers: list[Handler] = []

    def install(self) -> None:
        """Intercept the module's attention calls."""
        raise NotImplementedError

    def remove(self) -> None:
        """Leave the module as it was."""
        raise NotImplementedError

    def changed(self) -> None:
        """Adapt to a change of the handlers."""

    @property
    def permanent(self) -> bool:
        """True if copies of the module keep the attachment."""
        return any(handler.permanent for handler in self.handlers)

    @property
    def replaces(self) -> bool:
        """True if a handler may return something other than the layer's own output."""
        return any(handler.replaces for handler in self.handlers)

    def run(self, call: Call, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Original]:
        """Return what the handlers make of a call, and the layer's own output.

        If the first is `original.output`, the layer returns `original.model_output`, so that every bit stays.
        Otherwise it puts the first where its own attention output would be, for example before its projection.

        compute: returns the attention's output in the layout of the call, before the output projection, and the tensor
            that the layer itself returns
        """
        layer_original = original = Original(partial(_computed, call, compute))
        for handler in tuple(self.handlers):
            original = Original(partial(_handled, handler, call, original))
        return original(), layer_original

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and files hold: permanent handlers only."""
        return {**self.__dict__, "handlers": [handler for handler in self.handlers if handler.permanent]}


def _computed(call: Call, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    output, model_output = compute()
    if output.shape != (expected := (*call.q.shape[:-1], call.v.shape[-1])):
        raise AttentionNotSeenError(
            f"{call.name} ({call.interface}): expected an attention output of shape {tuple(expected)}, for queries "
            f"{tuple(call.q.shape)} and values {tuple(call.v.shape)}; got {tuple(output.shape)}"
        )
    return output, model_output


def _handled(handler: Handler, call: Call, original: Original) -> tuple[Tensor, Tensor]:
    output = handler(call, original)
    if output is original.output and original.model_output is not None:
        return output, original.model_output
    return output, output


@dataclass(frozen=True, slots=True)
class Detach:
    """A call that takes one handler off one module; a second call does nothing. It can be copied with the module."""

    module: nn.Module
    handler: Handler
    attribute: str

    def __call__(self) -> None:
        """Take the handler off."""
        attachment = attachment_of(self.module, self.attribute)
        if attachment is None or not any(handler is self.handler for handler in attachment.handlers):
            return
        attachment.handlers = [handler for handler in attachment.handlers if handler is not self.handler]
        if attachment.handlers:
            attachment.changed()
        else:
            attachment.remove()
            del self.module.__dict__[self.attribute]


def attachment_of(module: nn.Module, attribute: str = Attachment.attribute) -> Attachment | None:
    """Return the module's attachment, None if it has no handlers."""
    attachment: Attachment | None = module.__dict__.get(attribute)
    return attachment if attachment is not None and attachment.handlers else None


def attach_to(layer: Layer, handler: Handler, kind: type[Attachment]) -> Detach:
    """Add the handler to the module's attachment; create one of this kind if it has no attachment.

    Temporary handlers are outside permanent ones: a capture records what a swapped operator returns.
    """
    attachment = attachment_of(layer.module, kind.attribute)
    if attachment is None:
        attachment = kind(layer)
        attachment.handlers = [handler]
        attachment.install()
        layer.module.__dict__[kind.attribute] = attachment
    else:
        attachment.handlers.insert(0 if handler.permanent else len(attachment.handlers), handler)
        attachment.changed()
    return Detach(layer.module, handler, kind.attribute)

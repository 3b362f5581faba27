"""One handler at every attention call of a model, for the length of a block."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from clearhead.interfaces import sdpa
from clearhead.interfaces.attachment import ATTRIBUTES, Handler, Layer, attachment_of
from clearhead.interfaces.call import Call, Original
from clearhead.interfaces.descriptions import AttentionSpec
from clearhead.interfaces.finding import attach, find
from clearhead.interfaces.forward import unwrap_forward, wrap_forward
from clearhead.interfaces.passes import Passes


@contextmanager
def attached(
    model: nn.Module, handler: Handler, passes: Passes, *, describe: Sequence[AttentionSpec] = ()
) -> Iterator[None]:
    """Attach the handler to all layers of the model, and count its passes.

    Calls of torch's fused attention by other modules count too, while the model's forward runs. Clearhead's own modules
    with an operator that is not softmax attention are left to that: what such an operator gets is not all it uses.
    """
    layers = [layer for layer in find(model, describe) if layer.softmax]
    known = {id(layer.module) for layer in layers}
    for path, module in model.named_modules():
        attachment = attachment_of(module)
        if id(module) not in known and attachment is not None and attachment.permanent:
            layers.append(Layer(path=path, module=module, interface=attachment.interface))
    passes.paths = {id(module): path or "(model)" for path, module in model.named_modules()}
    parts = {id(part) for layer in layers for part in layer.module.modules()}
    with ExitStack() as stack:
        stack.enter_context(passes.counted())
        for layer in layers:
            stack.callback(attach(layer, handler))
        if id(model) not in parts:
            stack.callback(sdpa.attach_to_model(model, _Elsewhere(handler, parts)))
        wrap_forward(model, passes)
        stack.callback(unwrap_forward, model, passes)
        yield


def is_captured(model: nn.Module) -> bool:
    """Return whether a temporary handler is attached to the model or to one of its modules."""
    attachments = [attachment_of(module, kind) for module in model.modules() for kind in ATTRIBUTES]
    return any(not handler.permanent for attachment in attachments if attachment for handler in attachment.handlers)


class _Elsewhere:
    """A handler for calls from outside the layers that have it already."""

    permanent = False

    def __init__(self, handler: Handler, parts: set[int]) -> None:
        self.handler, self.parts = handler, parts
        self.replaces = handler.replaces

    def __call__(self, call: Call, original: Original) -> Tensor:
        return original() if id(call.module) in self.parts else self.handler(call, original)

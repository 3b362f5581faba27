"""Clearhead's own modules, which call an operator that they hold: an attached module holds ours."""

import sys
from typing import Any

from torch import Tensor, nn

from clearhead.interfaces.attachment import Attachment, Detach, Handler, Interface, Layer, attach_to
from clearhead.interfaces.call import Call

NAME = "Clearhead's own modules"
_ONE_HEAD = ("SelfAttention", "LearnedQueryAttention")
_CLASSES = ("MultiHeadAttention", "TokenAttention", "SubspaceAttention", *_ONE_HEAD)


def find(model: nn.Module) -> list[Layer]:
    """Return Clearhead's attention modules."""
    classes = _classes(*_CLASSES)
    modules = [(path, module) for path, module in model.named_modules() if isinstance(module, classes)]
    return [Layer(path=path, module=module, softmax=_computes_softmax(module)) for path, module in modules]


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the module's operator."""
    return attach_to(layer, handler, _NativeAttachment)


INTERFACE = Interface(name=NAME, find=find, attach=attach)


def _computes_softmax(module: nn.Module) -> bool:
    """Return whether the module attends by softmax of q·k, with its keys as queries or without."""
    operator: Any = getattr(module, "operator", None)
    operator = getattr(operator, "operator", operator) if type(operator).__name__ == "KeysAsQueries" else operator
    name = getattr(operator, "__name__", type(operator).__name__)
    return name in ("softmax_attention", "Softmax", "symmetric_attention", "Symmetric")


def _classes(*names: str) -> tuple[type[nn.Module], ...]:
    """Return classes of `clearhead.modules`, which no model can contain unless they are imported."""
    libraries = [sys.modules.get("clearhead.modules"), sys.modules.get("clearhead.modules.token_attention")]
    classes = [getattr(library, name, None) for library in libraries for name in names]
    return tuple(kind for kind in classes if kind is not None)


class _NativeAttachment(Attachment):
    """Exchanges the operator that a module holds."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.operator: Any = None

    def install(self) -> None:
        self.operator = self.module.__dict__.get("operator")
        self.module.__dict__["operator"] = _Operator(self)

    def remove(self) -> None:
        del self.module.__dict__["operator"]
        if self.operator is not None:  # otherwise it is a child of the module
            self.module.__dict__["operator"] = self.operator


class _Operator:
    """The operator of an attached module, called as its own is: with (q, k, v), or (k, v) where keys are the queries.

    `RPCAttention` passes None as q if keys are the queries, and a pursuit that only its own operator takes.
    """

    def __init__(self, attachment: _NativeAttachment) -> None:
        self.attachment = attachment

    def __call__(self, *operands: Any, **options: Any) -> Tensor:
        module = self.attachment.module
        scale, (*_, k, v) = options.get("scale"), operands
        q = k if operands[0] is None else operands[0]

        def compute() -> tuple[Tensor, Tensor]:
            own: Any = self.attachment.operator
            output = (module._modules["operator"] if own is None else own)(*operands, **options)  # type: ignore[misc]
            return output, output

        if not self.attachment.handlers:
            return compute()[0]
        call = Call(
            name=self.attachment.name,
            module=module,
            interface=NAME,
            q=q,
            k=k,
            v=v,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
            mask=options.get("mask"),
            bias=options.get("bias"),
            dropout=options.get("dropout", 0.0),
            cross=isinstance(module, _classes("LearnedQueryAttention")),
            folded=1 if isinstance(module, _classes(*_ONE_HEAD)) else None,
        )
        output, _ = self.attachment.run(call, compute)
        return output

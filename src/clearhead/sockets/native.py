"""The socket of Clearhead's own modules whose tokens ask by their keys: their operator may never call torch's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from clearhead.modules import SubspaceAttention, SymmetricAttention
from clearhead.modules.fitting import ByKeys
from clearhead.operators.drop_in import Symmetric
from clearhead.operators.symmetric import symmetric_attention
from clearhead.sockets.call import Call
from clearhead.sockets.places import place_of
from clearhead.sockets.sdpa import show_call
from clearhead.sockets.tap import Tap

__all__ = ["native_socket"]


@contextmanager
def native_socket(tap: Tap) -> Iterator[None]:
    """Watch the operator of every module that attends by `symmetric_attention`, which is softmax attention of q = k.

    The compiled kernel computes it where it is worth it, and torch's fused attention, which another socket watches,
    elsewhere. A module in which another operator stands shows its calls itself.
    """
    opened: list[tuple[nn.Module, Any]] = []
    for module in tap.model.modules():
        plain = place_of(module) is None and id(module) not in tap.claimed
        if plain and isinstance(module, SubspaceAttention | SymmetricAttention) and _is_symmetric(module.operator):
            opened.append((module, module.__dict__["operator"]))
    for module, own in opened:
        module.__dict__["operator"] = _Watched(tap, module, own)
    try:
        yield
    finally:
        for module, own in opened:
            module.__dict__["operator"] = own


def _is_symmetric(operator: Any) -> bool:
    return operator is symmetric_attention or (
        isinstance(operator, ByKeys) and isinstance(operator.operator, Symmetric)
    )


class _Watched:
    """The module's own operator, and what it was asked shown to the tap."""

    def __init__(self, tap: Tap, module: nn.Module, own: Callable[..., Tensor]) -> None:
        self.tap, self.module, self.own = tap, module, own

    def __call__(self, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        if self.tap.inside:
            return self.own(k, v, mask=mask, scale=scale)
        with self.tap.busy():
            out = self.own(k, v, mask=mask, scale=scale)
        call = Call(q=k, k=k, v=v, scale=k.shape[-1] ** -0.5 if scale is None else scale, mask=mask)
        return show_call(self.tap, self.module, call, out, "Clearhead's own modules")

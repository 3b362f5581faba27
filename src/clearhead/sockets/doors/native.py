"""The door of Clearhead's own modules, which call an operator that they hold: they are given another."""

from typing import Any, ClassVar

from torch import Tensor, nn

from clearhead.modules import LearnedQueryAttention, MultiHeadAttention, SelfAttention, SubspaceAttention
from clearhead.modules.token_attention import TokenAttention
from clearhead.sockets.call import Call
from clearhead.sockets.places import place_of

__all__ = ["NATIVE", "NativeDoor"]

NATIVE = (MultiHeadAttention, SelfAttention, TokenAttention, LearnedQueryAttention, SubspaceAttention)
_ONE_HEAD = (SelfAttention, LearnedQueryAttention)


class NativeDoor:
    """Exchange the operator that a module holds."""

    shows: ClassVar[bool] = True

    def __init__(self) -> None:
        self.own: Any = None

    def open(self, module: nn.Module) -> None:
        """Put one there that asks the module's place."""
        self.own = module.__dict__.get("operator")
        module.__dict__["operator"] = _StandIn(module)

    def close(self, module: nn.Module) -> None:
        """Put the module's own operator back."""
        del module.__dict__["operator"]
        if self.own is not None:  # else it is a module, and a child
            module.__dict__["operator"] = self.own


class _StandIn:
    """Called as the module's own operator is: with (q, k, v), or with (k, v) where tokens ask by their keys.

    `RPCAttention` gives its queries by name, and a pursuit, which is its own operator's alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(
        self,
        *operands: Tensor,
        queries: Tensor | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        pursuit: Any = None,
    ) -> Tensor:
        *_, k, v = operands
        q = operands[0] if queries is None else queries
        place = place_of(self.module)
        assert place is not None
        call = Call(
            q=q, k=k, v=v, scale=q.shape[-1] ** -0.5 if scale is None else scale, mask=mask, bias=bias,
            dropout=dropout, cross=isinstance(self.module, LearnedQueryAttention),
            folded=1 if isinstance(self.module, _ONE_HEAD) else None,
        )  # fmt: skip
        return place.answer_shown(self.module, call)

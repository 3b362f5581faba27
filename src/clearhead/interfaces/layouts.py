"""Layouts of attention calls: which axes are inputs, windows and heads."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.heads import Heads
from clearhead.interfaces.call import AttentionNotSeenError, Call


def head_count(module: nn.Module) -> int:
    """Return the number of heads that the module has as an attribute, 1 if it has none."""
    for attribute in ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head"):
        count = getattr(module, attribute, None)
        if isinstance(count, int) and count > 0:
            return count
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The meaning of the axes before (n, d) of one call.

    folded: number of heads inside the first axis, as (b, heads)
    axis: the axis of the heads otherwise, None without such an axis
    windows: number of consecutive entries of b that belong to one input
    """

    folded: int = 1
    axis: int | None = None
    windows: int = 1

    @classmethod
    def of(cls, call: Call, inputs: int) -> "Layout":
        """Read the axes off their lengths, the module's number of heads, and the number of inputs of the pass.

        Three axes are (b, n, d), or (b x heads, n, d) if the first is a multiple of inputs x heads. Of five, the one as
        long as the number of heads holds the heads, and the other counts windows.
        """
        shape, heads = call.q.shape, head_count(call.module)
        if len(shape) == 2:
            return cls()
        if len(shape) == 3:
            fold = heads > 1 and shape[0] % (heads * max(inputs, 1)) == 0
            return cls(folded=heads if fold else 1)
        if len(shape) == 4:
            return cls(axis=1, windows=_windows(call.module, shape[0], inputs))
        axes = [axis for axis in (1, 2) if shape[axis] == heads]
        if len(shape) != 5 or not axes:
            raise AttentionNotSeenError(
                f"{type(call.module).__name__} calls attention with axes {tuple(shape)} and does not say which axis "
                "holds its heads; describe where q, k, v are"
            )
        return cls(axis=axes[0], windows=shape[3 - axes[0]])

    def heads(self, call: Call, out: Tensor, *, name: str) -> Heads:
        """Return the call of the layer `name` and its output in four axes."""
        lead = call.q.shape[:-2]
        return Heads(
            layer=0,
            name=name,
            q=self.four_axes(call.q),
            k=self.four_axes(call.k),
            v=self.four_axes(call.v),
            out=self.four_axes(out),
            scale=call.scale,
            mask=self._broadcast(call.mask, lead),
            bias=self._broadcast(call.bias, lead),
            softcap=call.softcap,
            sinks=call.sinks,
            dropout=call.dropout,
            groups=call.groups,
            windows=self.windows,
            interface=call.interface,
        )

    def four_axes(self, x: Tensor) -> Tensor:
        """Return x as (b, h, n, d), with the windows of an input next to each other in b."""
        if self.folded > 1:
            return x.reshape(len(x) // self.folded, self.folded, *x.shape[1:])
        if self.axis is None:
            return x.reshape(math.prod(x.shape[:-2]), 1, *x.shape[-2:])
        return x.movedim(self.axis, -3).flatten(0, -4)

    def restore(self, x: Tensor, like: Tensor) -> Tensor:
        """Return the inverse of `four_axes`, in the shape of `like`."""
        if self.folded > 1 or self.axis is None:
            return x.reshape(like.shape)
        heads_last = like.movedim(self.axis, -3).shape
        return x.reshape(heads_last).movedim(-3, self.axis)

    def _broadcast(self, x: Tensor | None, lead: torch.Size) -> Tensor | None:
        """Return a mask or bias in four axes. One that no leading axis varies stays small."""
        if x is None:
            return None
        if x.ndim <= 2 or all(size == 1 for size in x.shape[:-2]):
            return x.reshape(1, 1, *x.shape[-2:])
        if x.ndim == len(lead) + 2 == 4:
            return x
        return self.four_axes(x.expand(*lead, *x.shape[-2:]))


def _windows(module: nn.Module, batch: int, inputs: int) -> int:
    """Return the number of windows per input, for modules that have a window size (as in Swin)."""
    windowed = any(hasattr(part, "window_size") for part in module.modules())
    return batch // inputs if windowed and 0 < inputs < batch and batch % inputs == 0 else 1

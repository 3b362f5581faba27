"""The door of torch.nn.MultiheadAttention, alone and in torch's encoder layers.

In evaluation without gradients torch computes a whole encoder layer in one kernel that calls no module. A hook that
does nothing, on the attention alone, keeps its own layer off that path; other layers stay on it, nested tensors too.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clearhead.sockets.answering import SwapWarning
from clearhead.sockets.overriding import remove_wrapper, wrap_forward
from clearhead.sockets.places import place_of
from clearhead.sockets.tap import named_arguments
from clearhead.sockets.torch_mha import TorchCall, nested_again, read_call

__all__ = ["TorchDoor"]


class TorchDoor:
    """Stand in for the module's forward: its own projections, with another operator between them."""

    shows: ClassVar[bool] = True

    def __init__(self) -> None:
        self.hook: int | None = None

    def open(self, module: nn.Module) -> None:
        """Stand before the module's forward, off torch's fused paths."""
        self.hook = module.register_forward_pre_hook(_do_nothing).id
        wrap_forward(module, self)

    def close(self, module: nn.Module) -> None:
        """Leave the module as it was."""
        remove_wrapper(module, self)
        if self.hook is not None:
            module._forward_pre_hooks.pop(self.hook, None)
            self.hook = None

    def __call__(
        self, module: nn.MultiheadAttention, proceed: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """The module's forward. There are no weights to return: who asks for them gets None, and a warning."""
        place = place_of(module)
        assert place is not None
        # By the class's own forward: one that was put over it may take anything.
        arguments = named_arguments(nn.MultiheadAttention.forward, module, *args, **kwargs)
        call = TorchCall.read(module, arguments)
        if arguments.get("need_weights", True) and not torch.compiler.is_compiling():
            warnings.warn(
                f"{place.name} was asked for attention weights; {place.traits.name} returns none, so they are None "
                "(need_weights=False does not ask)",
                SwapWarning,
                stacklevel=2,
            )
        asked = replace(read_call(module, call), cross=not _same(arguments["query"], arguments["key"]))
        out = place.answer_shown(module, asked).transpose(1, 2).flatten(2)
        output = call.as_the_model_has_it(module.out_proj(out.to(module.out_proj.weight.dtype)))
        if arguments["query"].is_nested:
            assert call.key_padding_mask is not None
            output = nested_again(output, call.key_padding_mask)
        return output, None


def _do_nothing(*_: Any) -> None:
    """Be there."""


def _same(query: Tensor, key: Tensor) -> bool:
    """Whether both are one tensor, or views of the same memory in the same order."""
    return query is key or (not query.is_nested and query.shape == key.shape and query.data_ptr() == key.data_ptr())

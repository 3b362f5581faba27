"""Put another operator into a model's sockets, for a block; undone on leaving it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.heads import Heads
from clearhead.sockets import AttentionSpec, Tap, open_sockets

__all__ = ["swapped"]


@contextmanager
def swapped(
    model: nn.Module, operator: Callable[[Heads], Tensor], *, describe: Sequence[AttentionSpec] = ()
) -> Iterator[Tap]:
    """While inside, every attention call of the model returns `operator(heads)` instead of its own output.

    Queries that may look nowhere keep what the model gave them: no operator defines them. `tap.calls` counts.
    """

    def receive(heads: Heads) -> Tensor:
        out = operator(heads)
        return out if heads.rows is None else torch.where(heads.rows, out, heads.out)

    tap = Tap(model, receive, replaces=True)
    with open_sockets(tap, describe):
        yield tap

"""The exponential moving average of a model's weights (Polyak and Juditsky 1992; DeiT uses it)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["WeightAverage"]


class WeightAverage:
    """The average of the weights over steps, with weight decay^k for the weights k steps ago.

    `torch.optim.swa_utils.AveragedModel` copies the whole module, which a module shared between processes refuses.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names, self._weights = [list(x) for x in zip(*model.named_parameters(), strict=True)]
        self.values: list[Tensor] = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights."""
        torch._foreach_lerp_(self.values, self._weights, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def apply(self) -> None:
        """Give the model the averaged weights."""
        for weight, value in zip(self._weights, self.values, strict=True):
            weight.copy_(value)

    @torch.no_grad()
    def _exchange(self) -> None:
        for weight, value in zip(self._weights, self.values, strict=True):
            kept = weight.detach().clone()
            weight.copy_(value)
            value.copy_(kept)

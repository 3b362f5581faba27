"""How an operator gets into a layer for as long as wanted: one file per kind of layer, none of them process-wide."""

from typing import ClassVar, Protocol, runtime_checkable

from torch import nn

__all__ = ["Door"]


@runtime_checkable
class Door(Protocol):
    """One kind of layer. It refers to no module, so that a copy of a swapped model stands on its own.

    shows: as in `Place`
    """

    shows: ClassVar[bool]

    def open(self, module: nn.Module) -> None:
        """Lead the module's attention to its place (`places`)."""
        ...

    def close(self, module: nn.Module) -> None:
        """Leave the module as it was."""
        ...

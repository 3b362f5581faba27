"""What the tensors of a forward pass were computed from: a graph of the operations that ran, in numbers alone.

A tensor is known by its storage, so views of it and what `detach` gives are the same tensor, and by the last operation
that wrote there. No tensor is kept alive; weak references see to it that no address is given to another.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from clearhead.private_names import StorageWeakRef, storage_address

__all__ = ["Dataflow", "storage_of"]


def storage_of(x: Tensor) -> int | None:
    """The address of the tensor's storage; None for kinds of tensors that have none."""
    try:
        return storage_address(x)
    except (RuntimeError, NotImplementedError):
        return None


class Dataflow:
    """Nodes are operations, numbered as they ran; what was there before has a node from when it was first read.

    steps: names of the operations so far
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._names: list[str] = []
        self._parents: list[tuple[int, ...]] = []
        self._positions: list[int] = []
        self._written: dict[int | None, int] = {}
        self._addresses: list[StorageWeakRef] = []
        self._copied: dict[int, tuple[int, weakref.ref[Tensor] | None]] = {}

    def node(self, x: Tensor) -> int:
        """The operation that wrote the tensor last."""
        found = self._written.get(storage_of(x))
        return self._new("", (), [x]) if found is None else found

    def ran(self, name: str, reads: Sequence[Tensor], makes: Sequence[Tensor], *, writes: bool) -> int | None:
        """Note one operation; its node, or None if it only gave views of what it read."""
        if not writes:
            given = [storage_of(x) for x in reads]
            makes = [x for x in makes if storage_of(x) not in given]
            if not makes:
                return None
        parents = tuple([self.node(x) for x in reads])
        self.steps.append(name)
        return self._new(name, parents, makes)

    def join(self, name: str, reads: Sequence[Tensor], makes: Sequence[Tensor]) -> int:
        """Note that something outside the graph made the last tensors from the first."""
        return self._new(name, tuple([self.node(x) for x in (*reads, *makes)]), makes)

    def _new(self, name: str, parents: tuple[int, ...], makes: Sequence[Tensor]) -> int:
        node = len(self._names)
        self._names.append(name)
        self._parents.append(parents)
        self._positions.append(len(self.steps))
        for x in makes:
            self.name_again(x, node)
        return node

    def name_again(self, x: Tensor, node: int) -> None:
        """Let a tensor stand for what a node made."""
        address = storage_of(x)
        if address is not None and address not in self._written:
            self._addresses.append(StorageWeakRef(x.untyped_storage()))  # type: ignore[no-untyped-call]
        self._written[address] = node

    def copied(self, node: int, x: Tensor, *, scaled: bool) -> None:
        """Note that a node only copied a tensor, or multiplied it by a number."""
        self._copied[node] = self.node(x), weakref.ref(x) if scaled else None

    def sources(self, x: Tensor) -> Iterator[tuple[int, Tensor | None]]:
        """The tensor's node and itself, then those of what it is a copy of, or a multiple, and so on.

        For what was only copied the tensor is its copy. None for a tensor that is gone or has been written over.
        """
        node, found = self.node(x), x
        yield node, found
        while node in self._copied:
            node, scaled = self._copied[node]
            again: Any = found if scaled is None else scaled()
            gone = again is None or (scaled is not None and self.node(again) != node)
            yield node, None if gone else again
            if gone:
                return
            found = again

    def way(self, later: int, earlier: int) -> set[int]:
        """Every node from `earlier` on that `later` was computed from, itself among them."""
        found, left = {later}, [later]
        while left:
            for parent in self._parents[left.pop()]:
                if parent >= earlier and parent not in found:
                    found.add(parent)
                    left.append(parent)
        return found

    def reaches(self, earlier: int, later: int) -> bool:
        """Whether `later` was computed from `earlier`, or is it."""
        return later >= earlier and earlier in self.way(later, earlier)

    def name(self, node: int) -> str:
        """The operation's name, empty for what was there before."""
        return self._names[node]

    def position(self, node: int) -> int:
        """How many operations had run when the node was there."""
        return self._positions[node]

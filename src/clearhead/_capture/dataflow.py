"""A graph of the operations of a forward pass: which tensor was computed from which.

A tensor is identified by its storage, so its views and detached versions are the same tensor, and by the last operation
that wrote there. No tensor is kept alive; weak references keep its storage's address from being reused.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from clearhead.private_names import StorageWeakRef, storage_address


def storage_of(x: Tensor) -> int | None:
    """Return the address of the tensor's storage, None for tensors without one."""
    try:
        return storage_address(x)
    except (RuntimeError, NotImplementedError):
        return None


class Dataflow:
    """A graph whose nodes are operations in the order of the pass; earlier tensors get a node when first read.

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
        """Return the operation that wrote the tensor last."""
        node = self._written.get(storage_of(x))
        return self._new("", (), [x]) if node is None else node

    def add(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, writes: bool) -> int | None:
        """Add one operation; return its node, or None if it only made views of what it read."""
        if not writes:
            storages = [storage_of(x) for x in inputs]
            outputs = [x for x in outputs if storage_of(x) not in storages]
            if not outputs:
                return None
        parents = tuple([self.node(x) for x in inputs])
        self.steps.append(name)
        return self._new(name, parents, outputs)

    def join(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        """Add an operation outside the graph that made the last tensors from the first."""
        return self._new(name, tuple([self.node(x) for x in (*inputs, *outputs)]), outputs)

    def _new(self, name: str, parents: tuple[int, ...], outputs: Sequence[Tensor]) -> int:
        node = len(self._names)
        self._names.append(name)
        self._parents.append(parents)
        self._positions.append(len(self.steps))
        for x in outputs:
            self.assign(x, node)
        return node

    def assign(self, x: Tensor, node: int) -> None:
        """Assign a tensor to a node."""
        address = storage_of(x)
        if address is not None and address not in self._written:
            self._addresses.append(StorageWeakRef(x.untyped_storage()))  # type: ignore[no-untyped-call]
        self._written[address] = node

    def note_copy(self, node: int, x: Tensor, *, scaled: bool) -> None:
        """Note that a node only copied a tensor, or multiplied it by a number."""
        self._copied[node] = self.node(x), weakref.ref(x) if scaled else None

    def sources(self, x: Tensor) -> Iterator[tuple[int, Tensor | None]]:
        """Yield the tensor's node and itself, then those of the tensor it is a copy or a multiple of, and so on.

        Of a copied tensor the copy is returned; None stands for one that no longer exists or was overwritten.
        """
        node, tensor = self.node(x), x
        yield node, tensor
        while node in self._copied:
            node, reference = self._copied[node]
            source: Any = tensor if reference is None else reference()
            lost = source is None or (reference is not None and self.node(source) != node)
            yield node, None if lost else source
            if lost:
                return
            tensor = source

    def path(self, later: int, earlier: int) -> set[int]:
        """Return all nodes from `earlier` on that `later` was computed from, `later` included."""
        nodes, queue = {later}, [later]
        while queue:
            for parent in self._parents[queue.pop()]:
                if parent >= earlier and parent not in nodes:
                    nodes.add(parent)
                    queue.append(parent)
        return nodes

    def reaches(self, earlier: int, later: int) -> bool:
        """Return whether `later` was computed from `earlier` or equals it."""
        return later >= earlier and earlier in self.path(later, earlier)

    def parents(self, node: int) -> tuple[int, ...]:
        """Return the nodes of the tensors that the operation read, in order."""
        return self._parents[node]

    def name(self, node: int) -> str:
        """Return the operation's name, empty for earlier tensors."""
        return self._names[node]

    def position(self, node: int) -> int:
        """Return the number of operations before the node."""
        return self._positions[node]

"""The peak memory of the tensors that a computation creates, the same on every machine."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from clearhead.private_names import DispatchMode


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Return the largest number of bytes of tensors that `compute` created and that exist at the same time.

    Tensors from before, also if they are changed in place, and memory inside compiled kernels are not counted.
    """
    live = _LiveBytes()
    with live:
        compute()
    return live.peak


class _LiveBytes(DispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new storages while they exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._counted: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._count(leaf.untyped_storage())
        return results

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._counted:
            return

        def forget(_: Any) -> None:
            self.now -= size
            self._counted.pop(key, None)

        self._counted[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)

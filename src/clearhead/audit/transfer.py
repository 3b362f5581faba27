"""Objects with tensors, sent to another process on Linux.

Tensors are copied once, into memory that has no name and that both processes map, and are used there. /dev/shm is not
used: containers limit it. Tensors keep their strides and their place within 64 bytes, and those that share memory are
copied once: arithmetic on them then rounds as in the process they come from.
"""

import io
import mmap
import os
import pickle
import socket
import sys
from bisect import bisect_right
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Channel"]

ALIGNMENT = 64
"""Bytes that torch aligns its tensors to."""
NO_BLOCK = -1


class Channel:
    """One end of a connection between two processes, through which values with tensors are sent.

    Memory is used again for another value once the receiver has no tensor on it: new memory takes several times as
    long as the copy. Every message says which of the other end's memory its sender has no tensors on any more.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._own: dict[int, _Block] = {}
        """Blocks that were sent, by number."""
        self._free: set[int] = set()
        self._received: dict[int, _Block] = {}
        """Blocks of the other process."""
        self._in_use: set[int] = set()
        self._count = 0

    def send(self, value: Any) -> int:
        """Send a value; return the number of bytes of its tensors. They are copied, and may change afterwards."""
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(value)
        spans, parts, size = [], [], 0
        for number, (contents, ranges) in enumerate(pickler.storages.values()):
            for start, end in _united(ranges):
                spans.append((number, start, size, end - start))
                parts.append((size, contents[start:end]))
                size += -(-(end - start) // ALIGNMENT) * ALIGNMENT
        released = {number for number in self._in_use if not self._received[number].in_use}
        self._in_use -= released
        block, memory, dropped = self._take(size) if size else (NO_BLOCK, None, set())
        try:
            header = (block, 0 if memory is None else size, released, dropped, spans, stream.getvalue())
            self._connection.send_bytes(pickle.dumps(header))
            if size:
                contents = self._own[block].contents()
                for at, part in parts:
                    contents[at : at + len(part)] = part
                # After the numbers: the other process waits for it.
                with socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                    socket.send_fds(channel, [b"m"], [] if memory is None else [memory])
        finally:
            if memory is not None:
                os.close(memory)
        return size

    def receive(self) -> Any:
        """Return the next value. Raise EOFError if the other process has ended."""
        message = self._connection.recv_bytes()
        block, size, released, dropped, spans, body = pickle.loads(message)  # noqa: S301  of our own process
        self._free |= released
        for number in dropped:
            del self._received[number]
        storages: dict[int, list[tuple[int, Tensor]]] = {}
        if block != NO_BLOCK:
            with socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                sign, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            if not sign or (size and not descriptors):
                raise EOFError
            if size:
                try:
                    self._received[block] = _Block(descriptors[0], size)
                finally:
                    os.close(descriptors[0])
            self._in_use.add(block)
            contents = self._received[block].contents()
            for number, start, at, length in spans:
                storages.setdefault(number, []).append((start, contents[at : at + length]))
        return _Unpickler(io.BytesIO(body), storages).load()

    @property
    def shared(self) -> int:
        """Bytes of the other end's memory that this process maps too."""
        return sum(block.size for block in self._received.values())

    def _take(self, size: int) -> tuple[int, int | None, set[int]]:
        """Return a block of at least this size, a descriptor if it is new, and the blocks that were dropped for it."""
        fitting = [number for number in self._free if self._own[number].size >= size]
        if fitting:
            number = min(fitting, key=lambda number: self._own[number].size)
            self._free.remove(number)
            return number, None, set()
        dropped, self._free = self._free, set()
        for number in dropped:
            del self._own[number]
        self._count += 1
        memory = os.memfd_create("clearhead")
        try:
            os.ftruncate(memory, size)
            self._own[self._count] = _Block(memory, size)
        except BaseException:
            os.close(memory)
            raise
        return self._count, memory, dropped


class _Block:
    """Memory that two processes map, until no tensor is left on it."""

    def __init__(self, memory: int, size: int) -> None:
        self.size = size
        # In one step, not page by page.
        self._pages = mmap.mmap(memory, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    @property
    def in_use(self) -> bool:
        """Whether there are tensors on it: each holds the pages, beside this object and the count itself."""
        return sys.getrefcount(self._pages) > 2

    def contents(self) -> Tensor:
        """Return its bytes."""
        return torch.frombuffer(self._pages, dtype=torch.uint8)


class _Pickler(pickle.Pickler):
    """Writes where the numbers of a tensor are instead of the numbers."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.storages: dict[int, tuple[Tensor, list[tuple[int, int]]]] = {}
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        """Return storage, byte, dtype, shape and strides of a tensor; None for other values."""
        if not isinstance(value, Tensor):
            return None
        value = value.detach()
        if value.numel() == 0:
            return -1, 0, value.dtype, tuple(value.shape), value.stride()
        storage = value.untyped_storage()
        key = storage.data_ptr()
        if key not in self.storages:
            self.storages[key] = (torch.empty(0, dtype=torch.uint8).set_(storage), [])
            self._numbers[key] = len(self._numbers)
        last = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
        start = value.storage_offset() * value.itemsize
        end = start + (last + 1) * value.itemsize
        self.storages[key][1].append((start - start % ALIGNMENT, end))
        return self._numbers[key], start, value.dtype, tuple(value.shape), value.stride()


class _Unpickler(pickle.Unpickler):
    """Makes tensors on the received bytes."""

    def __init__(self, stream: io.BytesIO, storages: dict[int, list[tuple[int, Tensor]]]) -> None:
        super().__init__(stream)
        self._storages = storages

    def persistent_load(self, place: Any) -> Tensor:
        """Return the tensor that `persistent_id` was called with."""
        number, start, dtype, shape, stride = place
        if number < 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        spans = self._storages[number]
        first, contents = spans[bisect_right(spans, start, key=lambda span: span[0]) - 1]
        whole = contents[: contents.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return whole.as_strided(shape, stride, whole.storage_offset() + (start - first) // dtype.itemsize)


def _united(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, those that overlap as one."""
    united: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united

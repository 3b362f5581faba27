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
from bisect import bisect_right
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "receive", "send"]

ALIGNMENT = 64
"""Bytes that torch aligns its tensors to."""


def send(connection: Connection, value: Any) -> int:
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
    connection.send_bytes(pickle.dumps((size, spans, stream.getvalue())))
    if size:
        memory = os.memfd_create("clearhead")
        try:
            os.ftruncate(memory, size)
            mapped = _mapped(memory, size)
            for at, part in parts:
                mapped[at : at + len(part)] = part
            with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                socket.send_fds(channel, [b"m"], [memory])
        finally:
            os.close(memory)
    return size


def receive(connection: Connection) -> Any:
    """Return the next value. Raise EOFError if the other process has ended."""
    size, spans, body = pickle.loads(connection.recv_bytes())  # noqa: S301  of our own process
    storages: dict[int, list[tuple[int, Tensor]]] = {}
    if size:
        with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not descriptors:
            raise EOFError
        try:
            contents = _mapped(descriptors[0], size)
        finally:
            os.close(descriptors[0])
        for number, start, at, length in spans:
            storages.setdefault(number, []).append((start, contents[at : at + length]))
    return _Unpickler(io.BytesIO(body), storages).load()


def _mapped(memory: int, size: int) -> Tensor:
    """Return the bytes of a file in memory; they are unmapped with the last tensor on them."""
    pages = mmap.mmap(memory, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)  # in one step, not page by page
    return torch.frombuffer(pages, dtype=torch.uint8)


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

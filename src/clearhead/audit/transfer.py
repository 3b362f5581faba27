"""Objects with tensors, sent to another process through a pipe.

Tensors keep their strides and their place within 64 bytes, and those that share memory are sent once: arithmetic on
them then rounds as in the process they come from. Shared memory of the system is not used: containers limit it.
"""

import io
import pickle
from bisect import bisect_right
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

__all__ = ["pack", "receive", "send"]

ALIGNMENT = 64
"""Bytes that torch aligns its tensors to."""


def pack(value: Any) -> list[Any]:
    """Return the chunks of bytes of a message: a copy, so that tensors may change afterwards."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    spans, copies = [], []
    for number, (contents, ranges) in enumerate(pickler.storages.values()):
        for start, end in _united(ranges):
            spans.append((number, start, end - start))
            copies.append(contents[start:end].clone().numpy())
    return [pickle.dumps(spans), stream.getbuffer(), *copies]


def send(connection: Connection, message: Sequence[Any]) -> None:
    """Write a packed message."""
    for chunk in message:
        connection.send_bytes(chunk)


def receive(connection: Connection) -> Any:
    """Return the next message. Raise EOFError if the other process has ended."""
    spans, body = pickle.loads(connection.recv_bytes()), connection.recv_bytes()  # noqa: S301  of our own process
    storages: dict[int, list[tuple[int, Tensor]]] = {}
    for number, start, size in spans:
        contents = torch.empty(size, dtype=torch.uint8)
        connection.recv_bytes_into(contents.numpy())
        storages.setdefault(number, []).append((start, contents))
    return _Unpickler(io.BytesIO(body), storages).load()


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
        return whole.as_strided(shape, stride, (start - first) // dtype.itemsize)


def _united(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, those that overlap as one."""
    united: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united

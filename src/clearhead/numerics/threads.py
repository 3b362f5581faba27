"""Control of the number of threads."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


_limiting = threading.Lock()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit numpy's and scipy's BLAS to one thread, a setting of the process.

    The first caller sets and restores it; concurrent callers leave it alone. If two callers each restored the value
    that they read, it could stay at one.
    """
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@cache
def _libraries() -> ThreadpoolController:
    """Return the BLAS libraries of this process, cached: the search takes longer than a small decomposition."""
    import scipy.linalg  # noqa: F401  loads the last library

    return ThreadpoolController()


_workers: ContextVar[int | None] = ContextVar("workers", default=None)
"""Number of threads that `one_thread_each` uses; torch's if None."""


@contextmanager
def one_thread(*, workers: bool = False) -> Iterator[None]:
    """Limit torch and BLAS to one thread, for many small decompositions.

    For matrices of a hundred rows a second thread gains nothing, and it waits by spinning: with one other busy process
    the same work took twenty times as long on two threads.

    workers: `one_thread_each` inside uses as many threads as torch had
    """
    outer = _workers.set(torch.get_num_threads() if workers else None)
    try:
        with torch_threads(1), _one_blas_thread():
            yield
    finally:
        _workers.reset(outer)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use this many threads inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def one_thread_each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Apply the function to each item in parallel over torch's threads, one thread per item, without gradients."""
    threads = _workers.get() or torch.get_num_threads()

    @torch.no_grad()
    def alone(item: Item) -> Result:
        return function(item)

    with one_thread():
        if min(threads, len(items)) < 2:
            return [alone(item) for item in items]
        return list(_pool(threads).map(alone, items))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Return a pool of threads, cached: starting them takes as long as a small decomposition."""
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork

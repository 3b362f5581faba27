"""How many threads a piece of arithmetic runs on."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["one_thread", "one_thread_each"]

Item = TypeVar("Item")
Result = TypeVar("Result")


_limiting = threading.Lock()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """numpy's and scipy's BLAS on one thread, which is a setting of the process.

    Who comes first sets it and sets it back, and others in between leave it: two that each set back what they found
    could leave it at one for good.
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
    """The BLAS libraries of this process: to look for them takes longer than a small decomposition."""
    import scipy.linalg  # noqa: F401  loads the last of them

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run many small decompositions on one thread, of torch and of BLAS.

    For matrices of a hundred rows a second thread gains nothing, and it waits by spinning: beside one busy process the
    same work took twenty times as long on two threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _one_blas_thread():
            yield
    finally:
        torch.set_num_threads(threads)


def one_thread_each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The function of every item, in order; as many items at a time as torch has threads, each on one, no gradients."""
    threads = torch.get_num_threads()

    @torch.no_grad()
    def alone(item: Item) -> Result:
        return function(item)

    with one_thread():
        if min(threads, len(items)) < 2:
            return [alone(item) for item in items]
        return list(_pool(threads).map(alone, items))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that stay: to start them takes as long as a small decomposition."""
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads

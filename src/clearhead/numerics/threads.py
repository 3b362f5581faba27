"""How many threads a piece of arithmetic runs on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run many small decompositions on one thread.

    For matrices of a hundred rows a second thread gains nothing, and it waits by spinning: beside one busy process the
    same work took twenty times as long on two threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

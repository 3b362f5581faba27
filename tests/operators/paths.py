"""The methods of computing symmetric attention, each of which a test can force for any size."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from clearhead.kernels.library import status

SYMMETRIC = importlib.import_module("clearhead.operators.symmetric")  # by its name the package has the function
LIBRARY = importlib.import_module("clearhead.operators.symmetric_kernel")

ANY_DTYPE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PATHS = ("as chosen", "kernel", "tiles", "torch")


@contextmanager
def forced(path: str) -> Iterator[None]:
    """Return a context in which symmetric attention uses this method wherever possible."""
    if path == "as chosen":
        yield
        return
    if path == "kernel" and status().kernel is None:
        pytest.skip(f"no compiled kernel: {status().reason}")
    never = 1 << 62
    with (
        patch.object(SYMMETRIC, "_MIN_KERNEL_OPERATIONS", 0 if path == "kernel" else never),
        patch.object(SYMMETRIC, "_MIN_PURSUIT_OPERATIONS", 0 if path == "kernel" else never),
        patch.object(SYMMETRIC, "_MIN_TILED_TOKENS", 0 if path == "tiles" else never),
        patch.object(SYMMETRIC, "_TILED_DTYPES", ANY_DTYPE),
        patch.object(LIBRARY, "_kernel_installed", lambda: path == "kernel"),
    ):
        yield

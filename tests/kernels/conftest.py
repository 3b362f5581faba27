import pytest

from clearhead.kernels.library import Kernel, kernel, status


@pytest.fixture
def compiled() -> Kernel:
    """Return the kernel of this process."""
    result = kernel()
    if result is None:
        pytest.skip(f"no compiled kernel: {status().reason}")
    return result

import pytest

from clearhead.kernels.library import Kernel, kernel, status


@pytest.fixture
def compiled() -> Kernel:
    """The kernel of this process."""
    found = kernel()
    if found is None:
        pytest.skip(f"no compiled kernel: {status().reason}")
    return found

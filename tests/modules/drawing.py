"""Random tensors and parameters for tests of modules, and comparisons of results."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from clearhead.numerics.precision import tolerance
from clearhead.testing import require_close

Module = TypeVar("Module", bound=nn.Module)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def boolean(*shape: int, seed: int = 0, share: float = 0.6) -> Tensor:
    """Return a random mask with at least one visible key in every row."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    first = torch.arange(shape[-1]) == 0
    return drawn | first


def randomised(module: Module, *, seed: int = 0) -> Module:
    """Return the module in double precision with random parameters, including biases, which torch sets to zero."""
    module = module.double()
    for index, parameter in enumerate(module.parameters()):
        width = parameter.shape[-1] if parameter.ndim > 1 else 1
        nn.init.zeros_(parameter).data += normal(*parameter.shape, seed=1000 * seed + index) / width**0.5
    return module


def require_same(got: Tensor, want: Tensor, *, what: str = "output", size: float | None = None) -> None:
    require_close(got.detach(), want.detach(), within=tolerance(torch.float64), what=what, size=size)


def differ(got: Tensor, want: Tensor) -> bool:
    """Return whether two results differ clearly, as a control must."""
    got, want = got.detach(), want.detach()
    return float((got - want).abs().max()) > 1e-3 * float(want.abs().max())

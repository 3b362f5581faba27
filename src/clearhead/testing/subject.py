"""The subject of a check: an attention, operator or module, with random inputs and its tolerance.

Sizes are distinct primes, so that no transposition passes by accident. Tolerances come from
`clearhead.numerics.precision`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BATCH = 2

Inputs = dict[str, Tensor]
"""Tensors by the name of the argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differentiable:
    """A function of tensors that require gradients, as `torch.autograd.gradcheck` takes it."""

    function: Callable[..., Tensor]
    leaves: tuple[Tensor, ...]
    fast: bool
    """True to compare along one random direction per leaf instead of entry by entry."""


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """An attention under check: how to draw inputs for it and how to call it."""

    backend: str = "eager"
    """Backend of torch.compile."""
    seed: int = 0

    @property
    @abstractmethod
    def function(self) -> Callable[..., object]:
        """The attention itself, called with the values of `draw()` and the options as keywords."""

    @property
    @abstractmethod
    def content(self) -> str:
        """Name of the input on which the output must depend."""

    @abstractmethod
    def draw(self, *, dtype: torch.dtype = torch.float64, tokens: int | None = None, seed: int | None = None) -> Inputs:
        """Draw standard normal inputs, the same for the same sizes and seed."""

    @abstractmethod
    def options(self) -> Inputs:
        """Return a mask that hides some keys, by argument name; empty if the attention takes no mask."""

    @abstractmethod
    def output_shape(self, out: Tensor) -> tuple[int, ...]:
        """Return the shape expected of the output for `draw()`, with sizes that may be any taken from `out`."""

    @abstractmethod
    def expected(self, inputs: Inputs, **options: Tensor) -> Tensor:
        """Return the output computed another way, or in double precision, to compare with."""

    @abstractmethod
    def rounded(self, dtype: torch.dtype) -> tuple["Subject", "Subject"]:
        """Return the subject in `dtype`, and the float64 subject with the same (rounded) parameters."""

    @abstractmethod
    def differentiable(self) -> Differentiable:
        """Return the attention as a function of small inputs, and of its parameters if it has any."""

    @abstractmethod
    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative error that rounding in `dtype` explains."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Learned parameters by name."""
        return {}

    @property
    def state(self) -> dict[str, Tensor]:
        """State by name, which a call in evaluation mode must not change."""
        return {}

    def output(self, inputs: Inputs, **options: Tensor | bool) -> Tensor:
        """Return the output for copies of the inputs, so that a change in place shows in its own check only."""
        return first_tensor(self.function(*(value.clone() for value in inputs.values()), **options))

    def gradients(self, inputs: Inputs, **options: Tensor | bool) -> dict[str, Tensor]:
        """Return gradients of a fixed random linear form of the output, for inputs and parameters.

        Gradients are zeros where the output does not use a tensor.
        """
        leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
        out = self.output(leaves, **options)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        form = (out * weights.to(out.device, out.dtype)).sum()
        require(form.requires_grad, "the output is detached from its inputs: it has no gradient")
        named = leaves | self.parameters
        values = torch.autograd.grad(form, list(named.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(named, values, strict=True))


def first_tensor(out: object) -> Tensor:
    """Return the output, or its first element if the attention returns weights or a cache as well."""
    first = out[0] if isinstance(out, tuple | list) and out else out
    if not isinstance(first, Tensor):
        raise AssertionError(f"expected a tensor, or a tuple that starts with one; got {type(out).__name__}")
    return first


def require(condition: bool | Tensor, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def require_close(got: Tensor, want: Tensor, *, within: float, what: str, size: float | None = None) -> None:
    """Raise AssertionError unless max |got - want| <= within * size; by default size = max |want|."""
    require(got.shape == want.shape, f"{what}: expected shape {tuple(want.shape)}, got {tuple(got.shape)}")
    require(got.isfinite().all(), f"{what}: not finite")
    if want.numel() == 0:
        return
    size = want.abs().max().item() if size is None else size
    error = (got.double() - want.double()).abs().max().item() / max(size, torch.finfo(torch.float64).tiny)
    require(error <= within, f"{what}: relative error {error:.1e}, at most {within:.1e} allowed")

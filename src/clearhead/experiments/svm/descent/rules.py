r"""Optimisers of small matrices, for many runs at once.

Every parameter is (r, a, b): one matrix per run. Rules that normalise do so per run and parameter, as Tarzanagh et al.
2023 (section 5) do for K and Q.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon

__all__ = ["Adam", "GradientDescent", "NormalisedDescent", "Rule", "SignDescent"]

Parameters = tuple[Tensor, ...]
FLOOR = machine_epsilon(torch.float64)


@runtime_checkable
class Rule(Protocol):
    """An optimiser: a step from parameters and gradients, with a state."""

    def start(self, parameters: Parameters) -> Any:
        """Return the state before the first step."""

    def step(self, parameters: Parameters, gradients: Parameters, state: Any) -> tuple[Parameters, Any]:
        """Return the parameters after a step, and the new state."""


class _Stateless:
    """An optimiser without state."""

    def start(self, parameters: Parameters) -> None:
        """Return no state."""

    def step(self, parameters: Parameters, gradients: Parameters, state: None) -> tuple[Parameters, None]:
        """Subtract the step of each parameter."""
        return tuple(p - self.move(g) for p, g in zip(parameters, gradients, strict=True)), None

    def move(self, gradient: Tensor) -> Tensor:
        """Return what to subtract from a parameter."""
        raise NotImplementedError


@dataclass(frozen=True)
class GradientDescent(_Stateless):
    r""":math:`W \leftarrow W - \eta \nabla`"""

    rate: float = 0.1

    def move(self, gradient: Tensor) -> Tensor:
        """Return the gradient times the rate."""
        return self.rate * gradient


@dataclass(frozen=True)
class NormalisedDescent(_Stateless):
    r""":math:`W \leftarrow W - \eta \nabla / (\|\nabla\|_F + \epsilon)`

    floor: the epsilon, machine precision as published: steps vanish once the gradient is below it. With 0 they keep
        their length until the gradient underflows; a gradient of zero changes nothing.
    """

    rate: float = 0.1
    floor: float = FLOOR

    def move(self, gradient: Tensor) -> Tensor:
        """Return a step of nearly constant length while the gradient is above the floor."""
        length = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True) + self.floor
        return gradient * (self.rate / torch.where(length > 0, length, torch.inf))


@dataclass(frozen=True)
class SignDescent(_Stateless):
    r""":math:`W \leftarrow W - \eta\, \mathrm{sign} \nabla`, entry by entry: steepest descent in the max-entry norm."""

    rate: float = 0.1

    def move(self, gradient: Tensor) -> Tensor:
        """Return the same length in every entry."""
        return self.rate * gradient.sign()


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) as in torch; with `decay`, AdamW (Loshchilov and Hutter 2019)."""

    rate: float = 0.1
    averages: tuple[float, float] = field(default=(0.9, 0.999))
    floor: float = 1e-8
    decay: float = 0.0

    def start(self, parameters: Parameters) -> tuple[int, Parameters, Parameters]:
        """Return zero steps and moments of zero."""
        zeros = tuple(torch.zeros_like(p) for p in parameters)
        return 0, zeros, zeros

    def step(
        self, parameters: Parameters, gradients: Parameters, state: tuple[int, Parameters, Parameters]
    ) -> tuple[Parameters, tuple[int, Parameters, Parameters]]:
        """Decay, then step along the first moment over the root of the second."""
        number, first, second = state
        number += 1
        slow, slower = self.averages
        first = tuple(slow * m + (1 - slow) * g for m, g in zip(first, gradients, strict=True))
        second = tuple(slower * s + (1 - slower) * g**2 for s, g in zip(second, gradients, strict=True))
        size = self.rate / (1 - slow**number)
        spread = (1 - slower**number) ** 0.5
        moved = tuple(
            p * (1 - self.rate * self.decay) - size * m / (s.sqrt() / spread + self.floor)
            for p, m, s in zip(parameters, first, second, strict=True)
        )
        return moved, (number, first, second)

r"""Rules by which parameters follow their gradients, for many runs at once.

Every parameter is (r, a, b): a matrix for each of r runs. What a rule normalises, it normalises by run and parameter,
as Tarzanagh et al. 2023 (section 5) do for K and Q.
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
    """One step from parameters and gradients, and what the rule remembers."""

    def start(self, parameters: Parameters) -> Any:
        """What the rule remembers before the first step."""

    def step(self, parameters: Parameters, gradients: Parameters, memory: Any) -> tuple[Parameters, Any]:
        """The parameters after a step, and what is remembered of it."""


class _Forgetful:
    """A rule that looks at the gradient alone."""

    def start(self, parameters: Parameters) -> None:
        """Nothing."""

    def step(self, parameters: Parameters, gradients: Parameters, memory: None) -> tuple[Parameters, None]:
        """Each parameter by itself."""
        return tuple(p - self.move(g) for p, g in zip(parameters, gradients, strict=True)), None

    def move(self, gradient: Tensor) -> Tensor:
        """What is taken off a parameter."""
        raise NotImplementedError


@dataclass(frozen=True)
class GradientDescent(_Forgetful):
    r""":math:`W \leftarrow W - \eta \nabla`"""

    rate: float = 0.1

    def move(self, gradient: Tensor) -> Tensor:
        """The gradient times the rate."""
        return self.rate * gradient


@dataclass(frozen=True)
class NormalisedDescent(_Forgetful):
    r""":math:`W \leftarrow W - \eta \nabla / (\|\nabla\|_F + \epsilon)`

    floor: the epsilon, machine precision as published: steps vanish once the gradient is below it. Without it (0) they
        go on as far as gradients are numbers; a gradient of zero moves nothing.
    """

    rate: float = 0.1
    floor: float = FLOOR

    def move(self, gradient: Tensor) -> Tensor:
        """A step of nearly the same length wherever the gradient is above the floor."""
        length = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True) + self.floor
        return gradient * (self.rate / torch.where(length > 0, length, torch.inf))


@dataclass(frozen=True)
class SignDescent(_Forgetful):
    r""":math:`W \leftarrow W - \eta\, \mathrm{sign} \nabla`, entry by entry: steepest descent in the max-entry norm."""

    rate: float = 0.1

    def move(self, gradient: Tensor) -> Tensor:
        """The same length in every entry."""
        return self.rate * gradient.sign()


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) as torch has it; with `decay`, AdamW (Loshchilov and Hutter 2019)."""

    rate: float = 0.1
    averages: tuple[float, float] = field(default=(0.9, 0.999))
    floor: float = 1e-8
    decay: float = 0.0

    def start(self, parameters: Parameters) -> tuple[int, Parameters, Parameters]:
        """No step, and moments of zero."""
        zeros = tuple(torch.zeros_like(p) for p in parameters)
        return 0, zeros, zeros

    def step(
        self, parameters: Parameters, gradients: Parameters, memory: tuple[int, Parameters, Parameters]
    ) -> tuple[Parameters, tuple[int, Parameters, Parameters]]:
        """Decay, then a step along the first moment over the root of the second."""
        number, first, second = memory
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

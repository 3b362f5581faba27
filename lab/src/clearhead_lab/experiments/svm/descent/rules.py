r"""Parameterisations of W (W itself, or K and Q with :math:`W = K Q^T`) and optimisers, for many runs at once.

Every parameter is (r, a, b): one matrix per run. Rules that normalise do so per run and parameter, as Tarzanagh et al.
2023 (section 5) do for K and Q.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float

Parameters = tuple[Tensor, ...]


@runtime_checkable
class Parameterisation(Protocol):
    """A map from the trained parameters to W, with its derivative."""

    def weights(self, parameters: Parameters) -> Float[Tensor, "r d e"]:
        """Return W."""

    def gradients(self, parameters: Parameters, gradient: Float[Tensor, "r d e"]) -> Parameters:
        """Return the gradients of the parameters from the gradient of W."""

    def length(self, radius: float) -> float:
        """Return the norm of all parameters at which W has this radius in the norm that descent makes least."""


@dataclass(frozen=True, slots=True)
class Direct:
    """W as the only parameter. Normalised descent leads to the SVM of least Frobenius norm."""

    def weights(self, parameters: Parameters) -> Float[Tensor, "r d e"]:
        """Return W."""
        return parameters[0]

    def gradients(self, parameters: Parameters, gradient: Float[Tensor, "r d e"]) -> Parameters:
        """Return the gradient unchanged."""
        return (gradient,)

    def length(self, radius: float) -> float:
        """Return the radius: the norm is the Frobenius norm."""
        return radius


@dataclass(frozen=True, slots=True)
class Factored:
    r"""K in R^{d x m} and Q in R^{e x m} as parameters. Descent leads to the SVM of least nuclear norm.

    penalty: lambda of the term :math:`\lambda (\|K\|_F^2 + \|Q\|_F^2)` in the loss, machine precision as published
    """

    penalty: float = machine_epsilon(torch.float64)

    def weights(self, parameters: Parameters) -> Float[Tensor, "r d e"]:
        """Return K Q^T."""
        K, Q = parameters
        return K @ Q.mT

    def gradients(self, parameters: Parameters, gradient: Float[Tensor, "r d e"]) -> Parameters:
        """Return the gradients by the chain rule, including the penalty's."""
        K, Q = parameters
        return gradient @ Q + 2 * self.penalty * K, gradient.mT @ K + 2 * self.penalty * Q

    def length(self, radius: float) -> float:
        r"""Return the root of twice the radius, as :math:`\|K\|_F^2 + \|Q\|_F^2 \ge 2 \|K Q^T\|_*`."""
        return math.sqrt(2 * radius)


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

r"""How W is made of what is trained: W itself, or K and Q with :math:`W = K Q^T`."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float

__all__ = ["Direct", "Factored", "Parameterisation"]

Parameters = tuple[Tensor, ...]


@runtime_checkable
class Parameterisation(Protocol):
    """W from the parameters, and their gradients from that of W."""

    def weights(self, parameters: Parameters) -> Float[Tensor, "r d e"]:
        """W."""

    def gradients(self, parameters: Parameters, gradient: Float[Tensor, "r d e"]) -> Parameters:
        """By the chain rule."""

    def length(self, radius: float) -> float:
        """How long the parameters may be together, for W to be within that radius of the norm they favour."""


@dataclass(frozen=True, slots=True)
class Direct:
    """The one parameter is W. Normalised descent leads to the SVM of least Frobenius norm."""

    def weights(self, parameters: Parameters) -> Float[Tensor, "r d e"]:
        """W."""
        return parameters[0]

    def gradients(self, parameters: Parameters, gradient: Float[Tensor, "r d e"]) -> Parameters:
        """The gradient itself."""
        return (gradient,)

    def length(self, radius: float) -> float:
        """The Frobenius norm."""
        return radius


@dataclass(frozen=True, slots=True)
class Factored:
    r"""The parameters are K in R^{d x m} and Q in R^{e x m}. Descent leads to the SVM of least nuclear norm.

    penalty: lambda of the term :math:`\lambda (\|K\|_F^2 + \|Q\|_F^2)` of the loss, machine precision as published
    """

    penalty: float = machine_epsilon(torch.float64)

    def weights(self, parameters: Parameters) -> Float[Tensor, "r d e"]:
        """K Q^T."""
        K, Q = parameters
        return K @ Q.mT

    def gradients(self, parameters: Parameters, gradient: Float[Tensor, "r d e"]) -> Parameters:
        """By the chain rule, with the penalty's own."""
        K, Q = parameters
        return gradient @ Q + 2 * self.penalty * K, gradient.mT @ K + 2 * self.penalty * Q

    def length(self, radius: float) -> float:
        r"""As :math:`\|K\|_F^2 + \|Q\|_F^2 \ge 2 \|K Q^T\|_*`, the root of twice the nuclear norm."""
        return math.sqrt(2 * radius)

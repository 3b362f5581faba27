r"""Parameterisations of W: W itself, or K and Q with :math:`W = K Q^T`."""

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

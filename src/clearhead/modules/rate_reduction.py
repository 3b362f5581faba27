"""Maximal coding rate reduction as a loss (MCR2: Yu et al. 2020, arXiv 2006.08558)."""

import math

from torch import Tensor, nn
from torch.nn.functional import normalize

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import RateReduction, check_eps, class_rates, coding_rate
from clearhead.shapes import Float, Int

__all__ = ["RateReductionLoss"]


class RateReductionLoss(nn.Module):
    r"""What training minimises so that classes lie in subspaces, each small, and together as large as can be.

    .. math:: L = R^c(Z; \epsilon \mid \Pi) - \gamma_2\, R(Z; \epsilon / \sqrt{\gamma_1})

    With gamma_1 = gamma_2 = 1 it is minus the rate reduction, so it is negative in every run that learns anything.

    eps: the error itself. The published code calls its square "eps", trains with .5 (eps = .707, the default here) and
        has .01 (eps = .1) as the default of its class
    gamma1: multiplies alpha within R; gamma2: multiplies R
    normalise: whether features are first brought to length one, which the theory asks for; the published networks end
        in it, and without it or a penalty the loss has no minimum
    """

    def __init__(
        self, *, eps: float = math.sqrt(0.5), gamma1: float = 1.0, gamma2: float = 1.0, normalise: bool = False
    ) -> None:
        super().__init__()
        check_eps(eps)
        if not (gamma1 > 0 and gamma2 >= 0):
            raise InputError(f"expected gamma1 > 0 and gamma2 >= 0; got {gamma1} and {gamma2}")
        self.eps, self.gamma1, self.gamma2, self.normalise = eps, gamma1, gamma2, normalise

    def forward(
        self,
        features: Float[Tensor, "n d"],
        labels: Int[Tensor, "n"] | None = None,
        *,
        membership: Float[Tensor, "k n"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of features with labels, or with a membership of every feature in every class."""
        parts = self.rates(features, labels, membership=membership)
        return parts.compression - self.gamma2 * parts.expansion

    def rates(
        self,
        features: Float[Tensor, "n d"],
        labels: Int[Tensor, "n"] | None = None,
        *,
        membership: Float[Tensor, "k n"] | None = None,
    ) -> RateReduction:
        """R, with gamma1 in it, and R^c, to be looked at during training; the loss is R^c - gamma2 R."""
        z = normalize(features, dim=-1) if self.normalise else features
        compression = class_rates(z, labels=labels, membership=membership, eps=self.eps).compression
        return RateReduction(expansion=coding_rate(z, eps=self.eps / math.sqrt(self.gamma1)), compression=compression)

    def extra_repr(self) -> str:
        """The settings."""
        return f"eps={self.eps:g}, gamma1={self.gamma1:g}, gamma2={self.gamma2:g}, normalise={self.normalise}"

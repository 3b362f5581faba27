"""Maximal coding rate reduction as a loss (MCR2: Yu et al. 2020, arXiv 2006.08558)."""

import math

from torch import Tensor, nn
from torch.nn.functional import normalize

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import RateReduction, check_eps, class_rates, coding_rate
from clearhead.shapes import Float, Int


class RateReductionLoss(nn.Module):
    r"""The loss whose minimum has each class in a small subspace, and all classes together in a large one.

    .. math:: L = R^c(Z; \epsilon \mid \Pi) - \gamma_2\, R(Z; \epsilon / \sqrt{\gamma_1})

    With gamma_1 = gamma_2 = 1 it is minus the rate reduction, so it is negative once training makes progress.

    eps: the distortion itself. The published code calls its square "eps", trains with .5 (eps = .707, the default here)
        and has .01 (eps = .1) as the default of its class
    gamma1: factor of alpha within R; gamma2: factor of R
    normalise: True to scale features to unit length first, which the theory requires; the published networks end in a
        normalisation, and without it or a penalty the loss has no minimum
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
        """Return the loss of features with labels, or with the membership of every feature in every class."""
        rates = self.rates(features, labels, membership=membership)
        return rates.compression - self.gamma2 * rates.expansion

    def rates(
        self,
        features: Float[Tensor, "n d"],
        labels: Int[Tensor, "n"] | None = None,
        *,
        membership: Float[Tensor, "k n"] | None = None,
    ) -> RateReduction:
        """Return R, including gamma1, and R^c, to monitor during training; the loss is R^c - gamma2 R."""
        z = normalize(features, dim=-1) if self.normalise else features
        compression = class_rates(z, labels=labels, membership=membership, eps=self.eps).compression
        return RateReduction(expansion=coding_rate(z, eps=self.eps / math.sqrt(self.gamma1)), compression=compression)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"eps={self.eps:g}, gamma1={self.gamma1:g}, gamma2={self.gamma2:g}, normalise={self.normalise}"

r"""Maxima of the rate reduction Delta R, in closed form and by gradient ascent.

Class k has N_k tokens in R^d, N in all. At the maximum the classes lie in orthogonal subspaces (Yu et al. 2020, arXiv
2006.08558). With a penalty -lambda / 2 |Z|^2 in place of a constraint, all nonzero singular values of a class are
equal at every local maximum, with a closed form, and the ranks are free (Wang et al. 2024, arXiv 2406.01909). With the
constraint |Z_k|^2 = N_k instead, the rank is determined: Yu et al. bound eps^4 by an unnamed constant, which
`rank_constant` computes.
"""

import math
from collections.abc import Sequence

import torch
from scipy.optimize import brentq, minimize
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import coding_rate
from clearhead.numerics.moments import Array
from clearhead.shapes import Float

__all__ = [
    "ascend",
    "critical_ratio",
    "isotropic_gain",
    "isotropic_reduction",
    "largest_penalty",
    "rank_constant",
    "regularised_singular_values",
]


def largest_penalty(sizes: Sequence[int], *, width: int, eps: float) -> float:
    r"""Return the largest lambda for which the penalised maxima are known.

    .. math:: \lambda \le \frac{d (\sqrt{N / N_{max}} - 1)}{N (\sqrt{N / N_{max}} + 1) \epsilon^2}
    """
    root = math.sqrt(sum(sizes) / max(sizes))
    return width * (root - 1) / (sum(sizes) * (root + 1) * eps**2)


def regularised_singular_values(sizes: Sequence[int], *, width: int, eps: float, penalty: float) -> tuple[float, ...]:
    r"""Return the nonzero singular value of each class at every local maximum of Delta R - lambda / 2 |Z|^2.

    .. math:: \sigma_k^2 = \frac{\eta_k + \sqrt{\eta_k^2 - 4 \lambda^2 N / N_k}}{2 \lambda \alpha_k}, \qquad
        \eta_k = (\alpha_k - \alpha) - \lambda (N / N_k + 1)

    with alpha = d / (N eps^2), alpha_k = d / (N_k eps^2). Its multiplicity in each class is not determined.
    """
    bound = largest_penalty(sizes, width=width, eps=eps)
    if not 0 < penalty <= bound:
        raise InputError(
            f"expected a penalty above 0 and at most {bound:.6g}; got {penalty}. For larger penalties only Z = 0 is a "
            "maximum"
        )
    singular_values = []
    for size in sizes:
        share, alpha = sum(sizes) / size, width / (size * eps**2)
        eta = alpha * (1 - 1 / share) - penalty * (share + 1)
        # At the bound the radicand is zero, and rounding can make it negative.
        root = math.sqrt(max(eta**2 - 4 * penalty**2 * share, 0.0))
        singular_values.append(math.sqrt((eta + root) / (2 * penalty * alpha)))
    return tuple(singular_values)


def isotropic_gain(rank: float | int, *, share: float, width: int, eps: float) -> float:
    r"""Return what a class adds to Delta R if it is isotropic in r directions orthogonal to the other classes.

    .. math:: g(r) = \tfrac r2 \log(1 + x) - \tfrac{q r}2 \log(1 + x / q), \qquad x = \frac{d q}{\epsilon^2 r}

    with q = N_k / N its share of the tokens and |Z_k|^2 = N_k.
    """
    x = width * share / (eps**2 * rank)
    return rank / 2 * (math.log1p(x) - share * math.log1p(x / share))


def isotropic_reduction(ranks: Sequence[int], sizes: Sequence[int], *, width: int, eps: float) -> float:
    """Return Delta R of orthogonal isotropic classes of these ranks."""
    if sum(ranks) > width:
        raise InputError(
            f"expected ranks whose sum is at most the width {width}, so that classes are orthogonal; got {sum(ranks)}"
        )
    shares = [size / sum(sizes) for size in sizes]
    return sum(isotropic_gain(r, share=q, width=width, eps=eps) for r, q in zip(ranks, shares, strict=True))


def critical_ratio(share: float) -> float:
    r"""Return x*: a larger rank r raises the gain g(r) if and only if x = d q / (eps^2 r) >= x*.

    .. math:: h(x^*) = q\, h(x^* / q), \qquad h(x) = \log(1 + x) - \frac{x}{1 + x}
    """
    if not 0 < share < 1:
        raise InputError(f"expected a share of the tokens between 0 and 1, exclusive; got {share}")

    def gap(x: float) -> float:
        return _slope(x) - share * _slope(x / share)

    return float(brentq(gap, 1e-6, 1e3, xtol=1e-14))


def rank_constant(share: float) -> float:
    """Return c = q / x*^2, the sharp constant of the condition eps^4 <= c (N_k / N) (d / d_k)^2 for rank d_k."""
    return share / critical_ratio(share) ** 2


def _slope(x: float) -> float:
    """Return h(x) = log(1 + x) - x / (1 + x), the derivative of r log(1 + c / r) in r at x = c / r."""
    return math.log1p(x) - x / (1 + x)


def ascend(
    start: Float[Tensor, "k n d"], *, eps: float, penalty: float | None = None, steps: int = 300
) -> Float[Tensor, "k n d"]:
    """Return tokens of k classes of equal size at a local maximum of Delta R, by L-BFGS from `start`, in float64.

    With a penalty, maximise Delta R - penalty / 2 |Z|^2; without, maximise Delta R over tokens of length one.
    """

    def tokens(flat: Tensor) -> Tensor:
        z = flat.reshape(start.shape)
        return z if penalty is not None else torch.nn.functional.normalize(z, dim=-1)

    def loss(point: Array) -> tuple[float, Array]:
        flat = torch.from_numpy(point).requires_grad_()
        z = tokens(flat)
        gain = coding_rate(z.flatten(0, 1), eps=eps) - coding_rate(z, eps=eps).mean()
        value = (penalty or 0.0) / 2 * z.square().sum() - gain
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    # scipy's L-BFGS: importing torch.optim takes seconds.
    initial = start.detach().double().flatten().numpy()
    options = {"maxiter": steps, "maxcor": 20, "ftol": 0.0, "gtol": 1e-10}
    result = minimize(loss, initial, jac=True, method="L-BFGS-B", options=options)
    return tokens(torch.from_numpy(result.x))

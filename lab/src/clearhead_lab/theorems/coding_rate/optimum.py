r"""Maxima of the rate reduction Delta R, in closed form and by gradient ascent.

Class k has N_k tokens in R^d, N in all. At the maximum the classes lie in orthogonal subspaces (Yu et al. 2020, arXiv
2006.08558). With a penalty -lambda / 2 |Z|^2 in place of a constraint, all nonzero singular values of a class are
equal at every local maximum, with a closed form, and the ranks are free (Wang et al. 2024, arXiv 2406.01909). With the
constraint |Z_k|^2 = N_k instead, the rank is determined: Yu et al. bound eps^4 by an unnamed constant, which
`rank_constant` computes.

The theorems are checked by gradient ascent from random tokens: three classes of 20 tokens in R^12; q = N_k / N is a
class's share of the tokens, r its rank.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
from scipy.optimize import brentq, minimize
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import coding_rate
from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead_lab.theorems.coding_rate.rate import LANDSCAPE, MCR2
from clearhead_lab.theorems.theorem import Theorem, normal_tensor


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


SIZES, WIDTH = (20, 20, 20), 12
FULL_RANKS = (4, 4, 4)


@cache
def _local_maximum(dtype: torch.dtype, eps: float, penalty: float | None, seed: int) -> Tensor:
    return ascend(normal_tensor(3, 20, WIDTH, seed=seed, dtype=dtype).double(), eps=eps, penalty=penalty)


def _closed_form_error(dtype: torch.dtype, *, penalty_factor: float = 1.0) -> float:
    """Return the larger relative error of the singular values and of the classes' orthogonality.

    The closed form is taken at `penalty_factor` times the penalty of the ascent.
    """
    eps, largest = math.sqrt(0.5), 0.0
    for share in (0.2, 0.8):
        penalty = share * largest_penalty(SIZES, width=WIDTH, eps=eps)
        expected, *_ = regularised_singular_values(SIZES, width=WIDTH, eps=eps, penalty=penalty_factor * penalty)
        z = _local_maximum(dtype, eps, penalty, seed=0)
        values = torch.linalg.svdvals(z)
        nonzero = values[values > values.max() / 2]
        across = torch.stack([z[i] @ z[j].mT for i, j in ((0, 1), (0, 2), (1, 2))])
        value_error = float((nonzero - expected).abs().max()) / expected
        largest = max(largest, value_error, float(across.abs().max()) / expected**2)
    return largest


def _full_rank_reduction(eps: float = 0.5) -> float:
    return isotropic_reduction(FULL_RANKS, SIZES, width=WIDTH, eps=eps)


def _ascent_error(dtype: torch.dtype) -> float:
    """Return the relative error of the better of two ascents over unit tokens."""

    def reduction(z: Tensor) -> float:
        return float(coding_rate(z.flatten(0, 1), eps=0.5) - coding_rate(z, eps=0.5).mean())

    best = max(reduction(_local_maximum(dtype, 0.5, None, seed)) for seed in (1, 2))
    return abs(best / _full_rank_reduction() - 1)


def _collapse_error(_: torch.dtype) -> float:
    """Return the same error for classes that have collapsed to one direction each."""
    return abs(isotropic_reduction((1, 1, 1), SIZES, width=WIDTH, eps=0.5) / _full_rank_reduction() - 1)


def _gain_slopes(dtype: torch.dtype, *, constant: float | None = None) -> list[float]:
    """Return |dg/dr| at the rank r with eps^4 = c q (d / r)^2, for several q; zero if the constant c is sharp.

    g(r) is `isotropic_gain`; c is `rank_constant(q)` unless another constant is given.
    """
    slopes = []
    for share in (1 / 2, 1 / 3, 1 / 5, 1 / 10, 1 / 100):
        q = torch.tensor(share, dtype=dtype).double()
        c = rank_constant(float(q)) if constant is None else constant
        rank = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
        eps_squared = (c * float(q) * (97 / 5) ** 2) ** 0.5
        x = 97 * q / (eps_squared * rank)
        gain = rank / 2 * (torch.log1p(x) - q * torch.log1p(x / q))
        slopes.append(abs(float(torch.autograd.grad(gain, rank)[0])))
    return slopes


def _full_rank_advantage(_: torch.dtype, *, eps: float) -> float:
    """Return by how much Delta R of ranks (4, 4, 4) exceeds that of (3, 3, 4), relative to it."""
    full, low = _full_rank_reduction(eps), isotropic_reduction((3, 3, 4), SIZES, width=WIDTH, eps=eps)
    return max(0.0, full - low) / full


OPTIMUM_THEOREMS = (
    Theorem(
        "R6",
        "with a penalty on |Z|^2, ascent on Delta R ends in orthogonal classes with the closed form's singular values",
        _closed_form_error,
        "the closed form at 0.9 times the penalty",
        lambda dtype: _closed_form_error(dtype, penalty_factor=0.9),
        LANDSCAPE,
        tolerance=1e-6,
    ),
    Theorem(
        "R7",
        "for unit tokens, the better of two ascents reaches Delta R of orthogonal isotropic classes of rank 4",
        _ascent_error,
        "classes collapsed to one direction each",
        _collapse_error,
        f"{MCR2}, optimal representations",
        tolerance=1e-9,
    ),
    Theorem(
        "R8",
        "a class's gain is stationary at the rank r with eps^4 = c q (d / r)^2, q = N_k / N, c = q / x*^2",
        lambda dtype: max(_gain_slopes(dtype)),
        "c = 1/4 for every share",
        lambda dtype: min(_gain_slopes(dtype, constant=0.25)),
        f"{MCR2}, optimal representations, which does not give c",
        tolerance=1e-10,
    ),
    Theorem(
        "R9",
        "beyond that bound lower ranks are better: for eps = 1 and d = 12, ranks (3, 3, 4) beat (4, 4, 4)",
        lambda dtype: _full_rank_advantage(dtype, eps=1.0),
        "eps = 0.5, within the bound",
        lambda dtype: _full_rank_advantage(dtype, eps=0.5),
        f"{MCR2}, optimal representations",
    ),
)

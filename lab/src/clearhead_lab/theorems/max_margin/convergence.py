"""Theorems on training: which tokens are locally optimal, and which SVM gradient descent converges to.

And the measures of trained attention: its correlation with an SVM, saturation, and optimality of the selected tokens.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Bool, Float, Int
from clearhead.theories.max_margin.svm.solution import Norm
from clearhead.theories.max_margin.svm.solving import attention_svm
from clearhead_lab.theorems.max_margin.svm import PAPER, SOLVER_TOLERANCE, N, T, random_problem
from clearhead_lab.theorems.theorem import Theorem

SATURATED = 0.99


def correlation(W: Float[Tensor, "*b d e"], other: Float[Tensor, "*b d e"]) -> Float[Tensor, "*b"]:
    r"""Return :math:`\langle W, W'\rangle / (\|W\|_F \|W'\|_F)`; NaN if one of them is zero."""
    lengths = torch.linalg.matrix_norm(W) * torch.linalg.matrix_norm(other)
    products: Tensor = (W * other).sum(dim=(-2, -1)) / lengths
    return products


def saturated(attention: Float[Tensor, "*b n t"], *, threshold: float = SATURATED) -> Bool[Tensor, "*b"]:
    """Return whether every sequence has a token of at least the threshold probability."""
    return (attention.amax(dim=-1) >= threshold).all(dim=-1)


def globally_optimal(token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"]) -> Bool[Tensor, "*b"]:
    r"""Return whether every selected token has the highest score, :math:`\alpha_i = \arg\max_t \gamma_{it}`."""
    return (_selected_scores(token_scores, selected) >= token_scores.amax(dim=-1)).all(dim=-1)


def locally_optimal(
    token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"], support: Bool[Tensor, "*b n t"]
) -> Bool[Tensor, "*b"]:
    r"""Return whether every selected token scores above all support tokens of its sequence (`MaxMargin.support`).

    That is :math:`\gamma_{i\alpha_i} > \gamma_{it}` for every t whose constraint in the SVM is active.
    """
    return ((token_scores < _selected_scores(token_scores, selected).unsqueeze(-1)) | ~support).flatten(-2).all(dim=-1)


def _selected_scores(token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return token_scores.gather(-1, selected.unsqueeze(-1)).squeeze(-1)


RUNS, STEPS = 20, 2000
REQUIRED_CORRELATION = 0.99
"""Mean correlation with the predicted SVM that training must reach in `STEPS`."""


def _not_locally_optimal(dtype: torch.dtype, *, best: bool) -> float:
    """Return the share of problems whose tokens of highest (or lowest) score are not locally optimal."""
    failures = []
    for seed in range(5):
        x, z, _ = random_problem(seed, dtype)
        scores = torch.randn(N, T, generator=torch.Generator().manual_seed(seed + 50), dtype=torch.float64)
        selected = scores.argmax(dim=-1) if best else scores.argmin(dim=-1)
        assert bool(globally_optimal(scores, selected)) is best
        failures.append(not bool(locally_optimal(scores, selected, attention_svm(x, z, selected).support)))
    return sum(failures) / len(failures)


@cache
def _mean_correlations(factored: bool) -> dict[Norm, float]:
    """Train W, or K and Q, by normalised descent; return the mean correlation with each SVM of the selected tokens.

    One query per sequence, a fixed linear head v, logistic loss; K and Q with the published penalty.
    """
    n, t, d = 6, 8, 10
    generator = torch.Generator().manual_seed(0)

    def unit(*shape: int) -> Tensor:
        return functional.normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)

    x, z, v, y = unit(RUNS, n, t, d), unit(RUNS, n, d), unit(RUNS, d), unit(RUNS, n).sign()
    tiny = machine_epsilon(torch.float64)
    parameters = [(2 * torch.rand(RUNS, d, d, generator=generator).double() - 1) / d**0.5 for _ in range(1 + factored)]
    with torch.enable_grad():
        for _ in range(STEPS):
            parameters = [parameter.detach().requires_grad_() for parameter in parameters]
            attention = _scores(x, _weights(parameters), z).softmax(dim=-1)
            margins = y * torch.einsum("rnt,rntd,rd->rn", attention, x, v)
            penalty = tiny * sum(p.square().sum() for p in parameters) if factored else 0.0
            loss = penalty - functional.logsigmoid(margins).mean(dim=-1).sum()
            gradients = torch.autograd.grad(loss, parameters)
            lengths = [torch.linalg.matrix_norm(g, keepdim=True) + tiny for g in gradients]
            parameters = [p - 0.1 * g / length for p, g, length in zip(parameters, gradients, lengths, strict=True)]
    W = _weights(parameters).detach()
    selected = _scores(x, W, z).argmax(dim=-1)
    correlations: dict[Norm, list[float]] = {Norm.FROBENIUS: [], Norm.NUCLEAR: []}
    for run in range(RUNS):
        for norm, of_runs in correlations.items():
            svm = attention_svm(x[run], z[run], selected[run], norm=norm)
            if svm.W is not None:
                of_runs.append(float(correlation(W[run], svm.W)))
    return {norm: float(np.mean(of_runs)) for norm, of_runs in correlations.items()}


def _weights(parameters: Sequence[Tensor]) -> Tensor:
    """Return W: the one parameter, or K Q^T of two."""
    return parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1].mT


def _scores(x: Tensor, W: Tensor, z: Tensor) -> Tensor:
    return torch.einsum("rntd,rde,rne->rnt", x, W, z)


def _shortfall(norm: Norm, *, factored: bool) -> float:
    return max(0.0, REQUIRED_CORRELATION - _mean_correlations(factored)[norm])


CONVERGENCE_THEOREMS = (
    Theorem(
        "M7",
        "the tokens of highest score are locally optimal",
        lambda dtype: _not_locally_optimal(dtype, best=True),
        "the tokens of lowest score",
        lambda dtype: _not_locally_optimal(dtype, best=False),
        f"{PAPER}, locally optimal tokens",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M8",
        "normalised gradient descent on W converges to the SVM of least Frobenius norm (mean correlation 0.99 after "
        "2,000 steps)",
        lambda _: _shortfall(Norm.FROBENIUS, factored=False),
        "the SVM of least nuclear norm",
        lambda _: _shortfall(Norm.NUCLEAR, factored=False),
        f"{PAPER}, gradient descent on W",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M9",
        "normalised gradient descent on K and Q converges to the SVM of least nuclear norm (mean correlation 0.99 "
        "after 2,000 steps)",
        lambda _: _shortfall(Norm.NUCLEAR, factored=True),
        "the SVM of least Frobenius norm",
        lambda _: _shortfall(Norm.FROBENIUS, factored=True),
        f"{PAPER}, gradient descent on K and Q",
        SOLVER_TOLERANCE,
    ),
)

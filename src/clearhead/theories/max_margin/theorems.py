r"""The statements behind the theory, checked on drawn problems, each beside a control that must fail."""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clearhead.findings import Theorem
from clearhead.numerics.moments import Array
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.threads import one_thread
from clearhead.theories.max_margin.optimality import correlation, globally_optimal, locally_optimal
from clearhead.theories.max_margin.svm.norms import bracket, dual_norm, norm_of
from clearhead.theories.max_margin.svm.solution import MaxMargin, Norm, Status
from clearhead.theories.max_margin.svm.solving import attention_svm, selecting
from clearhead.theories.statement import Statement, checked

__all__ = ["theorems"]

PAPER = "Tarzanagh et al. 2023 (arXiv 2308.16898)"
MATRICES = "cf. Srebro, Rennie and Jaakkola 2004"
SOLVED = 1e-10
"""What residuals of solved problems may be; these are solved in double precision whatever the data."""

SEEDS = 20
BAR = 0.99
"""Mean correlation with the right SVM that training must reach in `STEPS`."""
STEPS = 2000


def theorems() -> list[Theorem]:
    """Every statement, checked now."""
    return checked(STATEMENTS, source="max margin")


def _drawn(seed: int, dtype: torch.dtype, *, n: int, t: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, queries and a token to select at random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, t, d, generator=generator, dtype=torch.float64).to(dtype)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    return x, z, torch.randint(t, (n,), generator=generator)


def _infeasible(dtype: torch.dtype, *, d: int) -> float:
    """The share of drawn problems with n = 4 and T = 6 that no matrix solves."""
    solved = [attention_svm(*_drawn(seed, dtype, n=4, t=6, d=d)).status for seed in range(SEEDS)]
    return solved.count(Status.INFEASIBLE) / len(solved)


def _solved(
    dtype: torch.dtype, norm: Norm = Norm.FROBENIUS
) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], MaxMargin]]:
    for seed in range(5):
        drawn = _drawn(seed, dtype, n=3, t=5, d=7)
        yield drawn, attention_svm(*drawn, norm=norm)


def _matrix(found: MaxMargin) -> Array:
    assert found.W is not None, "three sequences of five tokens in seven dimensions are separable"
    return found.W.numpy()


def _beyond_rank(W: Array, rank: int) -> float:
    values = np.linalg.svd(W, compute_uv=False)
    return float(values[rank] / values[0])


def _rank_of_solution(dtype: torch.dtype) -> float:
    return max(_beyond_rank(_matrix(found), 3) for _, found in _solved(dtype))


def _rank_of_another(dtype: torch.dtype) -> float:
    """Of matrices that select the same tokens, with something added that no score depends on."""
    beyond = []
    for (_, z, _), found in _solved(dtype):
        outside = np.eye(7) - np.linalg.pinv(z.double().numpy()) @ z.double().numpy()
        beyond.append(_beyond_rank(_matrix(found) + outside, 3))
    return min(beyond)


def _false_brackets(dtype: torch.dtype, *, dual: Norm | None = None) -> float:
    """By how much brackets from drawn matrices and multipliers miss the margin; with another norm's dual if given."""
    missed = 0.0
    for norm in (Norm.FROBENIUS, Norm.NUCLEAR):
        for seed, (drawn, found) in enumerate(_solved(dtype, norm)):
            rows, _ = selecting(*drawn)
            generator = np.random.default_rng(seed)
            for _ in range(4):
                near = _matrix(found) + 0.1 * generator.standard_normal((7, 7))
                weights = (
                    generator.exponential(size=rows.count)
                    + rows.count * found.multipliers.numpy()[rows.sequence, rows.token]
                )
                ends = bracket(rows, near, weights, norm)
                high = ends.high if dual is None else dual_norm(rows.combined(weights), dual) / weights.sum()
                margin = found.margin.low
                missed = max(missed, (ends.low - margin) / margin, (margin - high) / margin)
    return missed


def _gap(dtype: torch.dtype) -> float:
    return max(found.gap for _, found in _solved(dtype))


def _gap_of_shuffled(dtype: torch.dtype) -> float:
    """With the multipliers of each problem in another order."""
    gaps = []
    for drawn, found in _solved(dtype):
        rows, _ = selecting(*drawn)
        weights = np.roll(found.multipliers.numpy()[rows.sequence, rows.token], 1)
        ends = bracket(rows, _matrix(found), weights, Norm.FROBENIUS)
        gaps.append((ends.high - ends.low) / ends.high)
    return min(gaps)


def _own_margins(dtype: torch.dtype, *, own: bool) -> float:
    """By how much the least margin of drawn matrices is below zero, on the tokens that they or chance select."""
    missed = 0.0
    for seed in range(5):
        x, z, tokens = _drawn(seed, dtype, n=3, t=5, d=7)
        W = torch.randn(7, 7, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64).to(dtype)
        scores = torch.einsum("ntd,de,ne->nt", x, W, z)
        selected = scores.argmax(dim=-1) if own else tokens
        rows, _ = selecting(x, z, selected)
        values = rows.values(W.double().numpy())
        missed = max(missed, -float(values.min()) / float(np.abs(values).max()))
    return missed


def _factors(dtype: torch.dtype) -> Iterator[tuple[Array, Array]]:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        yield tuple(  # type: ignore[misc]
            torch.randn(7, 5, generator=generator, dtype=torch.float64).to(dtype).double().numpy() for _ in range(2)
        )


def _excess(K: Array, Q: Array) -> float:
    """|K|^2 + |Q|^2 over 2 |K Q^T|*, less one."""
    return float((K**2).sum() + (Q**2).sum()) / (2 * norm_of(K @ Q.T, Norm.NUCLEAR)) - 1


def _of_balanced(dtype: torch.dtype) -> float:
    """The excess of balanced factors, and by how much that of any others is below zero."""
    worst = 0.0
    for K, Q in _factors(dtype):
        U, values, V = np.linalg.svd(K @ Q.T)
        root = np.sqrt(values)
        worst = max(worst, abs(_excess(U * root, V.T * root)), -_excess(K, Q))
    return worst


@cache
def _trained(factored: bool) -> dict[Norm, float]:
    """Train W, or K and Q, by normalised descent; return the mean correlation with each SVM of the selected tokens.

    One query per sequence, a fixed linear head v, logistic loss; K and Q with the published penalty.
    """
    n, t, d = 6, 8, 10
    generator = torch.Generator().manual_seed(0)

    def unit(*shape: int) -> Tensor:
        return functional.normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)

    x, z, v, y = unit(SEEDS, n, t, d), unit(SEEDS, n, d), unit(SEEDS, d), unit(SEEDS, n).sign()
    tiny = machine_epsilon(torch.float64)
    now = [(2 * torch.rand(SEEDS, d, d, generator=generator).double() - 1) / d**0.5 for _ in range(1 + factored)]
    with one_thread(), torch.enable_grad():
        for _ in range(STEPS):
            now = [parameter.detach().requires_grad_() for parameter in now]
            attention = _scores(x, _weights(now), z).softmax(dim=-1)
            margins = y * torch.einsum("rnt,rntd,rd->rn", attention, x, v)
            penalty = tiny * sum(p.square().sum() for p in now) if factored else 0.0
            loss = penalty - functional.logsigmoid(margins).mean(dim=-1).sum()
            gradients = torch.autograd.grad(loss, now)
            lengths = [torch.linalg.matrix_norm(g, keepdim=True) + tiny for g in gradients]
            now = [p - 0.1 * g / length for p, g, length in zip(now, gradients, lengths, strict=True)]
    W = _weights(now).detach()
    selected = _scores(x, W, z).argmax(dim=-1)
    found: dict[Norm, list[float]] = {Norm.FROBENIUS: [], Norm.NUCLEAR: []}
    for run in range(SEEDS):
        for norm, correlations in found.items():
            svm = attention_svm(x[run], z[run], selected[run], norm=norm)
            if svm.W is not None:
                correlations.append(float(correlation(W[run], svm.W)))
    return {norm: float(np.mean(correlations)) for norm, correlations in found.items()}


def _weights(parameters: Sequence[Tensor]) -> Tensor:
    """Return W: the one parameter, or K Q^T of two."""
    return parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1].mT


def _scores(x: Tensor, W: Tensor, z: Tensor) -> Tensor:
    return torch.einsum("rntd,rde,rne->rnt", x, W, z)


def _short_of_the_bar(norm: Norm, *, factored: bool) -> float:
    return max(0.0, BAR - _trained(factored)[norm])


def _global_but_not_local(dtype: torch.dtype, *, best: bool) -> float:
    """The share of problems whose tokens, those of the highest score or of the lowest, are not locally optimal."""
    failed = []
    for seed in range(5):
        x, z, _ = _drawn(seed, dtype, n=3, t=5, d=7)
        gains = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed + 50), dtype=torch.float64)
        selected = gains.argmax(dim=-1) if best else gains.argmin(dim=-1)
        assert bool(globally_optimal(gains, selected)) is best
        failed.append(not bool(locally_optimal(gains, selected, attention_svm(x, z, selected).support)))
    return sum(failed) / len(failed)


STATEMENTS = (
    Statement(
        "M1",
        "if d is at least T - 1 and n, some matrix selects any tokens of almost every dataset (n = 4, T = 6, d = 5)",
        lambda dtype: _infeasible(dtype, d=5),
        "d = 2",
        lambda dtype: _infeasible(dtype, d=2),
        f"{PAPER}, separability",
        SOLVED,
    ),
    Statement(
        "M2",
        "the SVM of least Frobenius norm has rank at most n",
        _rank_of_solution,
        "another matrix that gives the same scores",
        _rank_of_another,
        f"{PAPER}, problem (Att-SVM)",
        SOLVED,
    ),
    Statement(
        "M3",
        "any matrix bounds the margin from below, and any multipliers from above through the dual norm",
        _false_brackets,
        "the spectral norm in place of the Frobenius norm's dual",
        lambda dtype: _false_brackets(dtype, dual=Norm.NUCLEAR),
        f"{PAPER}, problem (Att-SVM)",
        SOLVED,
    ),
    Statement(
        "M4",
        "at the solution both bounds meet: the margin is 1 / |W|, and the multipliers prove it",
        _gap,
        "the multipliers in another order",
        _gap_of_shuffled,
        f"{PAPER}, problem (Att-SVM)",
        SOLVED,
    ),
    Statement(
        "M5",
        "a matrix separates the tokens that it selects itself, whatever it is",
        lambda dtype: _own_margins(dtype, own=True),
        "tokens at random",
        lambda dtype: _own_margins(dtype, own=False),
        f"{PAPER}, problem (Att-SVM)",
        SOLVED,
    ),
    Statement(
        "M6",
        "|K|^2 + |Q|^2 is at least twice the nuclear norm of K Q^T, and as much for balanced factors",
        _of_balanced,
        "factors as drawn",
        lambda dtype: min(_excess(K, Q) for K, Q in _factors(dtype)),
        MATRICES,
        SOLVED,
    ),
    Statement(
        "M7",
        "tokens of the highest score are locally optimal",
        lambda dtype: _global_but_not_local(dtype, best=True),
        "tokens of the lowest score",
        lambda dtype: _global_but_not_local(dtype, best=False),
        f"{PAPER}, locally optimal tokens",
        SOLVED,
    ),
    Statement(
        "M8",
        "normalised descent on W leads to the SVM of least Frobenius norm: mean correlation .99 after 2,000 steps",
        lambda _: _short_of_the_bar(Norm.FROBENIUS, factored=False),
        "the SVM of least nuclear norm",
        lambda _: _short_of_the_bar(Norm.NUCLEAR, factored=False),
        f"{PAPER}, gradient descent on W",
        SOLVED,
    ),
    Statement(
        "M9",
        "normalised descent on K and Q leads to the SVM of least nuclear norm: mean correlation .99 after 2,000 steps",
        lambda _: _short_of_the_bar(Norm.NUCLEAR, factored=True),
        "the SVM of least Frobenius norm",
        lambda _: _short_of_the_bar(Norm.FROBENIUS, factored=True),
        f"{PAPER}, gradient descent on K and Q",
        SOLVED,
    ),
)

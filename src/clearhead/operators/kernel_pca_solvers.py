"""The number of axes of kernel PCA, and the choice among its eigenvalue solvers."""

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.eigenpairs import Eigenpairs, dense_eigenpairs, guarded, krylov_eigenpairs
from clearhead.numerics.gram import CentredGram, GramScales, centred_gram, tiled_gram
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.numerics.partial import leading_eigenpairs

Solver = Literal["dense", "partial", "matrix_free"]

FEW = 80
"""Number of keys up to which a full decomposition costs no more than a partial one: 60 on one thread, 97 on two."""
CACHED = 2**17
"""Entries of Gram matrices computed at once, 1 MiB."""
MANY = 2000
"""Number of keys above which the Gram matrix is not formed, if it is at least eight times the number of axes."""


@dataclass(frozen=True, slots=True)
class ByRank:
    """All axes with variance; the largest number over the inputs of a batch."""


@dataclass(frozen=True, slots=True)
class ByExplained:
    """As many axes as hold this share of the variance; the largest number over the inputs of a batch."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"expected a share of the variance above 0 and at most 1; got {self.share}")


Axes = int | ByRank | ByExplained


def choose_solver(solver: Solver | None, *, m: int, axes: Axes, learn_axes: bool, device: torch.device) -> Solver:
    """Return the given solver, or the fastest one if None. Raise ValueError if it cannot find these axes."""
    if solver not in (None, "dense", "partial", "matrix_free"):
        raise InputError(f'expected solver "dense", "partial" or "matrix_free"; got {solver!r}')
    if solver is None:
        if learn_axes or not isinstance(axes, int) or m <= FEW or 2 * axes >= m or torch.compiler.is_compiling():
            return "dense"
        if m > MANY and 8 * axes <= m:
            return "matrix_free"
        return "partial" if device.type == "cpu" else "dense"
    if solver != "dense" and (learn_axes or not isinstance(axes, int)):
        option = "learn_axes" if learn_axes else f"axes={axes}"
        raise InputError(f'expected solver "dense" with {option}, which needs all axes; got {solver!r}')
    return solver


def leading_axes(
    k: Tensor,
    visible: Tensor | None,
    *,
    axes: Axes,
    scale: float,
    solver: Solver,
    precision: torch.dtype | None,
    differentiable: bool,
) -> tuple[GramScales, Eigenpairs]:
    """Return leading eigenpairs of the centred Gram matrices of keys (b, m, d); all of them if `axes` is no number."""
    if precision not in (None, torch.float32, torch.float64):
        raise InputError(f"expected a precision of torch.float32 or torch.float64; got {precision}")
    m = k.shape[-2]
    if solver == "matrix_free" and isinstance(axes, int):
        wide = torch.promote_types(k.dtype, torch.float32) if precision is None else precision
        mask = torch.ones(m, dtype=torch.bool, device=k.device) if visible is None else visible[0]
        if int(mask.sum()) > 4 * guarded(axes):
            scales, pairs = _matrix_free(k[0].to(wide), mask, axes, scale)
            lost = bool((pairs.values <= scales.rounding.unsqueeze(-1)).any())
            if lost and precision is None and wide is torch.float32:
                return _matrix_free(k[0].double(), mask, axes, scale)
            return scales, pairs

    def with_matrix() -> tuple[GramScales, Eigenpairs]:
        gram = _centred_gram(k.double(), visible, scale, whole=differentiable or torch.compiler.is_compiling())
        if solver == "partial" and isinstance(axes, int) and axes < m:
            return gram.scales, leading_eigenpairs(gram.matrix, axes, precision=precision or torch.float64)
        count = axes if isinstance(axes, int) else m
        return gram.scales, dense_eigenpairs(gram.matrix, count, differentiable=differentiable)

    return run_within_memory(
        with_matrix,
        task=f"kernel PCA of {m} keys with their Gram matrix",
        remedy='pass fewer keys, or a number of axes with solver="matrix_free"',
        device=k.device,
        needed=bytes_of_matrices((len(k), m, m), torch.float64),
    )


def _centred_gram(k: Tensor, visible: Tensor | None, scale: float, *, whole: bool) -> CentredGram:
    """Return `centred_gram`, computed for a few inputs at a time unless `whole`, so that they stay in the cache."""
    step = max(1, CACHED // max(k.shape[-2] ** 2, 1))
    if whole or len(k) <= step:
        return centred_gram(k, scale=scale, visible=visible)
    grams = [
        centred_gram(k[i : i + step], scale=scale, visible=None if visible is None else visible[i : i + step])
        for i in range(0, len(k), step)
    ]
    names = [field.name for field in fields(GramScales)]
    joined = {name: torch.cat([getattr(gram.scales, name) for gram in grams]) for name in names}
    return CentredGram(matrix=torch.cat([gram.matrix for gram in grams]), scales=GramScales(**joined))


def _matrix_free(k: Tensor, visible: Tensor, axes: int, scale: float) -> tuple[GramScales, Eigenpairs]:
    """Return `leading_axes` of one set of keys. Hidden keys are removed first, and are zeros in the result."""
    gram = tiled_gram(k[visible], scale=scale)
    pairs = krylov_eigenpairs(gram.product, gram.guess(guarded(axes)), axes)
    indices = visible.nonzero().squeeze(-1)

    def with_hidden(x: Tensor) -> Tensor:
        return x.new_zeros(1, len(visible), *x.shape[1:]).index_copy(1, indices, x.unsqueeze(0))

    scales = GramScales(
        log_scale=gram.scales.log_scale[None],
        log_g=with_hidden(gram.scales.log_g),
        column_mean=with_hidden(gram.scales.column_mean),
        trace=gram.scales.trace[None],
        rounding=gram.scales.rounding[None],
    )
    return scales, Eigenpairs(
        values=pairs.values[None],
        vectors=with_hidden(pairs.vectors),
        following=pairs.following[None],
        residual=pairs.residual[None],
        converged=pairs.converged[None],
    )

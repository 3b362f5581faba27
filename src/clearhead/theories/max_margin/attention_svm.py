r"""The attention SVM: the matrix of least norm whose scores select given tokens (Tarzanagh et al. 2023).

.. math:: W^{mm}_\alpha = \arg\min \|W\| \quad\text{s.t.}\quad
          (x_{i\alpha_i} - x_{it})^T W z_i \ge 1 \;\text{ for all } i,\ t \ne \alpha_i.

X_i in R^{T x d} are the tokens of sequence i and z_i its query; the score of token t is x_it^T W z_i, so W = W_k^T W_q,
keys on the left. With the Frobenius norm it is the source's (Att-SVM), with the nuclear norm (Att-SVM_*).
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearhead.axes import Bool, Float, Int, ShapeError
from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread
from clearhead.theories.max_margin.answer import certified, infeasible, trivial
from clearhead.theories.max_margin.constraints import Constraints
from clearhead.theories.max_margin.frobenius import least_frobenius
from clearhead.theories.max_margin.infeasibility import conflict_of_void, decide
from clearhead.theories.max_margin.nuclear import least_nuclear
from clearhead.theories.max_margin.solution import Conflict, MarginWarning, MaxMargin, Norm

__all__ = ["attention_svm", "selecting"]

TOLERANCE = {Norm.FROBENIUS: 1e-10, Norm.NUCLEAR: 1e-6, Norm.MAX_ENTRY: 1e-6}
"""Relative widths of the bracket of the margin that are asked for by default."""


def attention_svm(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"] | None,
    selected: Int[Tensor, "n"],
    *,
    keep: Bool[Tensor, "n t"] | None = None,
    norm: Norm | str = Norm.FROBENIUS,
    rank: int | None = None,
    tolerance: float | None = None,
) -> MaxMargin:
    """Solve the problem of the module's docstring, in double precision whatever comes in.

    x, z: the tokens and the query of each sequence. Self-attention has z = x[:, place], cross-attention any z; without
        z the variable is a prompt p, (d, 1), with the scores x p (Tarzanagh et al. 2023, arXiv 2306.13596)
    selected: the token that each sequence selects
    keep: True for the tokens that are there; the others (padding, what a causal mask hides) have no constraint
    norm: which norm is least; rank: an upper bound on the rank of W, with the nuclear norm
    tolerance: how narrow the bracket of the margin shall be, relative to its high end
    """
    norm = Norm(norm)
    rows, chosen = selecting(x, z, selected, keep=keep)
    shape = (x.shape[0], x.shape[1])
    with one_thread():
        found = _solved(rows, chosen, shape, norm, TOLERANCE[norm] if tolerance is None else tolerance)
    for remark in found.remarks:
        warnings.warn(MarginWarning(remark), stacklevel=2)
    return found


def selecting(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"] | None,
    selected: Int[Tensor, "n"],
    *,
    keep: Bool[Tensor, "n t"] | None = None,
) -> tuple[Constraints, NDArray[np.int64]]:
    """The constraints, in double precision, and the selected tokens; errors where the operands do not fit."""
    operands = {"x": x, "z": z, "selected": selected, "keep": keep}
    got = ", ".join(f"{name} {tuple(given.shape)}" for name, given in operands.items() if given is not None)
    n, t = x.shape[:2] if x.ndim == 3 else (-1, -1)
    wrong_z = z is not None and (z.ndim != 2 or z.shape[0] != n)
    if n < 0 or wrong_z or selected.shape != (n,) or (keep is not None and keep.shape != (n, t)):
        raise ShapeError(f"expected x (n, t, d), z (n, e), selected (n), keep (n, t); got {got}")
    tokens = _double(x, "x")
    queries = np.ones((n, 1)) if z is None else _double(z, "z")
    chosen: NDArray[np.int64] = selected.detach().cpu().numpy().astype(np.int64)
    there = np.ones((n, t), dtype=bool) if keep is None else keep.detach().cpu().numpy().astype(bool).copy()
    present = there.any(axis=1)
    if ((chosen < 0) | (chosen >= t))[present].any() or not there[np.arange(n), np.clip(chosen, 0, t - 1)][
        present
    ].all():
        raise ValueError("a selected token is out of range or hidden by keep; select a token that is there")
    there[np.arange(n), np.clip(chosen, 0, max(t - 1, 0))] = False
    sequence, token = np.nonzero(there)
    delta = tokens[sequence, chosen[sequence]] - tokens[sequence, token]
    count = len(sequence)
    rows = Constraints(
        delta=delta, z=queries, sequence=sequence, token=token, bound=np.ones(count), equal=np.zeros(count, dtype=bool)
    )
    return rows, chosen


def _double(given: Tensor, name: str) -> Array:
    if not given.is_floating_point():
        raise ValueError(f"expected {name} of a floating dtype; got {given.dtype}")
    found: Array = given.detach().cpu().double().numpy()
    if not np.isfinite(found).all():
        raise ValueError(f"{name} holds numbers that are not finite; mend or leave out those sequences")
    return found


def _solved(
    rows: Constraints, chosen: NDArray[np.int64], shape: tuple[int, int], norm: Norm, tolerance: float
) -> MaxMargin:
    if rows.count == 0:
        return trivial(rows, shape, norm)
    conflict = conflict_of_void(rows, chosen)
    if conflict is not None:
        return infeasible(rows, shape, norm, conflict)
    least = least_frobenius(rows)
    if not least.converged:
        decided = decide(rows, least.multipliers)
        if isinstance(decided, Conflict):
            return infeasible(rows, shape, norm, decided)
        if decided is not None:
            least = least_frobenius(rows, start=decided.multipliers)
            least = least if least.converged else decided
    if norm is Norm.NUCLEAR:
        least = least_nuclear(rows, least, tolerance=tolerance)
    return certified(rows, shape, norm, least.W, least.multipliers, tolerance=tolerance)

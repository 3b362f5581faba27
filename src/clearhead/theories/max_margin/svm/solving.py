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

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Bool, Float, Int, ShapeError
from clearhead.theories.max_margin.svm.answer import certified, infeasible, trivial, unfound
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import Least, least_frobenius
from clearhead.theories.max_margin.svm.infeasibility import conflict_of_void, decide
from clearhead.theories.max_margin.svm.low_rank import least_nuclear_of_rank, truncated
from clearhead.theories.max_margin.svm.max_entry import least_max_entry
from clearhead.theories.max_margin.svm.norms import bracket
from clearhead.theories.max_margin.svm.nuclear import least_nuclear
from clearhead.theories.max_margin.svm.solution import Conflict, MarginWarning, MaxMargin, Norm

__all__ = ["attention_svm", "in_double", "selecting", "solve_rows"]

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
    keep: True for the tokens that are there; the others (padding, what a causal mask hides) have no constraint, and
        what they hold does not matter
    norm: which norm is least; rank: an upper bound on the rank of W, with the nuclear norm
    tolerance: how narrow the bracket of the margin shall be, relative to its high end
    """
    norm = Norm(norm)
    if rank is not None and (rank < 1 or norm is not Norm.NUCLEAR):
        raise InputError(f"a rank is 1 or more and goes with the nuclear norm; got rank {rank} with norm {norm}")
    rows, chosen = selecting(x, z, selected, keep=keep)
    shape = (x.shape[0], x.shape[1])
    with one_thread():
        found = solve_rows(rows, chosen, shape, norm, TOLERANCE[norm] if tolerance is None else tolerance, rank)
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
    if selected.is_floating_point():
        raise InputError(f"expected selected of an integer dtype; got {selected.dtype}")
    shown = x if keep is None else x.masked_fill(~keep[:, :, None], 0)
    asked = z if keep is None or z is None else z.masked_fill(~keep.any(dim=1)[:, None], 0)
    tokens = in_double(shown, "x")
    queries = np.ones((n, 1)) if asked is None else in_double(asked, "z")
    chosen: NDArray[np.int64] = selected.detach().cpu().numpy().astype(np.int64)
    there = np.ones((n, t), dtype=bool) if keep is None else keep.detach().cpu().numpy().astype(bool).copy()
    present = there.any(axis=1)
    inside = (chosen >= 0) & (chosen < t)
    if not inside[present].all() or not there[present, chosen[present]].all():
        raise InputError("a selected token is out of range or hidden by keep; select a token that is there")
    there[present, chosen[present]] = False
    sequence, token = np.nonzero(there)
    delta = tokens[sequence, chosen[sequence]] - tokens[sequence, token]
    count = len(sequence)
    rows = Constraints(
        delta=delta, z=queries, sequence=sequence, token=token, bound=np.ones(count), equal=np.zeros(count, dtype=bool)
    )
    return rows, chosen


def in_double(given: Tensor, name: str) -> Array:
    """The numbers in double precision; an error where they are none, or not finite."""
    if not given.is_floating_point():
        raise InputError(f"expected {name} of a floating dtype; got {given.dtype}")
    found: Array = given.detach().cpu().double().numpy()
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds numbers that are not finite; mend or leave out those sequences")
    return found


def solve_rows(
    rows: Constraints,
    chosen: NDArray[np.int64],
    shape: tuple[int, int],
    norm: Norm,
    tolerance: float,
    rank: int | None = None,
) -> MaxMargin:
    """The answer for constraints that are made already; `chosen` and `shape` are to name tokens by."""
    if rows.equal.all():
        return trivial(rows, shape, norm)
    least = conflict_of_void(rows, chosen) or _separating(rows)
    if isinstance(least, Conflict):
        return infeasible(rows, shape, norm, least)
    separates = rows.values(least.W)[~rows.equal].min() > 0
    if separates and norm is Norm.MAX_ENTRY:
        least = least_max_entry(rows, least, tolerance=tolerance)
    elif separates and norm is Norm.NUCLEAR:
        least = least_nuclear(rows, least, tolerance=tolerance)
        if rank is not None:
            return _of_rank(rows, shape, least, rank, tolerance)
    return certified(rows, shape, norm, least.W, least.multipliers, tolerance=tolerance)


def _separating(rows: Constraints) -> Conflict | Least:
    """The matrix of least Frobenius norm, or why there is none: whether there is one does not depend on the norm.

    Where neither can be had, a matrix that separates, or, that failing too, the last that was tried.
    """
    least = least_frobenius(rows)
    if least.converged:
        return least
    decided = decide(rows, least.multipliers)
    if decided is None or isinstance(decided, Conflict):
        return decided or least
    exact = least_frobenius(rows, start=decided.multipliers)
    return exact if exact.converged else decided


def _of_rank(rows: Constraints, shape: tuple[int, int], least: Least, rank: int, tolerance: float) -> MaxMargin:
    """The answer if it has that rank already, or a local one, beside what `least` proves for all matrices."""
    cut = truncated(least.W, rank)
    margin = bracket(rows, cut, least.multipliers, Norm.NUCLEAR)
    if margin.high - margin.low > tolerance * margin.high:
        found = least_nuclear_of_rank(rows, least, rank)
        if found is None:
            remark = f"no matrix of rank {rank} was found that separates, and none was proved not to exist; raise rank"
            return unfound(rows, shape, Norm.NUCLEAR, least.multipliers, remark)
        cut = found
    return certified(rows, shape, Norm.NUCLEAR, cut, least.multipliers, tolerance=tolerance, local=True)

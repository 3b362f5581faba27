r"""The attention SVM for several selected tokens per sequence (Tarzanagh et al. 2023, arXiv 2308.16898, section 6).

O_i are the tokens that sequence i selects and s_it their probabilities. Training is predicted to reach
:math:`W_{fin} + C\, W_{dir}` with C growing without bound. W_fin sets the probabilities within O_i, W_dir suppresses
the other tokens.

.. math:: W_{fin} = \arg\min \|W\|_F \quad\text{s.t.}\quad (x_{it} - x_{is})^T W z_i = \log(s_{it} / s_{is})
          \;\text{ for } t, s \in O_i,

.. math:: W_{dir} = \arg\min \|W\|_F \quad\text{s.t.}\quad (x_{it} - x_{is})^T W z_i = 0 \;\text{ for } t, s \in O_i,
          \quad (x_{it} - x_{iu})^T W z_i \ge 1 \;\text{ for } t \in O_i,\ u \notin O_i.

The equalities between the first token of O_i and each other one imply those of all pairs, and likewise the margins, so
that :math:`|O_i| - 1` equalities and :math:`T - |O_i|` inequalities are enough.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Bool, Float, ShapeError
from clearhead.theories.max_margin.svm.constraints import Constraints, describe_shapes, to_float64, visible_operands
from clearhead.theories.max_margin.svm.frobenius import least_frobenius
from clearhead.theories.max_margin.svm.solution import MarginWarning, MaxMargin, Norm
from clearhead.theories.max_margin.svm.solving import TOLERANCE, solve_constraints

LIKELY = 1e-3
CONSISTENCY = 1e-8
"""Largest violation of an equality, relative to the largest right-hand side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiToken:
    """The prediction W_fin + C W_dir.

    finite: W_fin; None if no matrix gives the probabilities, for `reason`
    direction: W_dir with its certificate; multipliers of selected tokens belong to equalities and may have any sign
    """

    selected: Bool[Tensor, "n t"]
    finite: Float[Tensor, "d e"] | None
    direction: MaxMargin
    reason: str = ""

    def growth(self, W: Float[Tensor, "d e"]) -> float:
        r"""Return the C that brings the prediction nearest to W.

        .. math:: C = \langle W - W_{fin}, W_{dir}\rangle / \|W_{dir}\|_F^2
        """
        finite, direction = self._matrices()
        size = float(direction.square().sum())
        return float(((W - finite) * direction).sum()) / size if size > 0 else 0.0

    def prediction(self, W: Float[Tensor, "d e"]) -> Float[Tensor, "d e"]:
        """Return W_fin + C W_dir for that C."""
        finite, direction = self._matrices()
        return finite + self.growth(W) * direction

    def _matrices(self) -> tuple[Tensor, Tensor]:
        if self.finite is None or self.direction.W is None:
            conflict = self.direction.conflict
            reason = self.reason if self.finite is None else conflict.reason if conflict else "W_dir was not found"
            raise InputError(f"there is no prediction because {reason}; check finite and direction first")
        return self.finite, self.direction.W


def likely_tokens(probabilities: Float[Tensor, "n t"], *, threshold: float = LIKELY) -> Bool[Tensor, "n t"]:
    """Return which tokens have at least the threshold probability."""
    return probabilities >= threshold


def multi_token_svm(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"],
    selected: Bool[Tensor, "n t"],
    *,
    probabilities: Float[Tensor, "n t"] | None = None,
    mask: Bool[Tensor, "n t"] | None = None,
) -> MultiToken:
    """Solve for W_fin and W_dir in float64, whatever the dtype of the data.

    selected: True for the tokens of O_i; at least one in every sequence that has visible tokens
    probabilities: the s_it, read for selected tokens only; by default selected tokens are equally likely
    mask: True for visible tokens; the contents of the others do not matter
    """
    rows, first = _constraints(x, z, selected, mask)
    shape = (x.shape[0], x.shape[1])
    log_ratios = np.zeros(rows.count)
    if probabilities is not None:
        s = to_float64(probabilities, "probabilities")
        if (s[selected.cpu().numpy()] <= 0).any():
            raise InputError("a selected token has probability zero; select tokens of positive probability only")
        i, t = rows.sequence[rows.equal], rows.token[rows.equal]
        log_ratios[rows.equal] = np.log(s[i, first[i]]) - np.log(s[i, t])
    with one_thread():
        finite, reason = _finite(replace(rows, bound=np.where(rows.equal, log_ratios, rows.bound)))
        rows = rows.at(np.flatnonzero(~rows.equal | (rows.lengths > 0)))
        direction = solve_constraints(rows, first, shape, Norm.FROBENIUS, TOLERANCE[Norm.FROBENIUS])
    for remark in direction.remarks:
        warnings.warn(MarginWarning(remark), stacklevel=2)
    return MultiToken(
        selected=selected,
        finite=None if finite is None else torch.from_numpy(finite),
        direction=direction,
        reason=reason,
    )


def _constraints(x: Tensor, z: Tensor, selected: Tensor, mask: Tensor | None) -> tuple[Constraints, NDArray[np.int64]]:
    """Return the constraints and the first selected token of each sequence.

    Every other selected token has an equality, and every token that is not selected an inequality.
    """
    per_token = [selected] if mask is None else [selected, mask]
    if (
        x.ndim != 3
        or z.ndim != 2
        or z.shape[0] != x.shape[0]
        or any(operand.shape != x.shape[:2] for operand in per_token)
    ):
        shapes = describe_shapes(x, z, selected, mask)
        raise ShapeError(f"expected x (n, t, d), z (n, e), selected (n, t), mask (n, t); got {shapes}")
    tokens, queries, visible = visible_operands(x, z, mask)
    chosen = selected.detach().cpu().numpy().astype(bool)
    if (chosen & ~visible).any():
        raise InputError("a selected token is hidden by the mask; select visible tokens only")
    if (visible.any(axis=1) & ~chosen.any(axis=1)).any():
        raise InputError("a sequence has no selected token; select at least one in each")
    first: NDArray[np.int64] = chosen.argmax(axis=1)
    other = visible.copy()
    other[np.arange(len(first)), first] &= ~chosen.any(axis=1)
    sequence, token = np.nonzero(other)
    equal = chosen[sequence, token]
    constraints = Constraints(
        delta=tokens[sequence, first[sequence]] - tokens[sequence, token],
        z=queries,
        sequence=sequence,
        token=token,
        bound=np.where(equal, 0.0, 1.0),
        equal=equal,
    )
    return constraints, first


def _finite(rows: Constraints) -> tuple[Array | None, str]:
    """Return the W of least norm that satisfies the equalities and "", or None and the reason why no W does."""
    rows = rows.at(np.flatnonzero(rows.equal))
    largest = float(np.abs(rows.bound).max(initial=0.0))
    contradictory = np.flatnonzero((rows.lengths == 0) & (np.abs(rows.bound) > CONSISTENCY))
    if len(contradictory):
        i, t = rows.sequence[contradictory[0]], rows.token[contradictory[0]]
        return None, (
            f"token {t} of sequence {i} scores the same as the first selected token for every W, but has another "
            "probability"
        )
    rows = rows.at(np.flatnonzero(rows.lengths > 0))
    if not rows.count:
        return np.zeros((rows.delta.shape[1], rows.z.shape[1])), ""
    W = least_frobenius(rows).W
    violation = np.abs(rows.values(W) - rows.bound)
    worst = int(violation.argmax())
    if violation[worst] > CONSISTENCY * max(largest, 1.0):
        i, t = rows.sequence[worst], rows.token[worst]
        return None, (
            f"no matrix gives all selected tokens their probabilities; the error is largest for token {t} of "
            f"sequence {i}"
        )
    return W, ""

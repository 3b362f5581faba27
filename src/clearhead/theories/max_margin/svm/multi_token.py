r"""The attention SVM where sequences select several tokens each (Tarzanagh et al. 2023, arXiv 2308.16898, section 6).

With O_i the tokens that sequence i selects and s_it their probabilities, training is predicted to reach
:math:`W_{fin} + C\, W_{dir}`, C growing without bound, of which the first part sets the probabilities within the O_i
and the second takes all other tokens away:

.. math:: W_{fin} = \arg\min \|W\|_F \quad\text{s.t.}\quad (x_{it} - x_{is})^T W z_i = \log(s_{it} / s_{is})
          \;\text{ for } t, s \in O_i,

.. math:: W_{dir} = \arg\min \|W\|_F \quad\text{s.t.}\quad (x_{it} - x_{is})^T W z_i = 0 \;\text{ for } t, s \in O_i,
          \quad (x_{it} - x_{iu})^T W z_i \ge 1 \;\text{ for } t \in O_i,\ u \notin O_i.

Equalities between one token of O_i and each other imply those of all pairs, and so do the margins to that one token:
there are :math:`|O_i| - 1` and :math:`T - |O_i|` of them.
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
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import least_frobenius
from clearhead.theories.max_margin.svm.solution import MarginWarning, MaxMargin, Norm
from clearhead.theories.max_margin.svm.solving import TOLERANCE, in_double, solve_rows

__all__ = ["MultiToken", "likely_tokens", "multi_token_svm", "tied_tokens"]

LIKELY = 1e-3
CONSISTENT = 1e-8
"""How far equalities may be missed, relative to the largest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiToken:
    """Both parts of the prediction.

    finite: W_fin; None where no matrix gives the probabilities, and `reason` says why
    direction: W_dir with its certificate; its multipliers of selected tokens belong to equalities and have any sign
    """

    selected: Bool[Tensor, "n t"]
    finite: Float[Tensor, "d e"] | None
    direction: MaxMargin
    reason: str = ""

    def growth(self, W: Float[Tensor, "d e"]) -> float:
        r"""C of the prediction nearest to W: :math:`\langle W - W_{fin}, W_{dir}\rangle / \|W_{dir}\|_F^2`."""
        finite, direction = self._parts()
        size = float(direction.square().sum())
        return float(((W - finite) * direction).sum()) / size if size > 0 else 0.0

    def prediction(self, W: Float[Tensor, "d e"]) -> Float[Tensor, "d e"]:
        """W_fin + C W_dir with that C."""
        finite, direction = self._parts()
        return finite + self.growth(W) * direction

    def _parts(self) -> tuple[Tensor, Tensor]:
        if self.finite is None or self.direction.W is None:
            conflict = self.direction.conflict
            why = self.reason if self.finite is None else conflict.reason if conflict else "W_dir was not found"
            raise InputError(f"nothing is predicted, as {why}; look at finite and direction first")
        return self.finite, self.direction.W


def likely_tokens(probabilities: Float[Tensor, "n t"], *, least: float = LIKELY) -> Bool[Tensor, "n t"]:
    """The tokens of at least that probability."""
    return probabilities >= least


def tied_tokens(
    scores: Float[Tensor, "n t"], *, tolerance: float, keep: Bool[Tensor, "n t"] | None = None
) -> Bool[Tensor, "n t"]:
    """The tokens that score the most, or less than that by no more than the tolerance: ties are selected together."""
    shown = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    found = shown >= shown.amax(dim=-1, keepdim=True) - tolerance
    return found if keep is None else found & keep


def multi_token_svm(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"],
    selected: Bool[Tensor, "n t"],
    *,
    probabilities: Float[Tensor, "n t"] | None = None,
    keep: Bool[Tensor, "n t"] | None = None,
) -> MultiToken:
    """Solve both problems of the module's docstring, in double precision whatever comes in.

    selected: the O_i, at least one token of every sequence that has any
    probabilities: the s_it, used where a token is selected; without them selected tokens are equally likely
    keep: True for the tokens that are there; what the others hold does not matter
    """
    rows, first = _rows(x, z, selected, keep)
    shape = (x.shape[0], x.shape[1])
    ratios = np.zeros(rows.count)
    if probabilities is not None:
        s = in_double(probabilities, "probabilities")
        if (s[selected.cpu().numpy()] <= 0).any():
            raise InputError("a selected token has no probability; select tokens of positive probability")
        i, t = rows.sequence[rows.equal], rows.token[rows.equal]
        ratios[rows.equal] = np.log(s[i, first[i]]) - np.log(s[i, t])
    with one_thread():
        finite, reason = _finite(replace(rows, bound=np.where(rows.equal, ratios, rows.bound)))
        rows = rows.at(np.flatnonzero(~rows.equal | (rows.lengths > 0)))
        direction = solve_rows(rows, first, shape, Norm.FROBENIUS, TOLERANCE[Norm.FROBENIUS])
    for remark in direction.remarks:
        warnings.warn(MarginWarning(remark), stacklevel=2)
    return MultiToken(
        selected=selected,
        finite=None if finite is None else torch.from_numpy(finite),
        direction=direction,
        reason=reason,
    )


def _rows(x: Tensor, z: Tensor, selected: Tensor, keep: Tensor | None) -> tuple[Constraints, NDArray[np.int64]]:
    """An equality for every further selected token, a margin for every other one; and each sequence's first."""
    operands = {"x": x, "z": z, "selected": selected, "keep": keep}
    got = ", ".join(f"{name} {tuple(given.shape)}" for name, given in operands.items() if given is not None)
    if (
        x.ndim != 3
        or z.ndim != 2
        or z.shape[0] != x.shape[0]
        or any(given is not None and given.shape != x.shape[:2] for given in (selected, keep))
    ):
        raise ShapeError(f"expected x (n, t, d), z (n, e), selected (n, t), keep (n, t); got {got}")
    shown = x if keep is None else x.masked_fill(~keep[:, :, None], 0)
    asked = z if keep is None else z.masked_fill(~keep.any(dim=1)[:, None], 0)
    tokens, queries = in_double(shown, "x"), in_double(asked, "z")
    chosen = selected.detach().cpu().numpy().astype(bool)
    there = np.ones(chosen.shape, dtype=bool) if keep is None else keep.detach().cpu().numpy().astype(bool)
    if (chosen & ~there).any():
        raise InputError("a selected token is hidden by keep; select tokens that are there")
    if (there.any(axis=1) & ~chosen.any(axis=1)).any():
        raise InputError("a sequence selects no token; select one at least in each")
    first: NDArray[np.int64] = chosen.argmax(axis=1)
    other = there.copy()
    other[np.arange(len(first)), first] &= ~chosen.any(axis=1)
    sequence, token = np.nonzero(other)
    equal = chosen[sequence, token]
    rows = Constraints(
        delta=tokens[sequence, first[sequence]] - tokens[sequence, token],
        z=queries,
        sequence=sequence,
        token=token,
        bound=np.where(equal, 0.0, 1.0),
        equal=equal,
    )
    return rows, first


def _finite(rows: Constraints) -> tuple[Array | None, str]:
    """W of least norm that meets the equalities, or None and why there is none."""
    rows = rows.at(np.flatnonzero(rows.equal))
    largest = float(np.abs(rows.bound).max(initial=0.0))
    void = np.flatnonzero((rows.lengths == 0) & (np.abs(rows.bound) > CONSISTENT))
    if len(void):
        i, t = rows.sequence[void[0]], rows.token[void[0]]
        return (
            None,
            f"token {t} of sequence {i} scores as the first selected one does, whatever W is, yet is not as likely",
        )
    rows = rows.at(np.flatnonzero(rows.lengths > 0))
    if not rows.count:
        return np.zeros((rows.delta.shape[1], rows.z.shape[1])), ""
    W = least_frobenius(rows).W
    missed = np.abs(rows.values(W) - rows.bound)
    worst = int(missed.argmax())
    if missed[worst] > CONSISTENT * max(largest, 1.0):
        i, t = rows.sequence[worst], rows.token[worst]
        return (
            None,
            f"no matrix gives the probabilities of all selected tokens; token {t} of sequence {i} is farthest off",
        )
    return W, ""

"""Planted bugs in the attention SVM and its solvers."""

from fault import Fault

QP = ("tests/numerics/test_nonnegative_qp.py",)
DISTANCE = ("tests/numerics/test_least_distance.py",)
OPERANDS = ("tests/theories/max_margin/test_attention_svm.py",)
FROBENIUS = ("tests/theories/max_margin/test_frobenius.py",)
NUCLEAR = ("tests/theories/max_margin/test_nuclear.py",)
MAX_ENTRY = ("tests/theories/max_margin/test_max_entry.py",)
LOW_RANK = ("tests/theories/max_margin/test_low_rank.py",)
CONSTRAINTS = ("tests/theories/max_margin/test_constraints.py",)
NORMS = ("tests/theories/max_margin/test_norms.py",)
INFEASIBLE = ("tests/theories/max_margin/test_infeasibility.py",)
SVM = "theories/max_margin/svm"

MARGIN_FAULTS = (
    Fault(
        "qp: slopes of the wrong sign accepted", "numerics/nonnegative_qp.py", "slope < -rounding)", "slope < -1e9)", QP
    ),
    Fault(
        "qp: negative multipliers accepted",
        "numerics/nonnegative_qp.py",
        "self._bound & (x < 0)",
        "self._bound & (x < -1e9)",
        QP,
    ),
    Fault(
        "qp: free multipliers constrained",
        "numerics/nonnegative_qp.py",
        "self._bound = ~free if",
        "self._bound = free | True if",
        QP,
    ),
    Fault(
        "qp: factorisation of other rows reused",
        "numerics/nonnegative_qp.py",
        "not np.array_equal(self._factor.where, where)",
        "len(self._factor.where) != len(where)",
        QP,
    ),
    Fault("qp: no refinement", "numerics/nonnegative_qp.py", "REFINEMENTS = 8", "REFINEMENTS = 0", QP),
    Fault(
        "qp: w recomputed from the multipliers",
        "numerics/nonnegative_qp.py",
        "x, w = x + step, w + rows.combined(step)",
        "x = x + step\n            w = rows.combined(x)",
        QP,
    ),
    Fault(
        "qp: tolerance too large",
        "numerics/nonnegative_qp.py",
        "if left <= 16 * EPSILON",
        "if left <= 1e15 * EPSILON",
        QP,
    ),
    Fault(
        "distance: every residual is zero",
        "numerics/least_distance.py",
        "residual <= 64",
        "residual <= 1e14 * 64",
        DISTANCE,
    ),
    Fault(
        "distance: violated rows not added",
        "numerics/least_distance.py",
        "        if not failing.any():",
        "        if failing.any() or True:",
        DISTANCE,
    ),
    Fault(
        "distance: weights not divided by the remainder",
        "numerics/least_distance.py",
        "weights=signed / remainder",
        "weights=signed",
        DISTANCE,
    ),
    Fault(
        "constraints: weights of other constraints",
        f"{SVM}/constraints.py",
        "weights[rows, None] * self.delta[rows]",
        "weights[: len(rows), None] * self.delta[rows]",
        CONSTRAINTS,
    ),
    Fault(
        "constraints: not scaled to length one",
        f"{SVM}/constraints.py",
        "return self._inverse * self._rows.values(w)",
        "return self._rows.values(w)",
        CONSTRAINTS,
    ),
    Fault(
        "constraints: columns of the wrong queries",
        f"{SVM}/constraints.py",
        ".T[index]",
        ".T[np.sort(index)[::-1]]",
        CONSTRAINTS,
    ),
    Fault(
        "norms: mean margin instead of the smallest",
        f"{SVM}/norms.py",
        "values[inequality].min() / size",
        "values[inequality].mean() / size",
        NORMS,
    ),
    Fault(
        "norms: negative multipliers not removed",
        f"{SVM}/norms.py",
        "np.where(inequality, np.maximum(multipliers, 0), multipliers)",
        "multipliers * 1.0",
        NORMS,
    ),
    Fault(
        "norms: Frobenius norm as the dual of the nuclear norm",
        f"{SVM}/norms.py",
        "np.linalg.norm(W, 2) if",
        "np.linalg.norm(W) if",
        NORMS,
    ),
    Fault(
        "norms: max-entry norm as its own dual",
        f"{SVM}/norms.py",
        "else np.abs(W).sum())",
        "else np.abs(W).max())",
        NORMS,
    ),
    Fault(
        "norms: equalities not checked",
        f"{SVM}/norms.py",
        "EQUALITY_TOLERANCE = 1e-10",
        "EQUALITY_TOLERANCE = 1e10",
        NORMS,
    ),
    Fault(
        "frobenius: distance from zero instead of near",
        f"{SVM}/frobenius.py",
        "W if near is None else near + W",
        "W",
        FROBENIUS,
    ),
    Fault(
        "nuclear: half the shrinkage",
        f"{SVM}/nuclear.py",
        "(1 - tau / values[positive])",
        "(1 - 0.5 * tau / values[positive])",
        NUCLEAR,
    ),
    Fault(
        "nuclear: wide bounds count as proof",
        f"{SVM}/nuclear.py",
        "return self._high - low <= self._tolerance * self._high",
        "return self._high - low <= 0.5 * self._high",
        NUCLEAR,
    ),
    Fault(
        "nuclear: equalities violated",
        f"{SVM}/nuclear.py",
        "            if not rows.equal.any():\n                best.update(V",
        "            if True:\n                best.update(P + V",
        NUCLEAR,
    ),
    Fault(
        "nuclear: transformed back wrongly",
        f"{SVM}/nuclear.py",
        "left @ best.matrix() @ right.T",
        "(left @ best.matrix() @ right.T)[::-1]",
        NUCLEAR,
    ),
    Fault(
        "max entry: multipliers of equalities negated",
        f"{SVM}/max_entry.py",
        "multipliers[rows.equal] = program",
        "multipliers[rows.equal] = -program",
        MAX_ENTRY,
    ),
    Fault(
        "max entry: multipliers of unit constraints",
        f"{SVM}/max_entry.py",
        "multipliers / rows.units",
        "multipliers * 1.0",
        MAX_ENTRY,
    ),
    Fault(
        "max entry: margins not scaled",
        f"{SVM}/max_entry.py",
        "attained / rows.units",
        "attained + 0 * rows.units",
        MAX_ENTRY + OPERANDS,
    ),
    Fault("low rank: truncation only", f"{SVM}/solving.py", "        W = local\n", "        W = W * 1.0\n", LOW_RANK),
    Fault(
        "low rank: nonseparating matrix accepted",
        f"{SVM}/low_rank.py",
        "if least > 0 else (None, np.inf)",
        "if True else (None, np.inf)",
        LOW_RANK,
    ),
    Fault(
        "low rank: gap decides which constraints are active",
        f"{SVM}/certificate.py",
        "(tolerance if rank_bounded else min(gap, LARGEST_GAP))",
        "gap",
        LOW_RANK,
    ),
    Fault(
        "certificate: multipliers of unit constraints",
        f"{SVM}/certificate.py",
        "weight / units[token]",
        "weight",
        INFEASIBLE,
    ),
    Fault(
        "certificate: not scaled to a margin of one",
        f"{SVM}/certificate.py",
        "torch.from_numpy(W / least)",
        "torch.from_numpy(W * 1.0)",
        MAX_ENTRY + OPERANDS,
    ),
    Fault(
        "certificate: unfinished called solved",
        f"{SVM}/certificate.py",
        "gap <= max(tolerance, rounding)",
        "gap <= 0.5",
        FROBENIUS,
    ),
    Fault(
        "operands: hidden tokens are read", f"{SVM}/selection.py", "x.masked_fill(~mask[:, :, None], 0)", "x", OPERANDS
    ),
    Fault(
        "operands: hidden tokens have constraints",
        f"{SVM}/selection.py",
        "mask.detach().cpu().numpy().astype(bool)",
        "mask.detach().cpu().numpy().astype(bool) | True",
        OPERANDS,
    ),
    Fault(
        "operands: undecided called infeasible",
        f"{SVM}/solving.py",
        "return decision or least\n",
        "return decision or Conflict(tokens=(), weights=(), residual=0.0, reason='')\n",
        INFEASIBLE,
    ),
    Fault(
        "conflict: copies not recognised",
        f"{SVM}/infeasibility.py",
        "(constraints.lengths == 0) &",
        "(constraints.lengths < 0) &",
        OPERANDS,
    ),
    Fault(
        "conflict: negligible weights named", f"{SVM}/infeasibility.py", "[: int((share > 0).sum())]", "", INFEASIBLE
    ),
)

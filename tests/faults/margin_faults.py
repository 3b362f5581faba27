"""Bugs that the tests must find in the attention SVM and its programs, each as the right text and the wrong one."""

from fault import Fault

QP = ("tests/numerics/test_nonnegative_qp.py",)
DISTANCE = ("tests/numerics/test_least_distance.py",)
DOOR = ("tests/theories/max_margin/test_attention_svm.py",)
FROBENIUS = ("tests/theories/max_margin/test_frobenius.py",)
NUCLEAR = ("tests/theories/max_margin/test_nuclear.py",)
ENTRY = ("tests/theories/max_margin/test_max_entry.py",)
RANK = ("tests/theories/max_margin/test_low_rank.py",)
ROWS = ("tests/theories/max_margin/test_constraints.py",)
NORMS = ("tests/theories/max_margin/test_norms.py",)
WHY = ("tests/theories/max_margin/test_infeasibility.py",)
HOUSE = "theories/max_margin"

MARGIN_FAULTS = (
    Fault(
        "qp: slopes of the wrong sign are kept", "numerics/nonnegative_qp.py", "slope < -rounding)", "slope < -1e9)", QP
    ),
    Fault(
        "qp: negative multipliers are kept",
        "numerics/nonnegative_qp.py",
        "self._bound & (x < 0)",
        "self._bound & (x < -1e9)",
        QP,
    ),
    Fault(
        "qp: free multipliers are bound",
        "numerics/nonnegative_qp.py",
        "self._bound = ~free if",
        "self._bound = free | True if",
        QP,
    ),
    Fault(
        "qp: a factor of other rows is used again",
        "numerics/nonnegative_qp.py",
        "not np.array_equal(self._factor.where, where)",
        "len(self._factor.where) != len(where)",
        QP,
    ),
    Fault("qp: no refinement", "numerics/nonnegative_qp.py", "REFINEMENTS = 8", "REFINEMENTS = 0", QP),
    Fault(
        "qp: w of the multipliers",
        "numerics/nonnegative_qp.py",
        "x, w = x + step, w + rows.combined(step)",
        "x = x + step\n            w = rows.combined(x)",
        QP,
    ),
    Fault(
        "qp: what is nearly met will do",
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
        "distance: rows that fail do not join",
        "numerics/least_distance.py",
        "        if not failing.any():",
        "        if failing.any() or True:",
        DISTANCE,
    ),
    Fault(
        "distance: not divided by the rest",
        "numerics/least_distance.py",
        "weights=signed / rest",
        "weights=signed",
        DISTANCE,
    ),
    Fault(
        "rows: weights of other rows",
        f"{HOUSE}/constraints.py",
        "weights[rows, None] * self.delta[rows]",
        "weights[: len(rows), None] * self.delta[rows]",
        ROWS,
    ),
    Fault(
        "rows: not of length one",
        f"{HOUSE}/constraints.py",
        "return self._inverse * self._rows.values(w)",
        "return self._rows.values(w)",
        ROWS,
    ),
    Fault(
        "rows: columns of the wrong queries", f"{HOUSE}/constraints.py", ".T[place]", ".T[np.sort(place)[::-1]]", ROWS
    ),
    Fault(
        "norms: the mean of the margins",
        f"{HOUSE}/norms.py",
        "values[must].min() / size",
        "values[must].mean() / size",
        NORMS,
    ),
    Fault(
        "norms: negative multipliers count",
        f"{HOUSE}/norms.py",
        "np.where(must, np.maximum(multipliers, 0), multipliers)",
        "multipliers * 1.0",
        NORMS,
    ),
    Fault(
        "norms: the dual of the nuclear norm is Frobenius",
        f"{HOUSE}/norms.py",
        "np.linalg.norm(W, 2) if",
        "np.linalg.norm(W) if",
        NORMS,
    ),
    Fault(
        "norms: the dual of the largest entry is itself",
        f"{HOUSE}/norms.py",
        "else np.abs(W).sum())",
        "else np.abs(W).max())",
        NORMS,
    ),
    Fault("norms: equalities are not asked", f"{HOUSE}/norms.py", "EQUAL = 1e-10", "EQUAL = 1e10", NORMS),
    Fault("frobenius: near is forgotten", f"{HOUSE}/frobenius.py", "W if near is None else near + W", "W", FROBENIUS),
    Fault(
        "nuclear: shrinks by half",
        f"{HOUSE}/nuclear.py",
        "(1 - tau / values[kept])",
        "(1 - 0.5 * tau / values[kept])",
        NUCLEAR,
    ),
    Fault(
        "nuclear: any bracket is proved",
        f"{HOUSE}/nuclear.py",
        "return self._high - low <= self._tolerance * self._high",
        "return self._high - low <= 0.5 * self._high",
        NUCLEAR,
    ),
    Fault(
        "nuclear: equalities may be missed",
        f"{HOUSE}/nuclear.py",
        "            if not rows.equal.any():\n                best.offer(V",
        "            if True:\n                best.offer(P + V",
        NUCLEAR,
    ),
    Fault(
        "nuclear: back in other coordinates",
        f"{HOUSE}/nuclear.py",
        "left @ best.answer() @ right.T",
        "(left @ best.answer() @ right.T)[::-1]",
        NUCLEAR,
    ),
    Fault(
        "max entry: prices of equalities turned round",
        f"{HOUSE}/max_entry.py",
        "multipliers[rows.equal] = found",
        "multipliers[rows.equal] = -found",
        ENTRY,
    ),
    Fault(
        "max entry: multipliers of unit rows",
        f"{HOUSE}/max_entry.py",
        "multipliers / rows.units",
        "multipliers * 1.0",
        ENTRY,
    ),
    Fault(
        "max entry: margins of one size",
        f"{HOUSE}/max_entry.py",
        "known / rows.units",
        "known + 0 * rows.units",
        ENTRY + DOOR,
    ),
    Fault(
        "low rank: only cut", f"{HOUSE}/attention_svm.py", "        cut = found\n", "        cut = cut * 1.0\n", RANK
    ),
    Fault(
        "low rank: no answer is an answer",
        f"{HOUSE}/low_rank.py",
        "if least > 0 else (None, np.inf)",
        "if True else (None, np.inf)",
        RANK,
    ),
    Fault(
        "low rank: the gap says what is active",
        f"{HOUSE}/answer.py",
        "(tolerance if local else min(gap, COARSE))",
        "gap",
        RANK,
    ),
    Fault("answer: multipliers of unit rows prove it", f"{HOUSE}/answer.py", "weight / units[place]", "weight", WHY),
    Fault(
        "answer: not scaled to one",
        f"{HOUSE}/answer.py",
        "torch.from_numpy(W / least)",
        "torch.from_numpy(W * 1.0)",
        ENTRY + DOOR,
    ),
    Fault(
        "answer: unfinished is solved", f"{HOUSE}/answer.py", "gap <= max(tolerance, rounding)", "gap <= 0.5", FROBENIUS
    ),
    Fault(
        "door: hidden tokens are seen", f"{HOUSE}/attention_svm.py", "x.masked_fill(~keep[:, :, None], 0)", "x", DOOR
    ),
    Fault(
        "door: hidden tokens are constraints",
        f"{HOUSE}/attention_svm.py",
        "keep.detach().cpu().numpy().astype(bool).copy()",
        "keep.detach().cpu().numpy().astype(bool) | True",
        DOOR,
    ),
    Fault(
        "door: undecided is infeasible",
        f"{HOUSE}/attention_svm.py",
        "return decided or least\n",
        "return decided or Conflict(tokens=(), weights=(), residual=0.0, reason='')\n",
        WHY,
    ),
    Fault(
        "conflict: copies are not seen",
        f"{HOUSE}/infeasibility.py",
        "(constraints.lengths == 0) &",
        "(constraints.lengths < 0) &",
        DOOR,
    ),
    Fault("conflict: small weights are named too", f"{HOUSE}/infeasibility.py", "[: int((share > 0).sum())]", "", WHY),
)

"""Planted bugs in the attention SVM and its solvers."""

from tests.mutants.mutant import Mutant

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

MUTANTS = (
    Mutant("qp: slopes of the wrong sign accepted", "nonnegative_qp:NonnegativeQP._exchange", "-rounding", "-1000000000.0", QP),
    Mutant("qp: negative multipliers accepted", "nonnegative_qp:NonnegativeQP._exchange", "self._bound & (x < 0)", "self._bound & (x < -1000000000.0)", QP),
    Mutant("qp: free multipliers constrained", "nonnegative_qp:NonnegativeQP.__init__", "~free if free is not None else np.ones(rows.size, dtype=bool)", "free | True if free is not None else np.ones(rows.size, dtype=bool)", QP),
    Mutant("qp: factorisation of other rows reused", "nonnegative_qp:NonnegativeQP._exchange", "not np.array_equal(self._factor.where, where)", "len(self._factor.where) != len(where)", QP),
    Mutant("qp: no refinement", "nonnegative_qp:", "REFINEMENTS = 8", "REFINEMENTS = 0", QP),
    Mutant("qp: w recomputed from the multipliers", "nonnegative_qp:_Factor.solve", "x, w = (x + step, w + rows.combined(step))", "x = x + step; w = rows.combined(x)", QP),
    Mutant("qp: tolerance too large", "nonnegative_qp:_Factor.solve", "16 * EPSILON", "1000000000000000.0 * EPSILON", QP),
    Mutant("distance: every residual is zero", "least_distance:_solve_subset", "64 * EPSILON", "100000000000000.0 * 64 * EPSILON", DISTANCE),
    Mutant("distance: violated rows not added", "least_distance:least_distance", "not failing.any()", "failing.any() or True", DISTANCE),
    Mutant("distance: weights not divided by the remainder", "least_distance:_solve_subset", "signed / remainder", "signed", DISTANCE),
    Mutant("constraints: weights of other constraints", "constraints:Constraints.by_sequence", "weights[rows, None]", "weights[:len(rows), None]", CONSTRAINTS),
    Mutant("constraints: not scaled to length one", "constraints:UnitConstraints.values", "self._inverse * self._rows.values(w)", "self._rows.values(w)", CONSTRAINTS),
    Mutant("constraints: columns of the wrong queries", "constraints:UnitConstraints.columns", "linalg.qr(z.T, mode='r')[0][:min(z.shape)].T[index]", "linalg.qr(z.T, mode='r')[0][:min(z.shape)].T[np.sort(index)[::-1]]", CONSTRAINTS),
    Mutant("norms: mean margin instead of the smallest", "norms:bracket", "values[inequality].min", "values[inequality].mean", NORMS),
    Mutant("norms: negative multipliers not removed", "norms:bracket", "np.where(inequality, np.maximum(multipliers, 0), multipliers)", "multipliers * 1.0", NORMS),
    Mutant("norms: Frobenius norm as the dual of the nuclear norm", "norms:dual_norm", "np.linalg.norm(W, 2)", "np.linalg.norm(W)", NORMS),
    Mutant("norms: max-entry norm as its own dual", "norms:dual_norm", "np.abs(W).sum", "np.abs(W).max", NORMS),
    Mutant("norms: equalities not checked", "solution:", "EQUALITY_TOLERANCE = 1e-10", "EQUALITY_TOLERANCE = 10000000000.0", NORMS),
    Mutant("frobenius: distance from zero instead of near", "frobenius:Projection.nearest", "W if near is None else near + W", "W", FROBENIUS),
    Mutant("nuclear: half the shrinkage", "nuclear:_shrink", "tau / values[positive]", "0.5 * tau / values[positive]", NUCLEAR),
    Mutant("nuclear: wide bounds count as proof", "nuclear:_Best.proved", "self._tolerance", "0.5", NUCLEAR),
    Mutant("nuclear: equalities violated", "nuclear:_split", "if not rows.equal.any(): best.update(V, multipliers, exact=True)", "if True: best.update(P + V, multipliers, exact=True)", NUCLEAR),
    Mutant("nuclear: transformed back wrongly", "nuclear:least_nuclear", "left @ best.matrix() @ right.T", "(left @ best.matrix() @ right.T)[::-1]", NUCLEAR),
    Mutant("max entry: multipliers of equalities negated", "max_entry:least_max_entry", "program.eqlin.marginals[n * d:]", "-program.eqlin.marginals[n * d:]", MAX_ENTRY),
    Mutant("max entry: multipliers of unit constraints", "max_entry:least_max_entry", "multipliers / rows.units", "multipliers * 1.0", MAX_ENTRY),
    Mutant("max entry: margins not scaled", "max_entry:_program", "attained / rows.units", "attained + 0 * rows.units", MAX_ENTRY + OPERANDS),
    Mutant("low rank: truncation only", "solving:_solve_with_rank", "W = local", "W = W * 1.0", LOW_RANK),
    Mutant("low rank: nonseparating matrix accepted", "low_rank:_alternate", "least > 0", "True", LOW_RANK),
    Mutant("low rank: gap decides which constraints are active", "certificate:certified_solution", "tolerance if rank_bounded else min(gap, LARGEST_GAP)", "gap", LOW_RANK),
    Mutant("certificate: multipliers of unit constraints", "certificate:infeasible_solution", "weight / units[token]", "weight", INFEASIBLE),
    Mutant("certificate: not scaled to a margin of one", "certificate:certified_solution", "W / least", "W * 1.0", MAX_ENTRY + OPERANDS),
    Mutant("certificate: unfinished called solved", "certificate:certified_solution", "max(tolerance, rounding)", "0.5", FROBENIUS),
    Mutant("operands: hidden tokens are read", "selection:visible_operands", "x.masked_fill(~mask[:, :, None], 0)", "x", OPERANDS),
    Mutant("operands: hidden tokens have constraints", "selection:visible_operands", "mask.detach().cpu().numpy().astype(bool)", "mask.detach().cpu().numpy().astype(bool) | True", OPERANDS),
    Mutant("operands: undecided called infeasible", "solving:separate", "decision or least", "decision or Conflict(tokens=(), weights=(), residual=0.0, reason='')", INFEASIBLE),
    Mutant("conflict: copies not recognised", "infeasibility:zero_constraint_conflict", "constraints.lengths == 0", "constraints.lengths < 0", OPERANDS),
    Mutant("conflict: negligible weights named", "infeasibility:_conflict", "np.argsort(-share, kind='stable')[:int((share > 0).sum())]", "np.argsort(-share, kind='stable')", INFEASIBLE),
)  # fmt: skip

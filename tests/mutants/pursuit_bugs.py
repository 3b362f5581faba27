"""Planted bugs in RPC-Attention, its bound, its options, and principal component pursuit."""

from tests.mutants.mutant import Mutant

RPC = ("tests/operators/test_rpc.py", "tests/operators/test_pursuit_options.py")
BOUND = ("tests/operators/test_clamped_keys.py",)
NUMERICS = ("lab/tests/theorems/test_thresholds.py", "lab/tests/theorems/test_component_pursuit.py")

MUTANTS = (
    Mutant("shrinkage past zero", "pursuit_options:soft_threshold", "(x.abs() - t).clamp_min(0)", "x.abs() - t", NUMERICS),
    Mutant("hard threshold inverted", "pursuit_options:hard_threshold", "x.abs() <= t", "x.abs() > t", NUMERICS),
    Mutant("PCP: dual left out of the sparse step", "kernel_pca.pursuit:principal_component_pursuit", "m - low_rank + dual / mu", "m - low_rank", NUMERICS),
    Mutant("PCP: weight left out", "kernel_pca.pursuit:principal_component_pursuit", "weight / mu", "1 / mu", NUMERICS),
    Mutant("mu: padding included in the norm", "clamped_keys:_visible_sums", "torch.where(visible, size, 0)", "size", BOUND),
    Mutant("mu: padding included in the count", "clamped_keys:_visible_sums", "visible.sum", "torch.ones_like(visible).sum", BOUND),
    Mutant("mu: mask transposed", "clamped_keys:_sums_by_query", "size @ weights.mT", "size @ weights", BOUND),
    Mutant("mu: depends on later tokens by default", "clamped_keys:KeyMu", "scope: Scope = Scope.PREFIX", "scope: Scope = Scope.HEAD", RPC),
    Mutant("mu: in half precision", "clamped_keys:KeyMu.inverse", "(k.detach() if self.detach else k).to(wide)", "k.detach() if self.detach else k", BOUND),
    Mutant("mu: zero keys divide by zero", "clamped_keys:KeyBound.compute", "inverse.clamp_min(_LEAST_MEAN)", "inverse", BOUND),
    Mutant("bound: eps left out", "clamped_keys:KeyBound.compute", "1 + eps * inverse", "1", BOUND),
    Mutant("bound: rules exchanged", "clamped_keys:KeyBound.compute", "self.threshold is Threshold.OVER_MU", "self.threshold is not Threshold.OVER_MU", BOUND),
    Mutant("PAP: remainder left out of the dual", "pursuit:iterate", "sub(reach, low_rank)", "-low_rank", RPC),
    Mutant("PAP: sign of the dual ignored", "pursuit:iterate", "1 - pursuit.dual_sign", "2", RPC),
    Mutant("PAP: L first, old dual added", "pursuit:iterate", "dual = clamped", "dual = dual + clamped", RPC),
    Mutant("PAP: L first, sign ignored", "pursuit:iterate", "1 + pursuit.dual_sign", "2", RPC),
    Mutant("PAP: separate queries used in the first iteration only", "pursuit:AttentionStep.queries_for", "keys if self.queries is None else self.queries", "keys if True else self.queries", RPC),
    Mutant("PAP: padded queries included in the mean", "pursuit:_mean", "torch.where(visible, q, 0)", "q", RPC),
    Mutant("PAP: dropout in every iteration", "pursuit:iterate", "last and pursuit.dropout is DropoutIterations.LAST", "pursuit.dropout is DropoutIterations.LAST", RPC),
    Mutant("PAP: a chunk gets another chunk's mask", "pursuit:AttentionStep.slice", "mask[start:end]", "mask[:end - start]", RPC),
    Mutant("PAP: chunks for one thread only", "pursuit:iterate_in_chunks", "_CHUNK * torch.get_num_threads()", "_CHUNK", RPC),
    Mutant("PAP: results overwritten that the gradient needs", "pursuit:iterate_in_chunks", "not recorded", "True", RPC),
    Mutant("PAP: last chunk left out", "pursuit:iterate_in_chunks", "range(0, len(k), size)", "range(0, len(k) - 1, size)", RPC),
    Mutant("inner iterations shrink instead of halving", "pursuit_options:Pursuit.subtract_sparse", "self.inner is Inner.HALF and (not last)", "False", RPC),
    Mutant("hard threshold replaced by the soft one", "pursuit_options:Pursuit.subtract_sparse", "self.shrink is Shrink.HARD", "False", RPC),
    Mutant("kernel used for options it does not support", "pursuit_options:Pursuit.in_kernel", "self.order is Order.SPARSE_FIRST and self.shrink is Shrink.SOFT and shrinks and (not self.centred)", "self.order is Order.SPARSE_FIRST and self.shrink is Shrink.SOFT and (not self.centred)", RPC),
    Mutant("presets: code-2024-10 divides by mu", "clamped_keys:", "KeyBound(threshold=Threshold.TIMES_MU, mu=KeyMu(width=Width.MODEL))", "KeyBound(mu=KeyMu(width=Width.MODEL))", BOUND),
    Mutant("presets: admm with the wrong sign", "pursuit_options:", "Pursuit(bound=KeyBound(strength=None), order=Order.LOW_RANK_FIRST, dual_sign=1)", "Pursuit(bound=KeyBound(strength=None), order=Order.LOW_RANK_FIRST)", RPC),
    Mutant("clamped keys: unclamped queries", "clamped_keys:clamped_key_attention", "symmetric_attention(clamped, v.to(wide), mask=mask, is_causal=is_causal, scale=scale)", "symmetric_attention(k.to(wide), v.to(wide), mask=mask, is_causal=is_causal, scale=scale)", RPC),
    Mutant("trace: Y without mu", "rpc:trace_pursuit.observe", "mu * dual", "dual", RPC),
    Mutant("trace: padding included in the residual", "rpc:trace_pursuit.observe", "torch.where(visible, k - low_rank - sparse, 0)", "k - low_rank - sparse", RPC),
)  # fmt: skip

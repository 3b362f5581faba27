"""Planted bugs in RPC-Attention, its bound, its options, and principal component pursuit."""

from fault import Fault

RPC = ("tests/operators/test_rpc.py", "tests/operators/test_pursuit_options.py")
BOUND = ("tests/operators/test_clamped_keys.py",)
NUMERICS = ("tests/numerics/test_shrinkage.py", "tests/numerics/test_component_pursuit.py")
STEPS = "operators/pursuit.py"

PURSUIT_FAULTS = (
    Fault(
        "shrinkage past zero", "numerics/component_pursuit.py", "(x.abs() - t).clamp_min(0)", "(x.abs() - t)", NUMERICS
    ),
    Fault(
        "hard threshold inverted",
        "numerics/component_pursuit.py",
        "torch.where(x.abs() <= t, 0, x)",
        "torch.where(x.abs() > t, 0, x)",
        NUMERICS,
    ),
    Fault(
        "PCP: dual left out of the sparse step",
        "numerics/component_pursuit.py",
        "soft_threshold(m - low_rank + dual / mu",
        "soft_threshold(m - low_rank",
        NUMERICS,
    ),
    Fault(
        "PCP: weight left out",
        "numerics/component_pursuit.py",
        "weight / mu)\n        gap",
        "1 / mu)\n        gap",
        NUMERICS,
    ),
    Fault(
        "mu: padding included in the norm",
        "operators/clamped_keys.py",
        "return torch.where(visible, size, 0).sum",
        "return size.sum",
        BOUND,
    ),
    Fault(
        "mu: padding included in the count",
        "operators/clamped_keys.py",
        "visible.sum(dim=-1",
        "torch.ones_like(visible).sum(dim=-1",
        BOUND,
    ),
    Fault(
        "mu: mask transposed",
        "operators/clamped_keys.py",
        "return size @ weights.mT",
        "return size @ weights",
        BOUND,
    ),
    Fault(
        "mu: depends on later tokens by default",
        "operators/clamped_keys.py",
        "scope: Scope = Scope.PREFIX",
        "scope: Scope = Scope.HEAD",
        RPC,
    ),
    Fault("mu: in half precision", "operators/clamped_keys.py", ".to(wide).abs()", ".abs()", BOUND),
    Fault(
        "mu: zero keys divide by zero",
        "operators/clamped_keys.py",
        "1 / inverse.clamp_min(_LEAST_MEAN) + eps, torch.nan",
        "1 / inverse + eps, torch.nan",
        BOUND,
    ),
    Fault("bound: eps left out", "operators/clamped_keys.py", "/ (1 + eps * inverse)", "/ 1", BOUND),
    Fault(
        "bound: rules exchanged",
        "operators/clamped_keys.py",
        "if self.threshold is Threshold.OVER_MU",
        "if self.threshold is not Threshold.OVER_MU",
        BOUND,
    ),
    Fault("PAP: remainder left out of the dual", STEPS, "dual = sub(reach, low_rank)", "dual = -low_rank", RPC),
    Fault("PAP: sign of the dual ignored", STEPS, "alpha=1 - pursuit.dual_sign,", "alpha=2,", RPC),
    Fault(
        "PAP: L first, old dual added",
        STEPS,
        "                dual = clamped\n",
        "                dual = dual + clamped\n",
        RPC,
    ),
    Fault("PAP: L first, sign ignored", STEPS, "(1 + pursuit.dual_sign) * clamped", "2 * clamped", RPC),
    Fault(
        "PAP: separate queries used in the first iteration only",
        STEPS,
        "q = keys if self.queries is None",
        "q = keys if True",
        RPC,
    ),
    Fault("PAP: padded queries included in the mean", STEPS, "torch.where(visible, q, 0)", "q", RPC),
    Fault(
        "PAP: dropout in every iteration",
        STEPS,
        "(last and pursuit.dropout is DropoutIterations.LAST)",
        "pursuit.dropout is DropoutIterations.LAST",
        RPC,
    ),
    Fault("PAP: a chunk gets another chunk's mask", STEPS, "mask = mask[start:end]", "mask = mask[: end - start]", RPC),
    Fault("PAP: chunks for one thread only", STEPS, "_CHUNK * torch.get_num_threads()", "_CHUNK", RPC),
    Fault("PAP: results overwritten that the gradient needs", STEPS, "overwrite=not recorded)", "overwrite=True)", RPC),
    Fault("PAP: last chunk left out", STEPS, "range(0, len(k), size):", "range(0, len(k) - 1, size):", RPC),
    Fault(
        "inner iterations shrink instead of halving",
        "operators/pursuit_options.py",
        "self.inner is Inner.HALF and not last",
        "False",
        RPC,
    ),
    Fault(
        "hard threshold replaced by the soft one",
        "operators/pursuit_options.py",
        "if self.shrink is Shrink.HARD",
        "if False",
        RPC,
    ),
    Fault(
        "kernel used for options it does not support",
        "operators/pursuit_options.py",
        "shrinks and not self.centred",
        "not self.centred",
        RPC,
    ),
    Fault(
        "presets: code-2024-10 divides by mu",
        "operators/clamped_keys.py",
        "KeyBound(threshold=Threshold.TIMES_MU, mu=KeyMu(width",
        "KeyBound(mu=KeyMu(width",
        BOUND,
    ),
    Fault(
        "presets: admm with the wrong sign",
        "operators/pursuit_options.py",
        "order=Order.LOW_RANK_FIRST, dual_sign=1)",
        "order=Order.LOW_RANK_FIRST)",
        RPC,
    ),
    Fault(
        "clamped keys: unclamped queries",
        "operators/clamped_keys.py",
        "symmetric_attention(clamped,",
        "symmetric_attention(k.to(wide),",
        RPC,
    ),
    Fault("trace: Y without mu", "operators/rpc.py", "dual=mu * dual", "dual=dual", RPC),
    Fault(
        "trace: padding included in the residual",
        "operators/rpc.py",
        "torch.where(visible, k - low_rank - sparse, 0)",
        "(k - low_rank - sparse)",
        RPC,
    ),
)

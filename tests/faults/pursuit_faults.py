"""Bugs that the tests must find in RPC-Attention, its bound, its options, and principal component pursuit."""

from fault import Fault

RPC = ("tests/operators/test_rpc.py", "tests/operators/test_pursuit_options.py")
BOUND = ("tests/operators/test_clamped_keys.py",)
NUMERICS = ("tests/numerics/test_shrinkage.py", "tests/numerics/test_component_pursuit.py")
STEPS = "operators/pursuit.py"

PURSUIT_FAULTS = (
    Fault("shrinkage past zero", "numerics/shrinkage.py", "(x.abs() - t).clamp_min(0)", "(x.abs() - t)", NUMERICS),
    Fault("hard threshold keeps what it should drop", "numerics/shrinkage.py", "x.abs() > t", "x.abs() < t", NUMERICS),
    Fault(
        "PCP: the dual is not in the sparse step",
        "numerics/component_pursuit.py",
        "soft_threshold(m - low_rank + dual / mu",
        "soft_threshold(m - low_rank",
        NUMERICS,
    ),
    Fault(
        "PCP: the weight forgotten",
        "numerics/component_pursuit.py",
        "weight / mu)\n        gap",
        "1 / mu)\n        gap",
        NUMERICS,
    ),
    Fault("mu: padding counts", "operators/clamped_keys.py", "torch.where(visible, size, 0)", "size", BOUND),
    Fault(
        "mu: all tokens counted",
        "operators/clamped_keys.py",
        "visible.sum(dim=-1",
        "torch.ones_like(visible).sum(dim=-1",
        BOUND,
    ),
    Fault(
        "mu: the mask turned round",
        "operators/clamped_keys.py",
        "return size @ weights.mT",
        "return size @ weights",
        BOUND,
    ),
    Fault(
        "mu: leaks by default",
        "operators/clamped_keys.py",
        "scope: Scope = Scope.PREFIX",
        "scope: Scope = Scope.HEAD",
        RPC,
    ),
    Fault("mu: in half precision", "operators/clamped_keys.py", ".to(wide).abs()", ".abs()", BOUND),
    Fault(
        "mu: keys of zero unguarded",
        "operators/clamped_keys.py",
        "mu = 1 / inverse.clamp_min(_LEAST_MEAN)",
        "mu = 1 / inverse",
        BOUND,
    ),
    Fault("bound: eps forgotten", "operators/clamped_keys.py", "/ (1 + eps * inverse)", "/ 1", BOUND),
    Fault(
        "bound: rules exchanged",
        "operators/clamped_keys.py",
        "if self.threshold is Threshold.OVER_MU",
        "if self.threshold is not Threshold.OVER_MU",
        BOUND,
    ),
    Fault("PAP: dual without the rest", STEPS, "dual = clamped + low_rank - new", "dual = low_rank - new", RPC),
    Fault("PAP: sign of the dual ignored", STEPS, "(1 - pursuit.dual_sign) * dual", "2 * dual", RPC),
    Fault(
        "PAP: L first, dual kept",
        STEPS,
        "                dual = clamped\n",
        "                dual = dual + clamped\n",
        RPC,
    ),
    Fault("PAP: L first, sign ignored", STEPS, "(1 + pursuit.dual_sign) * clamped", "2 * clamped", RPC),
    Fault(
        "PAP: queries of the first iteration alone",
        STEPS,
        "q = keys if self.queries is None",
        "q = keys if True",
        RPC,
    ),
    Fault("PAP: padded queries in the mean", STEPS, "torch.where(visible, q, 0)", "q", RPC),
    Fault(
        "PAP: dropout in every iteration",
        STEPS,
        "(last and pursuit.dropout is DropoutIterations.LAST)",
        "pursuit.dropout is DropoutIterations.LAST",
        RPC,
    ),
    Fault("PAP: a part gets another's mask", STEPS, "mask = mask[start:end]", "mask = mask[: end - start]", RPC),
    Fault("PAP: parts without the last", STEPS, "range(0, len(k), size):", "range(0, len(k) - 1, size):", RPC),
    Fault(
        "inner iterations shrink", "operators/pursuit_options.py", "self.inner is Inner.HALF and not last", "False", RPC
    ),
    Fault("hard is soft", "operators/pursuit_options.py", "if self.shrink is Shrink.HARD", "if False", RPC),
    Fault(
        "the kernel takes options that it has not",
        "operators/pursuit_options.py",
        "shrinks and not self.centred",
        "not self.centred",
        RPC,
    ),
    Fault(
        "presets: the code divides",
        "operators/clamped_keys.py",
        "KeyBound(threshold=Threshold.TIMES_MU, mu=KeyMu(width",
        "KeyBound(mu=KeyMu(width",
        BOUND,
    ),
    Fault(
        "presets: the method's sign",
        "operators/pursuit_options.py",
        "order=Order.LOW_RANK_FIRST, dual_sign=1)",
        "order=Order.LOW_RANK_FIRST)",
        RPC,
    ),
    Fault(
        "clamped keys ask unclamped",
        "operators/clamped_keys.py",
        "symmetric_attention(clamped,",
        "symmetric_attention(k.to(wide),",
        RPC,
    ),
    Fault("trace: Y without mu", "operators/rpc.py", "dual=mu * dual", "dual=dual", RPC),
    Fault(
        "trace: padding in the residual",
        "operators/rpc.py",
        "torch.where(visible, k - low_rank - sparse, 0)",
        "(k - low_rank - sparse)",
        RPC,
    ),
)

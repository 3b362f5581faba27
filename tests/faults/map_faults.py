"""Planted bugs in coding rates, model folders, the page, and baselines."""

from fault import Fault

SIDED = ("tests/audit/test_one_sided.py",)
AUDITED = ("tests/audit/test_run.py",)

MAP_FAULTS = (
    Fault("logdet: stored in single precision", "numerics/logdet.py", "_recorded_pull(x.double(), a.double()[..., None, None])", "_recorded_pull(x, a.to(x.dtype)[..., None, None])", ("tests/numerics/test_logdet.py",)),
    Fault("logdet: small tokens refused", "numerics/logdet.py", "value.clamp_min(1))", "value)", ("tests/numerics/test_logdet.py",)),
    Fault("rates: labels of any dtype accepted", "numerics/coding_rate.py", "if labels.is_floating_point() or labels.is_complex():", "if False:", ("tests/numerics/test_coding_rate.py",)),
    Fault("rates: memberships with a sum above one accepted", "numerics/coding_rate.py", "if membership is not None and not bool(((membership", "if False and not bool(((membership", ("tests/numerics/test_coding_rate.py",)),
    Fault("rates: noise estimated under vmap", "numerics/rate_noise.py", "if functorch_active():", "if False:", ("tests/numerics/test_coding_rate.py",)),
    Fault("folders: kind of another type accepted", "models/native.py", "if not isinstance(kind, str) or kind not in KINDS:", "if kind not in KINDS:", ("tests/models/test_crate.py",)),
    Fault("folders: unlimited number of steps", "models/crate_block.py", "not 0 < self.step <= LARGEST", "not 0 < self.step", ("tests/models/test_crate.py",)),
    Fault("page: agreement scale for a direction", "report/page_data.py", "grid.claim.direction is not None", "False", ("tests/report/test_browser.py",)),
    Fault("baseline: spread of the mean", "numerics/moments.py", "(1 + 1 / len(samples))", "(1 / len(samples))", SIDED),
    Fault("baseline: the head's error is ignored", "numerics/moments.py", "/ len(samples)) + error**2)", "/ len(samples)))", SIDED),
    Fault("baseline: one without values is accepted", "audit/baseline.py", "sorted(measured - at_start)", "sorted(measured - measured)", AUDITED),
)  # fmt: skip

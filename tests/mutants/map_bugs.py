"""Planted bugs in coding rates, model folders, the page, and baselines."""

from tests.mutants.mutant import Mutant

SIDED = ("tests/audit/test_one_sided.py",)
AUDITED = ("tests/audit/test_run.py",)

MUTANTS = (
    Mutant("logdet: stored in single precision", "logdet:_LogDet.backward", "_recorded_pull(x.double(), a.double()[..., None, None])", "_recorded_pull(x, a.to(x.dtype)[..., None, None])", ("tests/numerics/test_logdet.py",)),
    Mutant("logdet: small tokens refused", "logdet:_factorise", "value.clamp_min(1)", "value", ("tests/numerics/test_logdet.py",)),
    Mutant("rates: labels of any dtype accepted", "coding_rate:_by_labels", "labels.is_floating_point() or labels.is_complex()", "False", ("tests/numerics/test_coding_rate.py",)),
    Mutant("rates: memberships with a sum above one accepted", "coding_rate:rate_reduction", "membership is not None", "False", ("tests/numerics/test_coding_rate.py",)),
    Mutant("rates: noise estimated under vmap", "rate_noise:warn_of_noise", "functorch_active()", "False", ("tests/numerics/test_coding_rate.py",)),
    Mutant("folders: kind of another type accepted", "native:_read_config", "not isinstance(kind, str) or kind not in KINDS", "kind not in KINDS", ("lab/tests/models/test_crate.py",)),
    Mutant("folders: unlimited number of steps", "crate:BlockConfig.__post_init__", "0 < self.step <= LARGEST", "0 < self.step", ("lab/tests/models/test_crate.py",)),
    Mutant("page: agreement scale for a direction", "page_data:_claim", "grid.claim.direction is not None", "False", ("tests/report/test_browser.py",)),
    Mutant("baseline: spread of the mean", "moments:prediction_error", "1 + 1 / len(samples)", "1 / len(samples)", SIDED),
    Mutant("baseline: the head's error is ignored", "moments:prediction_error", "float(samples.var(ddof=1)) * (1 + 1 / len(samples)) + error ** 2", "float(samples.var(ddof=1)) * (1 + 1 / len(samples))", SIDED),
    Mutant("baseline: one without values is accepted", "baseline:_require_match", "measured - at_start", "measured - measured", AUDITED),
)  # fmt: skip

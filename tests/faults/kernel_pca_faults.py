"""Bugs that the tests must find in the claims of kernel PCA and in their controls."""

from fault import Fault

CLAIMS = ("tests/theories/kernel_pca/test_claims.py",)
LINEAR = ("tests/experiments/models/test_linear_map.py",)
RUNS = "tests/calibration/test_runs.py"
CAPTURED = ("tests/theories/kernel_pca/test_captured.py",)
SPAN = ("tests/kernels/test_span.py",)
CKA = ("tests/theories/kernel_pca/test_cka.py",)

KERNEL_PCA_FAULTS = (
    Fault("captured by products: careful way never taken", "theories/kernel_pca/captured.py", "for doubtful in (~safe).any(dim=-1)", "for doubtful in (~safe & safe).any(dim=-1)", CAPTURED),
    Fault("captured by products: pivots are not checked", "theories/kernel_pca/captured.py", "(pivot > LEAST_PIVOT) & captured.isfinite()", "captured.isfinite()", CAPTURED),
    Fault("captured by products: keys are not centred", "theories/kernel_pca/captured.py", "with_keys = with_keys.sub_(with_keys.mean(dim=-1, keepdim=True))", "pass", SPAN),
    Fault("spans: keys are not centred", "kernels/span.h", "centred[j] -= mean;", "centred[j] -= 0 * mean;", SPAN),
    Fault("spans: a zero pivot is forgotten", "kernels/span.h", "!(relative > 0) ? 0 : relative < least ? relative : least;", "relative >= least ? least : relative;", SPAN),
    Fault("spans: padding of the kernel is not finite", "kernels/span.h", "kernel[i * wide_m + j] = 0;", "kernel[i * wide_m + j] = NAN;", SPAN),
    Fault("spans: too much is left out below the diagonal", "kernels/span.h", "upper && column + V * HALF < rows ? column + V * HALF : rows", "upper && column + V * HALF < rows ? column + 1 : rows", SPAN),
    Fault("spans: the first draw for all", "kernels/span.h", "head * call.head_step + draw * call.draw_step", "head * call.head_step", SPAN),
    Fault("spans: the keys of the first head for all", "kernels/span.h", "call.kernels + (head * m + i) * m", "call.kernels + i * m", SPAN),
    Fault("spans: the first member does the others' draws", "kernels/variant.cpp", "draw = team.rank; draw < call.draws; draw += team.size", "draw = 0; draw < call.draws; draw += team.size", SPAN),
    Fault("captured by products: the sink is left out", "theories/kernel_pca/captured.py", "log_g = torch.logaddexp(log_g, sinks.double().unsqueeze(-1))", "log_g = log_g + 0", CAPTURED),
    Fault("captured by products: equal keys have variance", "theories/kernel_pca/captured.py", "sum(dim=-1) > least", "sum(dim=-1) > -least - 1", CAPTURED),
    Fault("sampled tokens: the first ones", "theories/samples.py", "torch.randperm(count, generator=generator)[:SAMPLE_SIZE]", "torch.arange(count)[:SAMPLE_SIZE]", CAPTURED),
    Fault("sampled tokens: short inputs too", "theories/samples.py", "if count <= LONGEST:", "if count <= SAMPLE_SIZE:", CAPTURED),
    Fault("sampled tokens: not said", "theories/kernel_pca/measurement.py", "if not torch.equal(keys, visible):", "if False:", CAPTURED),
    Fault("kernel PCA: an invariant control decides", "theories/kernel_pca/entry.py", "if (claim, control) not in INVARIANT", "if True", CLAIMS),
    Fault("kernel PCA: the same random maps in every layer", "theories/kernel_pca/controls.py", "SeedSequence([seed, layer, c, e])", "SeedSequence([seed, 0, c, e])", CLAIMS),
    Fault("kernel PCA: other random maps on every input", "theories/kernel_pca/measurement.py", "seed=example.seed, layer=example.layer", "seed=example.seed + example.number, layer=example.layer", CLAIMS),
    Fault("kernel PCA: the same random values in every layer and on every input", "theories/kernel_pca/measurement.py", "Values.draw(v, draws, rng.torch, maps=maps)", "Values.draw(v, draws, torch.Generator().manual_seed(example.seed), maps=maps)", CLAIMS),
    Fault("kernel PCA: the same random values in every layer", "theories/kernel_pca/measurement.py", "Values.draw(v, draws, rng.torch, maps=maps)", "Values.draw(v, draws, torch.Generator().manual_seed(example.seed + 1000 * example.number), maps=maps)", CLAIMS),
    Fault("kernel PCA: random directions of one sign", "theories/kernel_pca/controls.py", "basis = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)", "basis = basis", CLAIMS),
    Fault("kernel PCA: spans without the model's bias", "theories/kernel_pca/controls.py", "self.mapped + shift.unsqueeze(-1)", "self.mapped", CLAIMS),
    Fault("kernel PCA: maps without an inverse are inverted", "theories/kernel_pca/controls.py", "if of_sizes[-1] * LARGEST_CONDITION > of_sizes[0] else None", "if True else None", CLAIMS),
    Fault("kernel PCA: few random maps", "theories/kernel_pca/controls.py", "random_map: int = 16", "random_map: int = 8", CLAIMS),
    Fault("kernel PCA: keys of heads in another order", "theories/kernel_pca/controls.py", "of_draw.roll(j, dims=0)", "of_draw.roll(-j, dims=0)", CLAIMS),
    Fault("kernel PCA: other keys on their own scale", "theories/kernel_pca/controls.py", "return level + _distance(level, predicted) * shifted", "return remaining + (predicted - remaining) * shifted", CLAIMS),
    Fault("kernel PCA: keys that predict other numbers are compared", "theories/kernel_pca/entry.py", "if claim.predicted is not None and counts.get(OTHER_HEADS, 0) >= fewest_keys:", "if counts.get(OTHER_HEADS, 0) >= fewest_keys:", CLAIMS),
    Fault("kernel PCA: two other heads are a control", "theories/kernel_pca/controls.py", "fewest_fixed: int = 3", "fewest_fixed: int = 2", CLAIMS),
    Fault("kernel PCA: four other heads' keys are a control", "theories/kernel_pca/controls.py", "fewest_keys: int = 5", "fewest_keys: int = 4", CLAIMS),
    Fault("kernel PCA: many draws of statistics as published", "theories/kernel_pca/entry.py", "key: draws[:1] for", "key: draws for", CLAIMS),
    Fault("kernel PCA: queries of equal weight", "theories/kernel_pca/loss.py", "share.sqrt().unsqueeze(-1) * queries.directions", "share.shape[-1] ** -0.5 * queries.directions", ("tests/theories/kernel_pca/test_loss.py",)),
    Fault("theorems: the inverse is regularised", "theories/kernel_pca/theorems/remarks.py", "VANISHING = 1e-18", "VANISHING = 1e-3", ("tests/theorems/test_kernel_pca.py",)),
    Fault("theorems: the control is the inverse too", "theories/kernel_pca/theorems/remarks.py", "return _largest_gamma(e, w - w.mean(dim=0))", "return _largest_gamma(e, w + 1e14 * w.mean(dim=0))", ("tests/theorems/test_kernel_pca.py",)),
    Fault("random levels: over heads of all models", "calibration/results.py", 'self.published.setdefault(statistic, []).append(float(f"{np.median(of_heads):.4g}"))', "self.published.setdefault(statistic, []).extend(of_heads)", (f"{RUNS}::test_level_of_random_models_is_the_median_over_heads_and_then_over_models",)),
    Fault("random levels: of claims that are judged too", "calibration/runs.py", "(f for f in findings if f.claim.role is Role.PUBLISHED)", "findings", (f"{RUNS}::test_statistics_as_published_are_kept_for_every_random_model",)),
    Fault("random levels: lost for all families", "calibration/results.py", "self.published[statistic] = [*self.published.get(statistic, []), *values]", "self.published[statistic] = values", (f"{RUNS}::test_level_of_random_models_is_the_median_over_heads_and_then_over_models",)),
    Fault("linear map: evaluated on the inputs it was fitted to", "experiments/models/linear_map.py", "fitted_on, held_out = given[::2], given[1::2]", "fitted_on, held_out = given[::2], given[::2]", LINEAR),
    Fault("linear map: descent", "experiments/models/linear_map.py", "(-captured(given, weight, pivots=False)", "(captured(given, weight, pivots=False)", LINEAR),
    Fault("linear map: all eigenvalues count", "experiments/models/linear_map.py", ".flip(-1)[..., :count].clamp_min(0)", ".flip(-1).clamp_min(0)", LINEAR),
    Fault("linear map: without the bias", "experiments/models/linear_map.py", "x.new_ones(len(x), 1)], -1)", "x.new_zeros(len(x), 1)], -1)", LINEAR),
    Fault("CKA: row sums of a linear kernel", "theories/kernel_pca/cka.py", "x.sum(dim=-2).unsqueeze(-1)", "x.mean(dim=-2).unsqueeze(-1)", CKA),
    Fault("CKA: the trace of a linear kernel", "theories/kernel_pca/cka.py", "(self.entries.mT @ other.entries).square()", "(self.entries.mT @ other.entries).abs()", CKA),
)  # fmt: skip
"""Each is one replacement in the package."""

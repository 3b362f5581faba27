"""Bugs that the tests must find in the claims of kernel PCA and in their controls."""

from tests.mutants.mutant import Mutant

CLAIMS = ("tests/theories/kernel_pca/test_claims.py",)
LINEAR = ("lab/tests/experiments/models/test_linear_map.py",)
RUNS = "tests/calibration/test_runs.py"
CAPTURED = ("tests/theories/kernel_pca/test_captured.py",)
SPAN = ("tests/kernels/test_span.py",)
CKA = ("tests/theories/kernel_pca/test_cka.py",)

MUTANTS = (
    Mutant("captured by products: careful way never taken", "captured:_Keys.captured", "(~safe).any", "(~safe & safe).any", CAPTURED),
    Mutant("captured by products: pivots are not checked", "captured:_Keys._by_products", "(pivot > LEAST_PIVOT) & captured.isfinite()", "captured.isfinite()", CAPTURED),
    Mutant("captured by products: keys are not centred", "captured:_energies", "with_keys = with_keys.sub_(with_keys.mean(dim=-1, keepdim=True))", "pass", SPAN),
    Mutant("spans: keys are not centred", "span.h", "centred[j] -= mean;", "centred[j] -= 0 * mean;", SPAN),
    Mutant("spans: a zero pivot is forgotten", "span.h", "!(relative > 0) ? 0 : relative < least ? relative : least;", "relative >= least ? least : relative;", SPAN),
    Mutant("spans: padding of the kernel is not finite", "span.h", "kernel[i * wide_m + j] = 0;", "kernel[i * wide_m + j] = NAN;", SPAN),
    Mutant("spans: too much is left out below the diagonal", "span.h", "upper && column + V * HALF < rows ? column + V * HALF : rows", "upper && column + V * HALF < rows ? column + 1 : rows", SPAN),
    Mutant("spans: the first draw for all", "span.h", "head * call.head_step + draw * call.draw_step", "head * call.head_step", SPAN),
    Mutant("spans: the keys of the first head for all", "span.h", "call.kernels + (head * m + i) * m", "call.kernels + i * m", SPAN),
    Mutant("spans: the first member does the others' draws", "variant.cpp", "draw = team.rank; draw < call.draws; draw += team.size", "draw = 0; draw < call.draws; draw += team.size", SPAN),
    Mutant("captured by products: the sink is left out", "captured:_Keys.of", "torch.logaddexp(log_g, sinks.double().unsqueeze(-1))", "log_g + 0", CAPTURED),
    Mutant("captured by products: equal keys have variance", "captured:_Keys._spectrum", "centred.diagonal(dim1=-2, dim2=-1).sum(dim=-1) > least", "centred.diagonal(dim1=-2, dim2=-1).sum(dim=-1) > -least - 1", CAPTURED),
    Mutant("sampled tokens: the first ones", "samples:sample_tokens", "torch.randperm(count, generator=generator)", "torch.arange(count)", CAPTURED),
    Mutant("sampled tokens: short inputs too", "samples:sample_tokens", "count <= LONGEST", "count <= SAMPLE_SIZE", CAPTURED),
    Mutant("sampled tokens: not said", "measurement:KernelPCA._measure", "not torch.equal(keys, visible)", "False", CAPTURED),
    Mutant("kernel PCA: an invariant control decides", "entry:make_sample", "(claim, control) not in INVARIANT", "True", CLAIMS),
    Mutant("kernel PCA: the same random maps in every layer", "controls:RandomMaps.draw", "Random(seed, layer, c, e)", "Random(seed, 0, c, e)", CLAIMS),
    Mutant("kernel PCA: other random maps on every input", "measurement:KernelPCA._values", "example.seed", "example.seed + example.number", CLAIMS),
    Mutant("kernel PCA: the same random values in every layer and on every input", "measurement:KernelPCA._values", "rng.torch", "torch.Generator().manual_seed(example.seed)", CLAIMS),
    Mutant("kernel PCA: the same random values in every layer", "measurement:KernelPCA._values", "rng.torch", "torch.Generator().manual_seed(example.seed + 1000 * example.number)", CLAIMS),
    Mutant("kernel PCA: random directions of one sign", "controls:RandomMaps.draw", "basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)", "basis", CLAIMS),
    Mutant("kernel PCA: spans without the model's bias", "controls:MappedInput.spanning", "self.mapped + shift.unsqueeze(-1)", "self.mapped", CLAIMS),
    Mutant("kernel PCA: maps without an inverse are inverted", "controls:_shifts", "of_sizes[-1] * LARGEST_CONDITION > of_sizes[0]", "True", CLAIMS),
    Mutant("kernel PCA: few random maps", "controls:Draws", "random_map: int = 16", "random_map: int = 8", CLAIMS),
    Mutant("kernel PCA: keys of heads in another order", "controls:with_other_keys", "of_draw.roll(j, dims=0)", "of_draw.roll(-j, dims=0)", CLAIMS),
    Mutant("kernel PCA: other keys on their own scale", "controls:with_other_keys", "level + _distance(level, predicted) * shifted", "remaining + (predicted - remaining) * shifted", CLAIMS),
    Mutant("kernel PCA: keys that predict other numbers are compared", "entry:make_sample", "claim.predicted is not None and counts.get(OTHER_HEADS, 0) >= fewest_keys", "counts.get(OTHER_HEADS, 0) >= fewest_keys", CLAIMS),
    Mutant("kernel PCA: two other heads are a control", "controls:Draws", "fewest_fixed: int = 3", "fewest_fixed: int = 2", CLAIMS),
    Mutant("kernel PCA: four other heads' keys are a control", "controls:Draws", "fewest_keys: int = 5", "fewest_keys: int = 4", CLAIMS),
    Mutant("kernel PCA: many draws of statistics as published", "entry:Entry.samples", "draws[:1]", "draws", CLAIMS),
    Mutant("kernel PCA: queries of equal weight", "loss:explained_fraction", "share.sqrt().unsqueeze(-1)", "share.shape[-1] ** (-0.5)", ("tests/theories/kernel_pca/test_loss.py",)),
    Mutant("theorems: the inverse is regularised", "remarks:", "VANISHING = 1e-18", "VANISHING = 0.001", ("lab/tests/theorems/test_kernel_pca.py",)),
    Mutant("theorems: the control is the inverse too", "remarks:_gamma_by_least_squares", "w - w.mean(dim=0)", "w + 100000000000000.0 * w.mean(dim=0)", ("lab/tests/theorems/test_kernel_pca.py",)),
    Mutant("random levels: over heads of all models", "results:RandomCounts.add", "self.published.setdefault(statistic, []).append(float(f'{np.median(of_heads):.4g}'))", "self.published.setdefault(statistic, []).extend(of_heads)", (f"{RUNS}::test_level_of_random_models_is_the_median_over_heads_and_then_over_models",)),
    Mutant("random levels: of claims that are judged too", "runs:_audit_random", "(f for f in findings if f.claim.role is Role.PUBLISHED)", "findings", (f"{RUNS}::test_statistics_as_published_are_kept_for_every_random_model",)),
    Mutant("random levels: lost for all families", "results:RandomCounts.merge", "[*self.published.get(statistic, []), *values]", "values", (f"{RUNS}::test_level_of_random_models_is_the_median_over_heads_and_then_over_models",)),
    Mutant("linear map: evaluated on the inputs it was fitted to", "linear_map:measure", "given[1::2]", "given[::2]", LINEAR),
    Mutant("linear map: descent", "linear_map:fit", "-captured(given, weight, pivots=False).sum()", "captured(given, weight, pivots=False).sum()", LINEAR),
    Mutant("linear map: all eigenvalues count", "linear_map:largest_captured", "torch.linalg.eigvalsh(within @ within.mT).flip(-1)[..., :count]", "torch.linalg.eigvalsh(within @ within.mT).flip(-1)", LINEAR),
    Mutant("linear map: without the bias", "linear_map:read_inputs.keep", "x.new_ones", "x.new_zeros", LINEAR),
    Mutant("CKA: row sums of a linear kernel", "cka:linear_gram", "x.sum(dim=-2)", "x.mean(dim=-2)", CKA),
    Mutant("CKA: the trace of a linear kernel", "cka:Gram.product", "(self.entries.mT @ other.entries).square", "(self.entries.mT @ other.entries).abs", CKA),
)  # fmt: skip

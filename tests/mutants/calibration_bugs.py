"""Bugs in the calibration: what is planted, what is counted, and how an interrupted run continues."""

from tests.mutants.mutant import Mutant

PLANTING, RUNS = "tests/calibration/test_planting.py", "tests/calibration/test_runs.py"
COMMAND = "tests/calibration/test_command.py"

MUTANTS = (
    Mutant("calibration: kernel PCA's values of another scale", "planting:_theorem_values", "shape.head_dim ** (-0.5)", "3 * shape.head_dim ** (-0.5)", (f"{PLANTING}::test_kernel_pca_values_capture_all_variance_at_full_strength_only",)),
    Mutant("calibration: kernel PCA planted at any strength", "planting:plant_kernel_pca", "strength * exact", "exact", (f"{PLANTING}::test_kernel_pca_values_capture_all_variance_at_full_strength_only",)),
    Mutant("calibration: the SVM of the first query only", "planting:_svm", "z.flatten", "z[:, :1].expand_as(z).flatten", (f"{PLANTING}::test_max_margin_matrix_is_the_svm_of_all_queries_at_full_strength_only",)),
    Mutant("calibration: saturation of the mean query", "planting:_saturated", "(scores.softmax(dim=-1).amax(dim=-1) > SATURATED).double().mean", "(scores.softmax(dim=-1).amax(dim=-1).mean() > SATURATED).double", (f"{PLANTING}::test_max_margin_heads_are_saturated_to_the_share_that_is_wanted",)),
    Mutant("calibration: variants are planted as the theory's default", "runs:_rows", "_Row(name=f'1, {name}', counts=counts, plant=plant, strength=1.0, number=OF_VARIANTS + index)", "_Row(name=f'1, {name}', counts=counts, plant=PLANTS[theory.key], strength=1.0, number=OF_VARIANTS + index)", (f"{RUNS}::test_variants_are_planted_at_full_strength_and_have_rows_of_their_own",)),
    Mutant("calibration: more queries are not planted", "planting:plant_max_margin", "_normal(shape.inputs, shape.layers, queries, d, generator=generator)", "_normal(shape.inputs, shape.layers, QUERIES, d, generator=generator)", (f"{PLANTING}::test_max_margin_matrix_is_the_svm_of_all_queries_at_full_strength_only",)),
    Mutant("calibration: tokens that are not centred", "planting:plant_coding_rate", "tokens = tokens - tokens.mean(dim=-2, keepdim=True)", "", (f"{PLANTING}::test_coding_rate_head_takes_the_exact_step_of_its_subspace",)),
    Mutant("calibration: a step of another epsilon", "planting:_step_weights", "EPS ** 2", "EPS", (f"{PLANTING}::test_coding_rate_head_takes_the_exact_step_of_its_subspace",)),
    Mutant("calibration: the bias of positions stays", "planting:plant_symmetry.model", "1 - weights", "1 - weights / 2", (f"{PLANTING}::test_symmetric_head_has_no_bias_at_full_strength_and_the_others_have_nothing_else",)),
    Mutant("calibration: the sink's value is not small", "planting:plant_attention_sinks", "strength * torch.outer(value @ first, first)", "0 * torch.outer(value @ first, first)", (f"{PLANTING}::test_sink_has_the_attention_and_the_small_value_of_its_strength",)),
    Mutant("calibration: only supported heads are detected", "results:", "(Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED)", "(Verdict.SUPPORTED,)", (f"{COMMAND}::test_tables_have_power_and_false_positives_with_wilson_intervals",)),
    Mutant("calibration: heads without a test count as random models", "results:RandomCounts.add", "(finding.verdict for finding in findings if finding.verdict not in WITHOUT_TEST)", "(finding.verdict for finding in findings)", (f"{RUNS}::test_random_counts_leave_out_heads_without_a_test",)),
    Mutant("calibration: any strength with power is detectable", "results:Calibration.detectable", "break", "continue", (f"{RUNS}::test_detectable_strength_is_the_smallest_from_which_on_power_is_high",)),
    Mutant("calibration: a run with other settings continues", "runs:_begin", "(stored.settings, stored.version) != (empty.settings, empty.version)", "stored.version != empty.version", (f"{RUNS}::test_other_settings_are_refused_and_more_repeats_are_added",)),
    Mutant("calibration: every run plants the same heads", "runs:_audit_planted", "(request.options.seed, OF_PLANTED, list(PLANTS).index(theory.key), row.number, first)", "(request.options.seed, OF_PLANTED, list(PLANTS).index(theory.key), row.number, 0)", (f"{RUNS}::test_further_repeats_plant_other_heads",)),
    Mutant("calibration: the baseline is the random model itself", "runs:_audit_random", "seeds[2:]", "seeds[:1] + seeds[3:]", (f"{RUNS}::test_random_models_are_counted_by_family_with_their_own_seeds",)),
    Mutant("calibration: random models are audited again", "runs:_random_steps", "calibration.random_counts(theory.key).audited <= index", "True", (f"{RUNS}::test_theory_that_is_added_later_gets_the_same_random_models",)),
)  # fmt: skip

"""Bugs in the calibration: what is planted, what is counted, and how an interrupted run continues."""

from fault import Fault

PLANTING, RUNS = "tests/calibration/test_planting.py", "tests/calibration/test_runs.py"
COMMAND = "tests/calibration/test_command.py"
RESULTS = "calibration/results.py"

CALIBRATION_FAULTS = (
    Fault(
        "calibration: kernel PCA's values of another scale",
        "calibration/planting/kernel_pca.py",
        "scale=shape.head_dim**-0.5",
        "scale=3 * shape.head_dim**-0.5",
        (f"{PLANTING}::test_kernel_pca_values_capture_all_variance_at_full_strength_only",),
    ),
    Fault(
        "calibration: kernel PCA planted at any strength",
        "calibration/planting/kernel_pca.py",
        "values[:, index] = strength * exact +",
        "values[:, index] = exact +",
        (f"{PLANTING}::test_kernel_pca_values_capture_all_variance_at_full_strength_only",),
    ),
    Fault(
        "calibration: the SVM of the first query only",
        "calibration/planting/max_margin.py",
        "z.flatten(0, 1), selected)",
        "z[:, :1].expand_as(z).flatten(0, 1), selected)",
        (f"{PLANTING}::test_max_margin_matrix_is_the_svm_of_all_queries_at_full_strength_only",),
    ),
    Fault(
        "calibration: saturation of the mean query",
        "calibration/planting/max_margin.py",
        "scores.softmax(dim=-1).amax(dim=-1) > SATURATED).double().mean()",
        "scores.softmax(dim=-1).amax(dim=-1).mean() > SATURATED).double()",
        (f"{PLANTING}::test_max_margin_heads_are_saturated_to_the_share_that_is_wanted",),
    ),
    Fault(
        "calibration: variants are planted as the theory's default",
        "calibration/runs.py",
        "counts=counts, plant=plant, strength=1.0,",
        "counts=counts, plant=PLANTS[theory.key], strength=1.0,",
        (f"{RUNS}::test_variants_are_planted_at_full_strength_and_have_rows_of_their_own",),
    ),
    Fault(
        "calibration: more queries are not planted",
        "calibration/planting/max_margin.py",
        "z = _normal(shape.inputs, shape.layers, queries, d, generator=generator)",
        "z = _normal(shape.inputs, shape.layers, QUERIES, d, generator=generator)",
        (f"{PLANTING}::test_max_margin_matrix_is_the_svm_of_all_queries_at_full_strength_only",),
    ),
    Fault(
        "calibration: tokens that are not centred",
        "calibration/planting/coding_rate.py",
        "    tokens = tokens - tokens.mean(dim=-2, keepdim=True)\n",
        "",
        (f"{PLANTING}::test_coding_rate_head_takes_the_exact_step_of_its_subspace",),
    ),
    Fault(
        "calibration: a step of another epsilon",
        "calibration/planting/coding_rate.py",
        "a = p / (n * EPS**2)",
        "a = p / (n * EPS)",
        (f"{PLANTING}::test_coding_rate_head_takes_the_exact_step_of_its_subspace",),
    ),
    Fault(
        "calibration: the bias of positions stays",
        "calibration/planting/symmetry.py",
        "attention.score_bias = (1 - weights) * bias",
        "attention.score_bias = (1 - weights / 2) * bias",
        (f"{PLANTING}::test_symmetric_head_has_no_bias_at_full_strength_and_the_others_have_nothing_else",),
    ),
    Fault(
        "calibration: the sink's value is not small",
        "calibration/planting/attention_sinks.py",
        "value - strength * torch.outer",
        "value - 0 * torch.outer",
        (f"{PLANTING}::test_sink_has_the_attention_and_the_small_value_of_its_strength",),
    ),
    Fault(
        "calibration: only supported heads are detected",
        RESULTS,
        "CALLED = (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED)",
        "CALLED = (Verdict.SUPPORTED,)",
        (f"{COMMAND}::test_tables_have_power_and_false_positives_with_wilson_intervals",),
    ),
    Fault(
        "calibration: heads without a test count as random models",
        RESULTS,
        "Counter(finding.verdict for finding in findings if finding.verdict not in WITHOUT_TEST)",
        "Counter(finding.verdict for finding in findings)",
        (f"{RUNS}::test_random_counts_leave_out_heads_without_a_test",),
    ),
    Fault(
        "calibration: any strength with power is detectable",
        RESULTS,
        "                break\n",
        "                continue\n",
        (f"{RUNS}::test_detectable_strength_is_the_smallest_from_which_on_power_is_high",),
    ),
    Fault(
        "calibration: a run with other settings continues",
        "calibration/runs.py",
        "if (stored.settings, stored.version) != (empty.settings, empty.version):",
        "if stored.version != empty.version:",
        (f"{RUNS}::test_other_settings_are_refused_and_more_repeats_are_added",),
    ),
    Fault(
        "calibration: every run plants the same heads",
        "calibration/runs.py",
        "row.number, first)",
        "row.number, 0)",
        (f"{RUNS}::test_further_repeats_plant_other_heads",),
    ),
    Fault(
        "calibration: the baseline is the random model itself",
        "calibration/runs.py",
        "[family.draw(seed) for seed in seeds[2:]]",
        "[family.draw(seed) for seed in seeds[:1] + seeds[3:]]",
        (f"{RUNS}::test_random_models_are_counted_by_family_with_their_own_seeds",),
    ),
    Fault(
        "calibration: random models are audited again",
        "calibration/runs.py",
        "calibration.random_counts(theory.key).audited <= index",
        "True",
        (f"{RUNS}::test_theory_that_is_added_later_gets_the_same_random_models",),
    ),
)

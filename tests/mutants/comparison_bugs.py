"""Bugs that the tests must find in manifests, reruns and comparisons: wrong pairs, tests, checksums and exit codes."""

from tests.mutants.mutant import Mutant

COMPARISON, MANIFEST, SAMPLES = (f"tests/audit/test_{name}.py" for name in ("comparison", "manifest", "samples"))
ENGINE, REPORT, REPETITION = (
    "tests/audit/test_engine.py",
    "tests/report/test_comparison_report.py",
    "tests/report/test_repetition.py",
)
RERUN, COMPARE = "tests/as_shipped/test_rerun.py", "tests/as_shipped/test_compare.py"
INVARIANCE = "tests/audit/test_invariance.py"

MUTANTS = (
    Mutant("invariance: draws depend on the batch", "examples:make_examples.of_input", "(seed, heads.layer, first + index + 1)", "(seed, heads.layer, first + index + 1, heads.q.shape[0])", (INVARIANCE,)),
    Mutant("invariance: padding counts as tokens", "example:Example.visible", "self.mask.any(dim=-2)", "torch.ones_like(self.mask.any(dim=-2))", (INVARIANCE,)),
    Mutant("samples: skipped inputs are not counted", "sums:Sums.add", "self.values.put(self.examples, np.where(defined, sample.value, np.nan)[None])", "self.values.put(self.values._count, np.where(defined, sample.value, np.nan)[None])", (ENGINE,)),
    Mutant("samples: merged inputs overwrite the first", "sums:Sums.merge", "self.values.put(self.examples, other.by_example())", "self.values.put(0, other.by_example())", (ENGINE,)),
    Mutant("samples: other formats are read", "samples:read_samples", "metadata.get('format') != FORMAT", "False", (SAMPLES,)),
    Mutant("manifest: dtypes do not count in batches", "checksums:_add_tensor", "f'tensor {tensor.dtype} {tuple(tensor.shape)}\\n'", "f'tensor {tuple(tensor.shape)}\\n'", (MANIFEST,)),
    Mutant("manifest: shapes do not count in batches", "checksums:_add_tensor", "f'tensor {tensor.dtype} {tuple(tensor.shape)}\\n'", "f'tensor {tensor.dtype}\\n'", (MANIFEST,)),
    Mutant("manifest: memory layout counts", "checksums:_add_tensor", "tensor.cpu().contiguous().reshape(-1)", "torch.as_strided(tensor.cpu(), (tensor.numel(),), (1,)).contiguous()", (MANIFEST,)),
    Mutant("manifest: the folder of a config counts", "checksums:config_checksum", "name not in _NOT_CONTENT", "name", (MANIFEST,)),
    Mutant("manifest: other threads are not reported", "manifest:Manifest.differences", "('dtype', 'versions', 'machine', 'seeds', 'plugins', 'swaps')", "('dtype', 'versions', 'seeds', 'plugins', 'swaps')", (MANIFEST,)),
    Mutant("manifest: edited findings are accepted", "stored:check_file", "not fits", "False", (RERUN,)),
    Mutant("rerun: verdicts alone are compared", "repetition:compare_findings", "old.get(key) != new.get(key)", "old.get(key, {}).get('verdict') != new.get(key, {}).get('verdict')", (REPETITION,)),
    Mutant("rerun: differences end with exit code 0", "rerun_command:print_rerun", "return repetition.identical", "return True", (RERUN,)),
    Mutant("rerun: the report is overwritten", "confirmed:require_other_folder", "out.resolve() == inside", "False", (RERUN,)),
    Mutant("compare: inputs are not paired", "comparison:_differences", "b.values - a.values", "b.values[::-1] - a.values", (COMPARISON,)),
    Mutant("compare: differences have the wrong sign", "comparison:_differences", "b.values - a.values", "a.values - b.values", (COMPARISON,)),
    Mutant("compare: p-values are not adjusted", "comparison:_adjusted", "false_discovery_rate(np.array(p_values, dtype=np.float64))", "np.array(p_values, dtype=np.float64)", (COMPARISON,)),
    Mutant("compare: other inputs are accepted", "comparison:_require_same_inputs", "before.data != after.data", "False", (COMPARISON,)),
    Mutant("compare: rounding is a change", "comparison:_untested", "max(machine_epsilon(dtype) ** 0.5 * size, tolerance(dtype))", "0.0", (COMPARISON,)),
    Mutant("compare: differences without spread have p-value 0", "comparison:_p_values", "2.0 ** (1 - moments.count)", "0.0", (COMPARISON,)),
    Mutant("compare: claims on the stream begin a difference in a head", "comparison:Comparison.origin", "d.layer == layer and d.claim.unit is Unit.HEAD and (not d.claim.shared)", "d.layer == layer and d.claim.unit is Unit.HEAD", (COMPARISON,)),
    Mutant("compare: the last layer that differs is the first", "comparison:Comparison.origin", "min((d.layer for d in unequal))", "max((d.layer for d in unequal))", (REPORT,)),
    Mutant("compare: undecided heads have a verdict", "comparison:_both_judged", "first in JUDGED and second in JUDGED", "first and second", (COMPARISON,)),
    Mutant("compare: the verdicts are exchanged", "comparison:compare", "(_verdicts(a), _verdicts(b))", "(_verdicts(b), _verdicts(a))", (COMPARISON,)),
    Mutant("compare: every verdict counts as another", "comparison:Difference.verdict_differs", "self.verdicts[1]", "None", (REPORT,)),
    Mutant("compare: the swap is not applied", "audit_command:_load", "loaded = _swapped(loaded, request.swap)", "pass", (COMPARE,)),
    Mutant("compare: a model is not audited like the report", "compare_command:run_comparison", "like is not None and (first is None or second is None)", "False", (COMPARE,)),
    Mutant("swap: swapped layers are measured", "measuring:_without_swapped", "{layer.layer for layer in fidelity.layers if layer.name not in swapped}", "{layer.layer for layer in fidelity.layers}", (COMPARISON,)),
    Mutant("page: the comparison's names are not escaped", "html:page_template", "Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(lambda file: page_file(file, package)))", "Environment(autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(lambda file: page_file(file, package)))", (REPORT,)),
)  # fmt: skip

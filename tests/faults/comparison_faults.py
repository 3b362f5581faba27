"""Bugs that the tests must find in manifests, reruns and comparisons: wrong pairs, tests, checksums and exit codes."""

from fault import Fault

COMPARISON, MANIFEST, SAMPLES = (f"tests/audit/test_{name}.py" for name in ("comparison", "manifest", "samples"))
ENGINE, REPORT, REPETITION = (
    "tests/audit/test_engine.py",
    "tests/report/test_comparison_report.py",
    "tests/report/test_repetition.py",
)
RERUN, COMPARE = "tests/as_shipped/test_rerun.py", "tests/as_shipped/test_compare.py"

INVARIANCE = "tests/audit/test_invariance.py"

COMPARISON_FAULTS = (
    Fault("invariance: draws depend on the batch", "audit/examples.py", "entropy = (seed, heads.layer, first + index + 1)", "entropy = (seed, heads.layer, first + index + 1, heads.q.shape[0])", (INVARIANCE,)),
    Fault("invariance: padding counts as tokens", "theories/example.py", "return self.mask.any(dim=-2)", "return torch.ones_like(self.mask.any(dim=-2))", (INVARIANCE,)),
    Fault("samples: skipped inputs are not counted", "audit/accumulators.py", "self.values.put(self.examples, np.where", "self.values.put(self.values._count, np.where", (ENGINE,)),
    Fault("samples: merged inputs overwrite the first", "audit/accumulators.py", "self.values.put(self.examples, other.by_example())", "self.values.put(0, other.by_example())", (ENGINE,)),
    Fault("samples: other formats are read", "audit/samples.py", 'if metadata.get("format") != FORMAT:', "if False:", (SAMPLES,)),
    Fault("manifest: dtypes do not count in batches", "audit/checksums.py", 'f"tensor {tensor.dtype} {tuple(tensor.shape)}\\n"', 'f"tensor {tuple(tensor.shape)}\\n"', (MANIFEST,)),
    Fault("manifest: shapes do not count in batches", "audit/checksums.py", 'f"tensor {tensor.dtype} {tuple(tensor.shape)}\\n"', 'f"tensor {tensor.dtype}\\n"', (MANIFEST,)),
    Fault("manifest: memory layout counts", "audit/checksums.py", "tensor.cpu().contiguous().reshape(-1)", "torch.as_strided(tensor.cpu(), (tensor.numel(),), (1,)).contiguous()", (MANIFEST,)),
    Fault("manifest: the folder of a config counts", "audit/checksums.py", "if name not in _NOT_CONTENT", "if name", (MANIFEST,)),
    Fault("manifest: other threads are not reported", "audit/manifest.py", '("dtype", "versions", "machine", "seeds", "plugins", "swaps")', '("dtype", "versions", "seeds", "plugins", "swaps")', (MANIFEST,)),
    Fault("manifest: edited findings are accepted", "audit/stored.py", "    if not fits:\n", "    if False:\n", (RERUN,)),
    Fault("rerun: verdicts alone are compared", "report/repetition.py", "if old.get(key) != new.get(key)]", 'if old.get(key, {}).get("verdict") != new.get(key, {}).get("verdict")]', (REPETITION,)),
    Fault("rerun: differences end with exit code 0", "cli/rerun_command.py", "return repetition.identical", "return True", (RERUN,)),
    Fault("rerun: the report is overwritten", "cli/rerun_command.py", "if out.resolve() == folder.resolve():", "if False:", (RERUN,)),
    Fault("compare: inputs are not paired", "audit/comparison.py", "step = b.values - a.values", "step = b.values[::-1] - a.values", (COMPARISON,)),
    Fault("compare: differences have the wrong sign", "audit/comparison.py", "step = b.values - a.values", "step = a.values - b.values", (COMPARISON,)),
    Fault("compare: p-values are not adjusted", "audit/comparison.py", "adjusted = false_discovery_rate(np.array(p_values, dtype=np.float64))", "adjusted = np.array(p_values, dtype=np.float64)", (COMPARISON,)),
    Fault("compare: other inputs are accepted", "audit/comparison.py", "if before.data != after.data and", "if False and", (COMPARISON,)),
    Fault("compare: rounding is a change", "audit/comparison.py", "max(machine_epsilon(dtype) ** 0.5 * size, tolerance(dtype))", "0.0", (COMPARISON,)),
    Fault("compare: differences without spread have p-value 0", "audit/comparison.py", "2.0 ** (1 - moments.count), p)", "0.0, p)", (COMPARISON,)),
    Fault("compare: claims on the stream begin a difference in a head", "audit/comparison.py", "and not d.claim.shared}", "}", (COMPARISON,)),
    Fault("compare: the last layer that differs is the first", "audit/comparison.py", "layer = min(d.layer for d in unequal)", "layer = max(d.layer for d in unequal)", (REPORT,)),
    Fault("compare: undecided heads have a verdict", "audit/comparison.py", "if first in JUDGED and second in JUDGED else None", "if first and second else None", (COMPARISON,)),
    Fault("compare: the verdicts are exchanged", "audit/comparison.py", "verdicts = _verdicts(a), _verdicts(b)", "verdicts = _verdicts(b), _verdicts(a)", (COMPARISON,)),
    Fault("compare: every verdict counts as another", "audit/comparison.py", "self.verdicts[0] is not self.verdicts[1]", "self.verdicts[0] is not None", (REPORT,)),
    Fault("compare: the swap is not applied", "cli/audit_command.py", "loaded = _swapped(loaded, request.swap)", "pass", (COMPARE,)),
    Fault("compare: a model is not audited like the report", "cli/compare_command.py", "if like is not None and (first is None or second is None):", "if False:", (COMPARE,)),
    Fault("swap: swapped layers are measured", "audit/part_runs.py", "if layer.name not in swapped}", "}", (COMPARISON,)),
    Fault("page: the comparison's names are not escaped", "report/html.py", "autoescape=True", "autoescape=False", (REPORT,)),
)  # fmt: skip

"""Bugs that the tests must find in the audit: the engine, its sums, the baseline, judging, plug-ins and sinks."""

from fault import Fault

ENGINE = ("tests/audit/test_engine.py",)
JUDGED = ("tests/audit/test_judging.py", "tests/audit/test_one_sided.py", "tests/audit/test_findings.py")
COMPARED = ("tests/audit/test_baseline.py",)
NORMS = ("tests/models/test_norms.py",)
MOMENTS = ("tests/numerics/test_moments.py",)
RUN = "tests/audit/test_run.py"
EXAMPLES = ("tests/audit/test_examples.py",)
RECORD = ("tests/audit/test_record.py",)
LOADED = ("tests/theories/test_catalogue.py",)
SINKS = ("tests/theories/test_attention_sinks.py",)
GROUPS = ("tests/theories/max_margin/test_measurement.py",)

AUDIT_FAULTS = (
    Fault("engine: the same draws in every layer", "audit/examples.py", "entropy = (seed, heads.layer, first + index + 1)", "entropy = (seed, 0, first + index + 1)", ENGINE),
    Fault("engine: the same draws on every input", "audit/examples.py", "entropy = (seed, heads.layer, first + index + 1)", "entropy = (seed, heads.layer, 1)", ENGINE),
    Fault("engine: the same draws in every window", "audit/examples.py", "Random(*entropy, window))", "Random(*entropy, 0))", ENGINE),
    Fault("engine: another input's mask", "audit/examples.py", "added[entry if added.shape[0] > 1 else 0]", "added[0]", EXAMPLES),
    Fault("engine: another input's residual stream", "audit/examples.py", "row = slice(index, index + 1)", "row = slice(0, 1)", EXAMPLES),
    Fault("engine: inputs that do not apply are measured", "audit/engine.py", "if reason is None else dict.fromkeys", "if True else dict.fromkeys", SINKS),
    Fault("engine: the sum of windows", "audit/engine.py", "sums.add(samples[0] if len(windows) == 1 else average(samples))", "sums.add(samples[0])", ENGINE),
    Fault("engine: groups overlap", "audit/engine.py", "layer.groups + 1, layer.waiting, []", "layer.groups + 1, layer.waiting, layer.waiting[1:]", GROUPS),
    Fault("engine: no group before", "audit/engine.py", "before=layer.before, last=example", "before=[], last=example", GROUPS),
    Fault("engine: merged inputs are counted twice", "audit/accumulators.py", "self.examples += other.examples", "self.examples += 2 * other.examples", ENGINE),
    Fault("engine: merged controls are lost", "audit/accumulators.py", "self.controls[control].value.merge(sums.value)", "pass", ENGINE),
    Fault("engine: merged means are not weighted", "numerics/moments.py", "share = other.count / np.maximum(count, 1)", "share = 0.5", ENGINE),
    Fault("engine: merged spreads ignore the means", "numerics/moments.py", "+ step * (step * self.count * share)", "", ENGINE),
    Fault("engine: large means merged with nothing", "numerics/moments.py", "+ step * (step * self.count * share)", "+ step**2 * self.count * share", ("tests/numerics/test_moments.py",)),
    Fault("engine: saved reasons are lost", "audit/accumulators.py", 'sums.reasons = [_reason(entry) for entry in state["reasons"]]', "sums.reasons = []", ENGINE),
    Fault("engine: a restored part starts again", "audit/engine.py", 'entry["inputs"],\n', "0,\n", ENGINE),
    Fault("engine: parts of other seeds merge", "audit/engine.py", "(self.theory.key, self._seed, self._controls) != (other.theory.key, other._seed, other._controls)", "self.theory.key != other.theory.key", ENGINE),
    Fault("sums: fixed draws are averaged", "audit/accumulators.py", "        if control.fixed:\n            error = min", "        if False:\n            error = min", ENGINE),
    Fault("sums: controls count where the value does not", "audit/accumulators.py", "sums.value.add(np.where(defined, draws, np.nan))", "sums.value.add(draws)", ENGINE),
    Fault("sums: one input decides", "audit/accumulators.py", "p_value=p if self.value.count[head] > 1 else np.nan", "p_value=p", ENGINE),
    Fault("sums: the claim's prediction is ignored", "audit/accumulators.py", "predicted=predicted if claim.predicted is None else claim.predicted", "predicted=predicted", ENGINE),
    Fault("sums: reasons of measured inputs", "audit/accumulators.py", "if self.examples > count else ()", "if True else ()", ("tests/audit/test_engine.py", "tests/theories/kernel_pca/test_claims.py")),
    Fault("judging: p-values are not adjusted", "audit/judging.py", "verdict = _verdict(finding, p, rate)", "verdict = _verdict(finding, finding.p_value, rate)", JUDGED),
    Fault("judging: the adjusted p-value is not kept", "audit/judging.py", "adjusted_p_value=p, detectable", "adjusted_p_value=finding.p_value, detectable", JUDGED),
    Fault("sums: fixed draws without the head's error", "audit/accumulators.py", "draws, error=error)\n            error", "draws)\n            error", ENGINE),
    Fault("sums: the prediction is subtracted from the mean", "audit/accumulators.py", "deviation=Interval(float(low_deviation[head]), float(high_deviation[head]))\n                if self.deviation.count[head]", "deviation=Interval(float(low_deviation[head]), float(high_deviation[head]))\n                if False", ("tests/theories/kernel_pca/test_claims.py",)),
    Fault("judging: heads that share a number are tested apart", "audit/judging.py", "findings[i].head // findings[i].shared", "findings[i].head", JUDGED),
    Fault("judging: statistics as published are judged", "audit/judging.py", "finding.claim.role is Role.PUBLISHED", "False", JUDGED),
    Fault("judging: a verdict without the baseline", "audit/judging.py", " or any(reason.kind is ReasonKind.NO_BASELINE for reason in finding.reasons)", "", JUDGED),
    Fault("judging: between controls is equivalence", "audit/judging.py", "return NoEvidence.BETWEEN", "pass", JUDGED),
    Fault("judging: detectable by the closest control alone", "audit/judging.py", "return max(needed, default=math.nan)", "return min(needed, default=math.nan)", JUDGED),
    Fault("judging: detectable in one test of many", "audit/judging.py", "_detectable(finding, rate / tests)", "_detectable(finding, rate)", JUDGED),
    Fault("judging: power is ignored", "audit/judging.py", "if detectable <= enough else NoEvidence.TOO_LITTLE_POWER", "if True else NoEvidence.TOO_LITTLE_POWER", JUDGED),
    Fault("judging: medians over heads that are not judged", "audit/judging.py", "if f.verdict is not Verdict.NOT_APPLICABLE and math.isfinite(f.value)]", "if f.inputs and math.isfinite(f.value)]", JUDGED),
    Fault("moments: a difference without spread decides", "numerics/moments.py", "np.where(self.mean == 0, 1.0, np.nan)", "np.where(self.mean == 0, 1.0, 0.0)", ("tests/numerics/test_moments.py",)),
    Fault("moments: fixed draws without spread decide", "numerics/moments.py", "return 1.0 if distance == 0 else math.nan", "return float(distance == 0)", ENGINE),
    Fault("baseline: without it a verdict", "audit/baseline.py", "if judged and len(by_head[BASELINE][key]) < 2:", "if False:", (f"{RUN}::test_what_has_no_baseline_is_undecided",)),
    Fault("kernel PCA: an invariant control decides", "theories/kernel_pca/entry.py", "if (claim, control) not in INVARIANT", "if True", ("tests/theories/kernel_pca/test_claims.py",)),
    Fault("sums: heads that a theory does not cover are judged", "audit/accumulators.py", "applies=bool(self.covered[head])", "applies=True", ("tests/theories/test_symmetry.py",)),
    Fault("findings: controls that do not decide count", "audit/findings.py", "if control.decisive and not math.isnan(control.value)]", "if not math.isnan(control.value)]", JUDGED),
    Fault("findings: the easiest control is the null", "theories/theory.py", "return min(known, key=lambda name: abs(predicted - known[name]))", "return max(known, key=lambda name: abs(predicted - known[name]))", JUDGED),
    Fault("baseline: in training mode", "audit/baseline.py", "with evaluation_mode(model), torch.no_grad():", "with torch.no_grad():", (f"{RUN}::test_the_baseline_is_measured_without_dropout",)),
    Fault("baseline: no theory is judged by it", "audit/run.py", "decisive = [theory.title for theory in judged_by_it]", "decisive = [theory.title for theory in ()]", (f"{RUN}::test_a_theory_that_needs_the_baseline_has_it_among_its_controls",)),
    Fault("baseline: the same weights in every draw", "audit/baseline.py", "[seed + index for index in range(BASELINE_DRAWS)]", "[seed for _ in range(BASELINE_DRAWS)]", (f"{RUN}::test_the_baseline_is_drawn_where_a_theory_needs_it",)),
    Fault("baseline: the same model is drawn again", "audit/baseline.py", "(draw(other) for other in others)", "(draw(first) for other in others)", ("tests/audit/test_run.py::test_the_baseline_is_drawn_where_a_theory_needs_it",)),
    Fault("baseline: one model decides", "audit/baseline.py", "several = judged and len(starts) > 1", "several = judged", (f"{RUN}::test_a_theory_that_needs_the_baseline_has_it_among_its_controls",)),
    Fault("baseline: the deviation is the error", "audit/baseline.py", "_deviation(finding) / math.sqrt(finding.inputs) if", "_deviation(finding) if", JUDGED),
    Fault("baseline: the deviation is the error of the first model", "audit/baseline.py", "max(finding.inputs - 1, 1))) * math.sqrt(finding.inputs)", "max(finding.inputs - 1, 1)))", JUDGED),
    Fault("baseline: trained norms are not measured", "audit/baseline.py", "if judged and not has_norms(model, norms):", "if False:", COMPARED),
    Fault("baseline: trained norms for all theories", "audit/baseline.py", "again = run(model, judged)", "again = run(model, compared)", COMPARED),
    Fault("baseline: the second baseline has the fresh norms", "audit/baseline.py", "with with_norms(model, norms):\n                again", "if True:\n                again", COMPARED),
    Fault("baseline: initial norms are measured twice", "audit/baseline.py", "return baseline if differ else dataclasses.replace(baseline, with_norms=[])", "return baseline", COMPARED),
    Fault("baseline: trained norms replace the first baseline", "audit/baseline.py", "by_head = {BASELINE: _by_head(baseline), TRAINED_NORMS: _by_head(with_norms)}", "by_head = {BASELINE: _by_head(with_norms or baseline)}", COMPARED),
    Fault("baseline: all theories are judged by it", "audit/run.py", "decisive = [theory.title for theory in judged_by_it]", "decisive = [theory.title for theory in chosen]", COMPARED),
    Fault("norms: they stay in the model", "models/norms.py", "        _write(own, before)", "        pass", NORMS),
    Fault("norms: running statistics are left out", "models/norms.py", 'BUFFERS = ("weight", "bias", "running_mean", "running_var")', 'BUFFERS = ("weight", "bias")', NORMS),
    Fault("norms: classes outside of PyTorch are left out", "models/norms.py", '"norm" in type(module).__name__.lower() and', "False and", NORMS),
    Fault("norms: maps with norm in their name count", "models/norms.py", " and all(value.ndim <= 1 for value in values.values())", "", NORMS),
    Fault("run: too short is any reason", "audit/run.py", "if reason.kind is ReasonKind.TOO_SHORT]", "]", (f"{RUN}::test_a_model_that_the_theory_does_not_cover_gets_a_table_and_no_error",)),
    Fault("record: heads of every layer", "audit/finding_table.py", "if entry == value))", "))", RECORD),
    Fault("plug-ins: another package's theory wins", "theories/catalogue.py", "_package(e) != OWN_PACKAGE, ", "", LOADED),
    Fault("plug-ins: a broken one ends the audit", "theories/catalogue.py", "            if keys:\n                raise\n", "            raise\n", LOADED),
    Fault("plug-ins: any object is a theory", "theories/catalogue.py", "if not isinstance(theory, Theory) or theory.key != entry.name:", "if False:", LOADED),
    Fault("sinks: the last token", "theories/attention_sinks.py", "values = {MASS: mass[0]", "values = {MASS: mass[-1]", SINKS),
    Fault("sinks: queries that attend to themselves", "theories/attention_sinks.py", "    queries[..., j] = 0\n", "", SINKS),
    Fault("sinks: hidden queries count", "theories/attention_sinks.py", "visible[..., j].expand_as(weights[..., j]).double()", "torch.ones_like(weights[..., j])", SINKS),
    Fault("sinks: uniform attention without the mask", "theories/attention_sinks.py", "torch.ones_like(weights) if visible is None else visible.expand_as(weights).double()", "torch.ones_like(weights)", SINKS),
    Fault("sinks: the sink logit is left out", "theories/attention_sinks.py", "if example.sinks is not None:", "if False:", SINKS),
    Fault("sinks: the mean of the other values", "theories/attention_sinks.py", ".median(dim=-1).values", ".mean(dim=-1)", SINKS),
)  # fmt: skip
"""Each is one replacement in the package."""

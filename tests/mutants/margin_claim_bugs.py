"""Planted bugs in the claims of the attention SVM on heads."""

from tests.mutants.mutant import Mutant

HEADS = ("tests/theories/max_margin/test_measurement.py",)
CONTROLS = ("tests/theories/max_margin/test_controls.py",)
KEPT = ("tests/theories/max_margin/test_kept.py",)
PREDICTIONS = ("tests/theories/max_margin/test_predictions.py",)

MUTANTS = (
    Mutant("margin: queries' bias left out", "random_heads:_TokenSpace.__init__", "right if queries.bias is None else torch.cat([right, queries.bias.cpu().double().unsqueeze(-2)], dim=-2)", "right", HEADS),
    Mutant("margin: scale left out of the norm", "random_heads:_TokenSpace.values", "self._scale * torch.linalg.svdvals(product)", "torch.linalg.svdvals(product)", HEADS),
    Mutant("margin: keys and queries exchanged in W", "random_heads:_TokenSpace.matrix", "self._scale * self._left[head] @ self._right[head].mT", "self._scale * self._right[head] @ self._left[head].mT", HEADS),
    Mutant("margin: rotated heads lose the singular values", "random_heads:Space.rotated_heads", "self.values", "torch.ones_like(self.values)", HEADS),
    Mutant("margin: other random heads in every call", "measurement:MaxMarginOnHeads._untrained_heads.draw", "Random(example.seed, example.layer, HEAD_SEED)", "Random(int(torch.randint(9 ** 9, ())) + id(example))", HEADS),
    Mutant("margin: hidden tokens are visible", "choices:_draw_choices.choices_of_example", "visible[position]", "visible[position] | True", HEADS),
    Mutant("margin: padding used as queries", "choices:_usable_queries", "visible.any(dim=0)", "True", HEADS),
    Mutant("margin: the least likely token is selected", "choices:_choice", "kind_scores.argmax", "kind_scores.argmin", HEADS),
    Mutant("margin: saturation of the average", "choices:_largest", "scores.amax", "scores.mean", HEADS),
    Mutant("margin: gains with the wrong sign", "choices:_gains", "-torch.einsum('he,hue->hu', gradient, v[:, torch.from_numpy(tokens)]).numpy()", "torch.einsum('he,hue->hu', gradient, v[:, torch.from_numpy(tokens)]).numpy()", HEADS),
    Mutant("margin: differences of tokens with a wrong cross term", "problems:Problem._differences", "mixed.T", "mixed", HEADS),
    Mutant("margin: queries left out of the products", "problems:Problem.gram", "self._differences() * queries[np.ix_(sequence, sequence)]", "self._differences()", HEADS),
    Mutant("margin: largest margin for the least", "problems:Fit.margin_ratio", "self.problem.head_margins.min", "self.problem.head_margins.max", HEADS),
    Mutant("margin: ratio without the best margin", "problems:Fit.margin_ratio", "float(self.problem.head_margins.min()) * self.size", "float(self.problem.head_margins.min())", HEADS),
    Mutant("margin: Hebbian norm of the sum of norms", "problems:Fit.hebbian_cosine", "self.problem.gram.sum()", "np.trace(self.problem.gram)", HEADS),
    Mutant("margin: every constraint supports", "problems:Fit.supports", "1e-09 * weights.max()", "-1", HEADS),
    Mutant("margin: held-out selection among sampled tokens only", "held_out:Trial.accuracy", "candidates[selected] = True", "pass", HEADS),
    Mutant("margin: selected tokens pull away", "held_out:_difference", "np.add", "np.subtract", HEADS),
    Mutant("margin: unsaturated heads are judged", "max_margin.claims:", "REQUIRED_SATURATION = 0.5", "REQUIRED_SATURATION = -1.0", HEADS),
    Mutant("margin: the tautology is judged", "evidence:_sample", "claim is c.SEPARABLE", "False", HEADS),
    Mutant("margin: head space without its note", "measurement:MaxMarginOnHeads.claims_of", "_maps_known(example)", "True", HEADS),
    Mutant("margin: another head's scores", "evidence:_GroupMeasurement.model_head", "group.scores(MODEL, 0, h)", "group.scores(MODEL, 0, 0)", HEADS),
    Mutant("margin: queries of other sequences keep their own query in the problem", "evidence:_GroupMeasurement._replaced_problems", "Problem.of(group, problem.selected, other_scores, norm, order=replacement.sequences)", "Problem.of(group, problem.selected, other_scores, norm)", CONTROLS),
    Mutant("margin: queries of other sequences keep their own scores", "evidence:_GroupMeasurement._replaced_problems", "np.stack([choice.pull[h] for choice in self._choices])[replacement.sequences]", "np.stack([choice.pull[h] for choice in self._choices])", CONTROLS),
    Mutant("margin: random heads saturate at their own norm", "choices:_choice", "draw_scores * (norms / pull.norms).unsqueeze(-1)", "draw_scores", CONTROLS),
    Mutant("margin: tokens that some head sees are visible to all", "choices:_visible", "example.mask.all", "example.mask.any", CONTROLS),
    Mutant("margin: held-out selection on the group itself", "evidence:_GroupMeasurement.__init__", "Group(before, side)", "self._group", CONTROLS),
    Mutant("margin: the other head is the head itself", "evidence:_GroupMeasurement._other_head", "(h + replacement.other_head) % heads", "h", CONTROLS),
    Mutant("margin: another head's matrix with the head's norm", "evidence:_GroupMeasurement._other_head", "float(self._choices[0].norms[MODEL][0, other])", "fit.problem.norm", CONTROLS),
    Mutant("margin: problems of heads without saturated queries are solved", "evidence:group_samples", "everywhere or share >= c.LEAST_SATURATION", "True", CONTROLS),
    Mutant("margin: the prediction is fitted on the measured queries alone", "predictions:predict_head", "(*group.measured, *group.further)", "group.measured", PREDICTIONS),
    Mutant("margin: the prediction is the SVM of the first group", "predictions:predict_head", "[choice for group in groups for choice in (*group.measured, *group.further)]", "[choice for group in groups[:1] for choice in (*group.measured, *group.further)]", PREDICTIONS),
    Mutant("margin: the prediction is fitted on another head's selection", "predictions:predict_head", "_problem(everything, h)", "_problem(everything, 0)", PREDICTIONS),
    Mutant("margin: the Frobenius SVM predicts the nuclear cosine", "predictions:_statistics", "others[claim]", "W", PREDICTIONS),
    Mutant("margin: the SVM of all inputs is tried once", "predictions:predict_head", "separate(rows)", "separate.__globals__['least_frobenius'](rows)", PREDICTIONS),
    Mutant("margin: kept choices lose precision", "choices:_in_few_bytes", "single if np.array_equal(single, x) else x", "single", PREDICTIONS),
    Mutant("margin: kept choices hold the numbers of their batch", "choices:Choice.model_only", "np.empty((0, self.x.shape[2]))", "self.pull[:0]", KEPT),
    Mutant("margin: measured groups are forgotten before they are tested", "measurement:MaxMarginOnHeads.keep", "not _wants(group.last, c.HELD_OUT)", "True", KEPT),
    Mutant("margin: no further queries", "choices:choices_of", "sampling.groups", "0", KEPT),
    Mutant("margin: the picture shows queries with one key", "picture:_queries", "example.mask.sum(dim=-1) > 1", "example.mask.sum(dim=-1) > 0", ("tests/audit/test_shown_inputs.py",)),
    Mutant("margin: random singular vectors are not orthonormal", "orthonormal:orthonormal_columns", "n >= TALL * d", "True", ("tests/numerics/test_orthonormal.py",)),
    Mutant("margin: kept choices select another token", "choices:Choice.model_only", "np.searchsorted(tokens, self.selected[MODEL])", "self.selected[MODEL] % len(tokens)", PREDICTIONS),
    Mutant("margin: groups of a merged part predict nothing", "groups:Groups.merge", "self.kept |= other.kept", "pass", PREDICTIONS),
    Mutant("margin: restored sums predict nothing", "groups:Groups.restore", "{index: KeptGroup.from_state(kept) for index, kept in state['kept']}", "{}", PREDICTIONS),
    Mutant("margin: heads that are not covered are predicted", "groups:Groups._covers", "bool(required.value.mean[head] >= needed.at_least)", "True", PREDICTIONS),
    Mutant("margin: predictions of other groups", "sums:Sums.with_predictions", "predicted[index]", "predicted[0]", PREDICTIONS),
    Mutant("margin: fixed draws compared with the head on all groups", "results:_control", "value = float(null.difference.mean[head] + draws.mean())", "pass", ("tests/audit/test_engine.py",)),
)  # fmt: skip

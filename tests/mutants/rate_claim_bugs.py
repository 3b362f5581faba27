"""Planted bugs in the claims of the coding rate on heads."""

from tests.mutants.mutant import Mutant

MEASURED = ("tests/theories/coding_rate/test_measurement.py",)
CURVES = ("tests/theories/coding_rate/test_depth.py",)
BLOCK = ("tests/theories/coding_rate/test_block.py",)
SUBSPACES = ("tests/theories/coding_rate/test_subspaces.py",)
ABLATED = ("tests/theories/coding_rate/test_ablations.py",)
JUDGED = ("tests/audit/test_one_sided.py",)

MUTANTS = (
    Mutant("rate: the more compressing of two changes", "block:_by_claim", "np.maximum", "np.minimum", MEASURED),
    Mutant("rate: scale matched the wrong way round", "block:Block.rates", "sizes[0] * _inverse(sizes)", "sizes * _inverse(sizes[0])", MEASURED),
    Mutant("rate: unit length in the subspace, not in the whole space", "block:Block.rates", "coordinates * _inverse(lengths).unsqueeze(-1)", "torch.nn.functional.normalize(coordinates.unflatten(-1, (self._bases.k, -1)), dim=-1).flatten(-2)", MEASURED),
    Mutant("rate: additions stay with their tokens", "block:draw_sources", "cycle.roll(-1)", "cycle", MEASURED),
    Mutant("rate: exchanged tokens instead of exchanged additions", "block:Block._with_exchanged", "before + (after - before)[sets.sources]", "after[sets.sources]", MEASURED),
    Mutant("rate: tokens of double precision projected in single precision", "block:Bases.of", "bases.movedim(0, 1).flatten(1).to(torch.promote_types(dtype, torch.float32))", "bases.movedim(0, 1).flatten(1).float()", MEASURED),
    Mutant("rate: a change of size alone that changes every rate", "head_samples:_controls", "{SIZE_ALONE: nothing}", "{SIZE_ALONE: resized}", MEASURED),
    Mutant("rate: padding counts", "tokens:tokens_of", "example.visible.any(dim=0).cpu() if example.windows == 1 else torch.ones(length, dtype=torch.bool)", "example.visible.any(dim=0).cpu() if False else torch.ones(length, dtype=torch.bool)", MEASURED),
    Mutant("rate: draws depend on the batch", "examples:make_examples.of_input", "first + index", "index", MEASURED),
    Mutant("rate: the map itself for its basis", "measurement:CodingRate._head_samples", "orthonormal_bases(weights)", "weights", MEASURED),
    Mutant("rate: values alone make a map tied", "subspaces:is_tied", "(other is not None and _proportional(other, values) for other in others)", "(other is not None and _proportional(other, values) for other in others[1:])", MEASURED),
    Mutant("rate: directions outside of the rank stay in the basis", "subspaces:orthonormal_bases", "bool(in_span.all())", "True", (*MEASURED, *SUBSPACES)),
    Mutant("rate: reflected bases lose directions outside the tokens", "subspaces:Reflections.project", "projected.expand", "(along.mT @ inside).expand", SUBSPACES),
    Mutant("rate: directions reflected in other draws too", "subspaces:Reflections.project", "along[index] * weight.unsqueeze(-1)", "along[index]", BLOCK),
    Mutant("rate: changes in reflected subspaces at another size", "block:Block.changes_in_reflected", "[1.0, 1.0, ratio, *[1.0] * raw]", "[1.0, 1.0, 1.0, *[1.0] * raw]", BLOCK),
    Mutant("rate: density without its square", "sparsity:density", "z.abs().sum(dim=-1)[nonzero].square()", "z.abs().sum(dim=-1)[nonzero]", SUBSPACES),
    Mutant("rate: curves before attention, not after it", "depth:rates_by_layer", "(before, unit), raw = (rates.unit[:2], rates.raw[1])", "(unit, before), raw = (rates.unit[:2], rates.raw[0])", CURVES),
    Mutant("rate: one random subspace for all heads", "depth:rates_by_layer", "heads * float(random.raw[1].mean())", "float(random.raw[1].mean())", CURVES),
    Mutant("rate: random maps at another size than the model's", "maps:RandomMaps.orthonormality_error", "size ** 2", "size", SUBSPACES),
    Mutant("rate: Z+ after the norm", "head_samples:HeadSamples.of", "tokens.total[None]", "tokens.between[None]", ABLATED),
    Mutant("rate: the norm of the sum for the norm alone", "head_samples:HeadSamples.of", "apply_norm(norm, tokens.before)", "apply_norm(norm, tokens.total)", ABLATED),
    Mutant("rate: subspaces drawn again for every input", "head_samples:FixedDraws.of", "(example.seed, example.layer, FIXED)", "(example.seed, example.layer, FIXED, example.number)", ABLATED),
    Mutant("rate: the same subspaces in every layer", "head_samples:FixedDraws.of", "(example.seed, example.layer, FIXED)", "(example.seed, FIXED)", ABLATED),
    Mutant("rate: supported without ablations", "measurement:CodingRate._head_samples", "not can_ablate(example)", "False", ABLATED),
    Mutant("rate: uniform attention to hidden keys too", "ablations:ablated_sums", "_mean_of_visible(v, mask)", "_mean_of_visible(v, None)", ABLATED),
    Mutant("rate: each head's own weights for another's", "ablations:_with_weights_of_next_head", "q.roll(-1, dims=0)", "q", ABLATED),
    Mutant("curves: the baseline's lines are lost", "record:DepthCurve.with_line", "(first, replace(_mean_line(lines), name=name), *rest)", "(first, replace(_mean_line(lines), name=name))", CURVES),
    Mutant("report: curves without their intervals", "charts:depth_chart", "_band(columns, [y(v.low) for v in line.intervals], [y(v.high) for v in line.intervals])", "''", ("tests/report/test_depth.py",)),
    Mutant("judging: the easiest control of a direction", "theory:Claim.closest", "min if self.direction is Direction.LOWER else max", "max if self.direction is Direction.LOWER else min", JUDGED),
    Mutant("judging: either side of the controls is supported", "judging:_verdict", "lower is (finding.claim.direction is Direction.LOWER)", "True", JUDGED),
    Mutant("judging: the baseline never decides", "baseline:with_baseline.compared", "finding.claim.theory in decisive", "False", JUDGED),
)  # fmt: skip

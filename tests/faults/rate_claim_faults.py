"""Planted bugs in the claims of the coding rate on heads."""

from fault import Fault

MEASURED = ("tests/theories/coding_rate/test_measurement.py",)
CURVES = ("tests/theories/coding_rate/test_depth.py",)
SUBSPACES = ("tests/theories/coding_rate/test_subspaces.py",)
ABLATED = ("tests/theories/coding_rate/test_ablations.py",)
JUDGED = ("tests/audit/test_one_sided.py",)
WHERE = "theories/coding_rate"

RATE_CLAIM_FAULTS = (
    Fault(
        "rate: the more compressing of two changes",
        f"{WHERE}/block.py",
        "COMPRESSION: np.maximum(unit, matched)",
        "COMPRESSION: np.minimum(unit, matched)",
        MEASURED,
    ),
    Fault(
        "rate: scale matched the wrong way round",
        f"{WHERE}/block.py",
        "factor = size(self._tokens) / size(tokens).clamp_min(SMALLEST)",
        "factor = size(tokens) / size(self._tokens).clamp_min(SMALLEST)",
        MEASURED,
    ),
    Fault(
        "rate: unit length in the subspace, not in the whole space",
        f"{WHERE}/block.py",
        "_gram(projected / _lengths(tokens))",
        "_gram(projected / torch.linalg.vector_norm(projected, dim=-1, keepdim=True))",
        MEASURED,
    ),
    Fault(
        "rate: additions stay with their tokens",
        f"{WHERE}/block.py",
        "source[cycle] = cycle.roll(-1)",
        "source[cycle] = cycle",
        MEASURED,
    ),
    Fault(
        "rate: exchanged tokens instead of exchanged additions",
        f"{WHERE}/block.py",
        "exchanged.append(before + (total - before)[source])",
        "exchanged.append(total[source])",
        MEASURED,
    ),
    Fault(
        "rate: padding counts",
        f"{WHERE}/tokens.py",
        "present = example.visible.any(dim=0).cpu() if example.windows == 1 else",
        "present = example.visible.any(dim=0).cpu() if False else",
        MEASURED,
    ),
    Fault(
        "rate: draws depend on the batch",
        "audit/examples.py",
        "entropy = (seed, heads.layer, first + index + 1)",
        "entropy = (seed, heads.layer, index + 1)",
        MEASURED,
    ),
    Fault(
        "rate: the map itself for its basis",
        f"{WHERE}/measurement.py",
        "measured, curves = prepared.measure(Block(tokens.before, bases, eps=self.eps))",
        "measured, curves = prepared.measure(Block(tokens.before, weights, eps=self.eps))",
        MEASURED,
    ),
    Fault(
        "rate: values alone make a map tied",
        f"{WHERE}/subspaces.py",
        "for other in others)",
        "for other in others[1:])",
        MEASURED,
    ),
    Fault(
        "rate: directions outside of the rank stay in the basis",
        f"{WHERE}/subspaces.py",
        "if bool(in_span.all()):",
        "if True:",
        (*MEASURED, *SUBSPACES),
    ),
    Fault(
        "rate: reflected bases lose directions outside the tokens",
        f"{WHERE}/subspaces.py",
        "@ inside + signs[..., -1:] * outside.unsqueeze(-3)",
        "@ inside",
        SUBSPACES,
    ),
    Fault(
        "rate: density without its square",
        f"{WHERE}/sparsity.py",
        "z.abs().sum(dim=-1)[nonzero].square() / squares[nonzero]",
        "z.abs().sum(dim=-1)[nonzero] / squares[nonzero]",
        SUBSPACES,
    ),
    Fault(
        "rate: curves before attention, not after it",
        f"{WHERE}/depth.py",
        "raw, unit = after.raw, after.unit",
        "raw, unit = before.raw, before.unit",
        CURVES,
    ),
    Fault(
        "rate: one random subspace for all heads",
        f"{WHERE}/depth.py",
        "len(raw) * float(random.raw.mean())",
        "float(random.raw.mean())",
        CURVES,
    ),
    Fault(
        "rate: random maps at another size than the model's",
        f"{WHERE}/maps.py",
        "np.sqrt(np.maximum(size**2 * self.squares - 2 * size",
        "np.sqrt(np.maximum(size * self.squares - 2 * size",
        SUBSPACES,
    ),
    Fault(
        "rate: Z+ after the norm",
        f"{WHERE}/head_samples.py",
        "{None: tokens.total[None]}",
        "{None: tokens.between[None]}",
        ABLATED,
    ),
    Fault(
        "rate: the norm of the sum for the norm alone",
        f"{WHERE}/head_samples.py",
        "apply_norm(norm, tokens.before)[None]",
        "apply_norm(norm, tokens.total)[None]",
        ABLATED,
    ),
    Fault(
        "rate: subspaces drawn again for every input",
        f"{WHERE}/head_samples.py",
        "entropy = (example.seed, example.layer, FIXED)",
        "entropy = (example.seed, example.layer, FIXED, example.number)",
        ABLATED,
    ),
    Fault(
        "rate: the same subspaces in every layer",
        f"{WHERE}/head_samples.py",
        "entropy = (example.seed, example.layer, FIXED)",
        "entropy = (example.seed, FIXED)",
        ABLATED,
    ),
    Fault(
        "rate: supported without ablations",
        f"{WHERE}/measurement.py",
        "if not can_ablate(example):",
        "if False:",
        ABLATED,
    ),
    Fault(
        "rate: uniform attention to hidden keys too",
        f"{WHERE}/ablations.py",
        "softmax_attention(torch.zeros_like(q), k, v, mask=mask)",
        "softmax_attention(torch.zeros_like(q), k, v)",
        ABLATED,
    ),
    Fault(
        "rate: each head's own weights for another's",
        f"{WHERE}/ablations.py",
        "q.roll(-1, dims=0),",
        "q,",
        ABLATED,
    ),
    Fault(
        "rate: ablations that differ by rounding",
        f"{WHERE}/ablations.py",
        "abs(control - value) <= machine_epsilon(dtype)",
        "abs(control - value) < 0",
        ABLATED,
    ),
    Fault(
        "curves: the baseline's lines are lost",
        "audit/record.py",
        "lines=(first, replace(_mean_line(lines), name=name), *rest)",
        "lines=(first, replace(_mean_line(lines), name=name))",
        CURVES,
    ),
    Fault(
        "report: curves without their intervals",
        "report/depth.py",
        "band=_band(columns, [y(v.low) for v in line.intervals], [y(v.high) for v in line.intervals])",
        'band=""',
        ("tests/report/test_depth.py",),
    ),
    Fault(
        "judging: the easiest control of a direction",
        "theories/theory.py",
        "return (min if self.direction is Direction.LOWER else max)(",
        "return (max if self.direction is Direction.LOWER else min)(",
        JUDGED,
    ),
    Fault(
        "judging: either side of the controls is supported",
        "audit/judging.py",
        "if lower is (finding.claim.direction is Direction.LOWER) else Verdict.CONTRADICTED",
        "if True else Verdict.CONTRADICTED",
        JUDGED,
    ),
    Fault(
        "judging: the baseline never decides",
        "audit/baseline.py",
        "judged = finding.claim.theory in decisive",
        "judged = False",
        JUDGED,
    ),
)

"""Planted bugs in coding rates."""

from tests.mutants.mutant import Mutant

LOGDET = ("tests/numerics/test_logdet.py",)
RATE = ("tests/numerics/test_coding_rate.py",)
LOSS = ("tests/modules/test_rate_reduction.py",)
SIGNS = ("lab/tests/experiments/crate/test_sign_table.py",)

MUTANTS = (
    Mutant("logdet: always the d x d side", "logdet:_solve", "x.shape[-2] < x.shape[-1]", "False", LOGDET),
    Mutant("logdet: inaccurate factorisations accepted", "logdet:_factorise", "LOST[dtype] * value", "1000000000.0", LOGDET),
    Mutant("logdet: error growth of small pivots left out", "logdet:_factorise", "ratios * ratios.cummax(dim=-1).values", "ratios", LOGDET),
    Mutant("logdet: half the gradient", "logdet:_LogDet.backward", "2 * gradient[..., None, None]", "gradient[..., None, None]", LOGDET),
    Mutant("logdet: autocast not disabled", "logdet:_LogDet.forward", "with torch.no_grad(), _in_full(x): ...", "with torch.no_grad(): ...", LOGDET),
    Mutant("logdet: wrong second derivatives not refused", "logdet:_LogDet.backward", "not ctx.by_factor", "False", LOGDET),
    Mutant("logdet: failed factorisation inverted", "logdet:_times_inverse", "not bool(factored.exact.all())", "False", LOGDET),
    Mutant("logdet: vmap over the wrong axis", "logdet:_LogDet.vmap", "x.movedim(in_dims[0], 0)", "x", LOGDET),
    Mutant("logdet: inaccurate factors of known products accepted", "logdet:log_det_by_gram", "bool(unsolved.any())", "False", LOGDET),
    Mutant("logdet: rounding error of a Gram matrix counted", "logdet:log_det_of_gram", "torch.where(values > least, values, 0)", "values.abs()", LOGDET),
    Mutant("rate: eps not squared", "coding_rate:_alpha", "eps ** 2", "eps", RATE),
    Mutant("rate: division by an empty class", "coding_rate:class_rates", "size > 0", "True", RATE),
    Mutant("rate: membership without square root", "coding_rate:_by_membership", "membership.to(torch.promote_types(z.dtype, torch.float32)).sqrt()", "membership.to(torch.promote_types(z.dtype, torch.float32))", RATE),
    Mutant("rate: autocast not disabled for projections", "coding_rate:_projected", "torch.autocast(z.device.type, enabled=False)", "torch.autocast(z.device.type, enabled=torch.is_autocast_enabled(z.device.type))", RATE),
    Mutant("rate: noise estimated for the wrong dtype", "coding_rate:subspace_rates", "z.dtype", "projected.dtype", RATE),
    Mutant("rate: twice the noise", "rate_noise:rounding_size", "0.2 * machine_epsilon(dtype)", "0.4 * machine_epsilon(dtype)", RATE),
    Mutant("rate: warning without noise", "rate_noise:warn_of_noise", "excess > NOTABLE", "True", RATE),
    Mutant("MCR2: gamma1 left out", "rate_reduction:RateReductionLoss.rates", "self.eps / math.sqrt(self.gamma1)", "self.eps", LOSS),
    Mutant("MCR2: features not normalised", "rate_reduction:RateReductionLoss.rates", "self.normalise", "False", LOSS),
    Mutant("change: a zero token becomes NaN", "change:unit_tokens", "length.masked_fill(is_zero, 1)", "length.masked_fill(is_zero, 0)", ("lab/tests/theorems/test_coding_rate_change.py",)),
    Mutant("change: scale ratio inverted", "change:scale_matched", "size_ratio(after, before)", "size_ratio(before, after)", ("lab/tests/theorems/test_coding_rate_change.py",)),
    Mutant("optimum: share of the class left out", "optimum:regularised_singular_values", "4 * penalty ** 2 * share", "4 * penalty ** 2", ("lab/tests/theorems/test_coding_rate_optimum.py",)),
    Mutant("optimum: constant not sharp", "optimum:rank_constant", "share / critical_ratio(share) ** 2", "1.03 * share / critical_ratio(share) ** 2", ("lab/tests/theorems/test_coding_rate_optimum.py",)),
    Mutant("steps: factor a left out of the first-order step", "steps:neumann_step", "rate * _a(z, bases, eps)", "rate", ("lab/tests/theorems/test_coding_rate_steps.py",)),
    Mutant("steps: hook does not normalise", "steps:hook_rate", "normalize(normed.unsqueeze(-3) @ bases, dim=-1)", "normed.unsqueeze(-3) @ bases", ("lab/tests/theorems/test_coding_rate_steps.py",)),
    Mutant("denoising: threshold too low", "denoising:denoised", "(v @ v.mT).softmax(dim=-1) > threshold", "(v @ v.mT).softmax(dim=-1) > 0.1", ("lab/tests/theorems/test_coding_rate_denoising.py",)),
    Mutant("signs: rounding error counted as a change", "sign_table:count_signs", "sign * value > UNCHANGED", "sign * value > 0", SIGNS),
)  # fmt: skip

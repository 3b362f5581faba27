"""Bugs that the tests must find in coding rates, each as the right text and the wrong one."""

from fault import Fault

LOGDET = ("tests/numerics/test_logdet.py",)
RATE = ("tests/numerics/test_coding_rate.py",)
STREAM = ("tests/numerics/test_rate_stream.py",)
LOSS = ("tests/modules/test_rate_reduction.py",)
HERE = "tests/theories/coding_rate"
SIGNS = ("tests/experiments/crate/test_sign_table.py",)

RATE_FAULTS = (
    Fault(
        "logdet: always the side of features",
        "numerics/logdet.py",
        "x.dtype, x.shape[-2] < x.shape[-1]",
        "x.dtype, False",
        LOGDET,
    ),
    Fault(
        "logdet: every factor is trusted", "numerics/logdet.py", "lost <= LOST[answer] * value)", "lost <= 1e9)", LOGDET
    ),
    Fault(
        "logdet: pivots that magnify are forgotten",
        "numerics/logdet.py",
        "(ratios * ratios.cummax(dim=-1).values).sum",
        "ratios.sum",
        LOGDET,
    ),
    Fault("logdet: half the gradient", "numerics/logdet.py", "along = 2 * gradient", "along = gradient", LOGDET),
    Fault(
        "logdet: products under autocast",
        "numerics/logdet.py",
        "        with torch.no_grad(), _in_full(x):\n            found",
        "        with torch.no_grad():\n            found",
        LOGDET,
    ),
    Fault(
        "logdet: second derivatives where there are none",
        "numerics/logdet.py",
        "if not ctx.by_factor:",
        "if False:",
        LOGDET,
    ),
    Fault(
        "logdet: a broken factor is inverted",
        "numerics/logdet.py",
        "if not bool(found.exact.all()):",
        "if False:",
        LOGDET,
    ),
    Fault("logdet: vmap over the wrong axis", "numerics/logdet.py", "x.movedim(in_dims[0], 0)", "x", LOGDET),
    Fault(
        "logdet: rounding of a Gram matrix counts",
        "numerics/logdet.py",
        "torch.where(values > least, values, 0).log1p()",
        "values.abs().log1p()",
        LOGDET,
    ),
    Fault(
        "rate: eps for its square",
        "numerics/coding_rate.py",
        "z.shape[-1] / (z.shape[-2] * eps**2)\n",
        "z.shape[-1] / (z.shape[-2] * eps)\n",
        RATE,
    ),
    Fault("rate: an empty class is divided by", "numerics/coding_rate.py", "if size > 0 else", "if True else", RATE),
    Fault(
        "rate: membership without its root",
        "numerics/coding_rate.py",
        "torch.float32)).sqrt()",
        "torch.float32))",
        RATE,
    ),
    Fault(
        "rate: projections under autocast",
        "numerics/coding_rate.py",
        "torch.autocast(z.device.type, enabled=False)",
        "torch.autocast(z.device.type, enabled=torch.is_autocast_enabled(z.device.type))",
        RATE,
    ),
    Fault(
        "rate: noise of the wrong precision",
        "numerics/coding_rate.py",
        "warn_of_noise(projected, dtype=z.dtype",
        "warn_of_noise(projected, dtype=projected.dtype",
        RATE,
    ),
    Fault("rate: twice the noise", "numerics/rate_noise.py", "0.2 * machine", "0.4 * machine", RATE),
    Fault(
        "rate: a warning where the signal is above the noise",
        "numerics/rate_noise.py",
        "if excess > WORTH_SAYING",
        "if True",
        RATE,
    ),
    Fault(
        "rate stream: counts are not merged",
        "numerics/rate_stream.py",
        "self.counts += other.counts.to(self.counts)",
        "pass",
        STREAM,
    ),
    Fault(
        "rate stream: counts are not reduced",
        "numerics/rate_stream.py",
        "torch.distributed.all_reduce(self.counts, group=group)",
        "pass",
        STREAM,
    ),
    Fault(
        "rate stream: alpha in single precision",
        "numerics/rate_stream.py",
        "counts.double().clamp_min(1)",
        "counts.clamp_min(1)",
        STREAM,
    ),
    Fault(
        "rate stream: hidden singular values are not told",
        "numerics/rate_stream.py",
        "if hidden > WORTH_SAYING",
        "if False",
        STREAM,
    ),
    Fault(
        "MCR2: gamma1 is not used", "modules/rate_reduction.py", "self.eps / math.sqrt(self.gamma1)", "self.eps", LOSS
    ),
    Fault(
        "MCR2: features are never normalised",
        "modules/rate_reduction.py",
        "if self.normalise else features",
        "if False else features",
        LOSS,
    ),
    Fault(
        "change: a zero token becomes NaN",
        "theories/coding_rate/change.py",
        "masked_fill(is_zero, 1)",
        "masked_fill(is_zero, 0)",
        (f"{HERE}/test_change.py",),
    ),
    Fault(
        "change: scale ratio inverted",
        "theories/coding_rate/change.py",
        "after * size_ratio(after, before)",
        "after * size_ratio(before, after)",
        (f"{HERE}/test_change.py",),
    ),
    Fault(
        "change: the raw change alone decides",
        "theories/coding_rate/change.py",
        "(self.unit_norm < 0) & (self.scale_matched < 0)",
        "self.raw < 0",
        (f"{HERE}/test_change.py",),
    ),
    Fault(
        "optimum: share of the class left out",
        "theories/coding_rate/optimum.py",
        "4 * penalty**2 * share",
        "4 * penalty**2",
        (f"{HERE}/test_optimum.py",),
    ),
    Fault(
        "optimum: a constant that is not sharp",
        "theories/coding_rate/optimum.py",
        "share / critical_ratio(share) ** 2",
        "1.03 * share / critical_ratio(share) ** 2",
        (f"{HERE}/test_optimum.py",),
    ),
    Fault(
        "principles: cosines without squares",
        "theories/coding_rate/principles.py",
        "cosine.square().mean()",
        "cosine.mean()",
        (f"{HERE}/test_principles.py",),
    ),
    Fault(
        "principles: labels not shuffled",
        "theories/coding_rate/principles.py",
        "labels[order]",
        "labels",
        (f"{HERE}/test_principles.py",),
    ),
    Fault(
        "steps: first order without a",
        "theories/coding_rate/steps.py",
        "rate * _a(z, bases, eps) * linear",
        "rate * linear",
        (f"{HERE}/test_steps.py",),
    ),
    Fault(
        "steps: hook does not normalise",
        "theories/coding_rate/steps.py",
        "normalize(normed.unsqueeze(-3) @ bases, dim=-1)",
        "(normed.unsqueeze(-3) @ bases)",
        (f"{HERE}/test_steps.py",),
    ),
    Fault(
        "denoising: threshold too low",
        "theories/coding_rate/denoising.py",
        "weights > self.threshold",
        "weights > 0.1",
        (f"{HERE}/test_denoising.py",),
    ),
    Fault(
        "signs: rounding counts",
        "experiments/crate/sign_table.py",
        "sign * value > UNCHANGED for",
        "sign * value > 0 for",
        SIGNS,
    ),
)

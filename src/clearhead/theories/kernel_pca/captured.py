r"""The claim that a head's values span the principal axes of its keys, measured by the variance they capture.

With the source's symbols: k(x, y) = exp(s x.y), g(x) = sum_j k(x, k_j), phi(x) = phi0(x) / g(x), and the axes of a head
with values V are u_d = sum_j g(k_j) v_dj phi(k_j) (any V defines such axes; the theorem says which). Measured is

    EV(V) = tr[(W^T K W)^+ W^T K H K W] / (sum of the e largest eigenvalues of H K H),    W = G^-1 V,

K the Gram matrix of phi on the keys and H the centring: the share of the keys' centred variance that lies in the span
of the axes, over the most that e axes can hold. It does not change when V is rescaled, rotated or mixed, as the output
projection may do, and it is 1 iff the span is the principal subspace.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from clearhead.axes import Bool, Float
from clearhead.findings import Chance, Claim, Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array, Interval, RunningMoments
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import captured_fraction, centred, features_from_log_kernel, orthonormal_basis
from clearhead.numerics.threads import one_thread

__all__ = ["CLAIM", "CapturedVariance", "captured_variance"]

CLAIM = Claim(
    theory="kernel PCA",
    statistic="captured variance",
    statement="the head's values span the principal axes of its keys in feature space",
    formula="EV(V) = tr[(WᵀKW)⁺ WᵀK H KW] / Σ_{d≤D_v} Nλ_d,  W = G⁻¹V",
    citation="Teo and Nguyen 2024 (arXiv 2406.13762), theorem 1; disputed by Saritas and Yildiz (arXiv 2505.07908)",
    exact=1.0,
)

CONTROL = "random values"
RESOLUTION = 1e-18
"""Smaller shares are rounding noise and count as zero (docs/log.md: compared with 120 digits on trained heads)."""


def captured_variance(
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*#b m e"],
    *,
    scale: float,
    sinks: Float[Tensor, "*b"] | None = None,
) -> Float[Tensor, "*b"]:
    """EV(V) of the module's docstring, for keys that all can be seen; computed in float64 whatever comes in.

    g spreads over many orders of magnitude between the tokens of one input, so every vector is kept as a direction with
    the logarithm of its length; only ratios within one sum are ever taken. A sink adds to g as a key without a value.
    NaN where the keys have no variance: a single one, or all equal.
    """
    k, v = k.double(), v.double()
    axes, rows = _axes_and_rows(k, scale, sinks)
    return _resolved(captured_fraction(rows, orthonormal_basis(axes.mT @ v)))


def _resolved(share: Tensor) -> Tensor:
    return torch.where(share < RESOLUTION, 0, share)


def _axes_and_rows(k: Tensor, scale: float, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """phi0(k_j), up to a common factor, and the centred phi(k_j), up to another: neither changes a span or a ratio."""
    log_kernel = scale * k @ k.mT
    log_g = torch.logsumexp(log_kernel, dim=-1)
    if sinks is not None:
        log_g = torch.logaddexp(log_g, sinks.double().unsqueeze(-1))
    features = features_from_log_kernel(log_kernel)
    axes = _scaled(features.direction, features.log_norm)
    rows = _scaled(features.direction, features.log_norm - log_g)
    return axes, _without_rounding(centred(rows), rows)


def _without_rounding(centred_rows: Tensor, rows: Tensor) -> Tensor:
    """Zero where the variance is no more than what rounding makes of equal keys: there is none to capture."""
    least = 8 * rows.shape[-2] ** 2 * machine_epsilon(rows.dtype)
    energy, total = (x.square().sum(dim=(-2, -1), keepdim=True) for x in (centred_rows, rows))
    return torch.where(energy > least * total, centred_rows, 0)


def _scaled(direction: Tensor, log_norm: Tensor) -> Tensor:
    return direction * (log_norm - log_norm.amax(dim=-1, keepdim=True)).exp().unsqueeze(-1)


@dataclass(slots=True)
class _Layer:
    """Sums over the inputs seen at one layer."""

    name: str
    heads: int
    draws: int
    value: RunningMoments = field(init=False)
    chance: RunningMoments = field(init=False)
    difference: RunningMoments = field(init=False)
    inputs: int = 0
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value = RunningMoments((self.heads,))
        self.chance = RunningMoments((self.draws, self.heads))
        self.difference = RunningMoments((self.heads,))

    def add(self, value: Array, chance: Array) -> None:
        self.value.add(value)
        self.chance.add(chance)
        self.difference.add(value - chance.mean(axis=0))

    def skip(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


class CapturedVariance:
    """The measurement of `captured_variance` on a stream of calls, beside random values on the same keys.

    Each input counts once; windows of one input are averaged. Where a mask shows queries different keys (causal masks),
    the keys of the query that sees most are taken: the theorem holds for that query alone.
    """

    def __init__(self, seed: int, *, draws: int = 20) -> None:
        self._seed = seed
        self._draws = draws
        self._layers: dict[int, _Layer] = {}

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        layer = self._layers.setdefault(heads.layer, _Layer(name=heads.name, heads=heads.q.shape[1], draws=self._draws))
        for first in range(0, heads.q.shape[0], heads.windows):
            layer.inputs += 1
            samples = []
            for index in range(first, first + heads.windows):
                seen = _key_set(heads, index)
                obstacle = _obstacle(heads, index, seen)
                if obstacle:
                    layer.skip(obstacle)
                else:
                    with one_thread():
                        samples.append(self._measure(heads, index, seen, place=(layer.inputs, index - first)))
            if samples:
                value, chance = (np.mean(part, axis=0) for part in zip(*samples, strict=True))
                layer.add(value, chance)
                if np.isnan(value).any():
                    layer.skip("keys without variance")

    def _measure(self, heads: Heads, index: int, seen: Tensor, *, place: tuple[int, int]) -> tuple[Array, Array]:
        """Value per head, and chance per draw and head, for one entry of the batch.

        `place` is the input's number and the window's: draws depend on them, not on how inputs were batched.
        """
        entropy = np.random.SeedSequence([self._seed, heads.layer, *place])
        generator = torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))
        if seen.shape[0] == 1:
            return self._measure_keys(heads, index, slice(None), seen[0], generator)
        parts = [self._measure_keys(heads, index, slice(h, h + 1), seen[h], generator) for h in range(seen.shape[0])]
        values, chances = zip(*parts, strict=True)
        return np.concatenate(values), np.concatenate(chances, axis=-1)

    def _measure_keys(
        self, heads: Heads, index: int, part: slice, seen: Tensor, generator: torch.Generator
    ) -> tuple[Array, Array]:
        # Query heads that share their keys and values share the number: it is computed once and repeated.
        step = heads.groups if part == slice(None) else 1
        k = heads.k[index, part][::step, seen].double()
        v = heads.v[index, part][::step, seen].double()
        sinks = None if heads.sinks is None else heads.sinks[part][::step]
        axes, rows = _axes_and_rows(k, heads.scale, sinks)
        m, e = v.shape[-2:]
        drawn = torch.randn(m, self._draws * e, generator=generator, dtype=torch.float64).to(k.device)
        spans = torch.cat([axes.mT @ v, axes.mT @ drawn], dim=-1).reshape(*axes.shape[:-1], self._draws + 1, e)
        shares = _resolved(captured_fraction(rows, orthonormal_basis(spans.movedim(-2, 0).contiguous())))
        repeated: Array = shares.repeat_interleave(step, dim=-1).cpu().numpy()
        return repeated[0], repeated[1:]

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""
        return [self._finding(place, h) for place in sorted(self._layers) for h in range(self._layers[place].heads)]

    def _finding(self, place: int, h: int) -> Finding:
        layer = self._layers[place]
        used = int(layer.value.count[h])
        low, high = layer.value.interval()
        drawn = layer.chance.mean[:, h] if used else np.full(self._draws, np.nan)
        bounds = np.quantile(drawn, [0.025, 0.975])
        return Finding(
            claim=CLAIM,
            layer=place,
            name=layer.name,
            head=h,
            value=float(layer.value.mean[h]) if used else float("nan"),
            interval=Interval(float(low[h]), float(high[h])),
            chance=Chance(
                value=float(drawn.mean()),
                range=Interval(float(bounds[0]), float(bounds[1])),
                control=CONTROL,
                draws=self._draws,
                seed=self._seed,
            ),
            p_value=float(layer.difference.p_value()[h]),
            inputs=used,
            skipped=layer.inputs - used,
            reason="; ".join(layer.reasons) if layer.inputs > used else "",
        )


def _obstacle(heads: Heads, index: int, seen: Tensor) -> str:
    """Why the claim says nothing of this entry of the batch, if so."""
    if heads.bias is not None:
        return "a bias on the scores depends on positions, so they are no kernel of the keys"
    if heads.softcap is not None:
        return "capped scores are no exponential kernel"
    width = heads.v.shape[-1]
    if int(seen.sum(dim=-1).min()) <= width:
        return f"at most {width} tokens, whose variance any {width} axes hold"
    if not bool(torch.isfinite(heads.k[index]).all() & torch.isfinite(heads.v[index]).all()):
        return "keys or values are not finite"
    return ""


def _key_set(heads: Heads, index: int) -> Bool[Tensor, "h m"]:
    """The keys seen by the query that sees most, the last of those if several do; one row if all heads share it."""
    if heads.mask is None:
        return torch.ones(1, heads.k.shape[-2], dtype=torch.bool, device=heads.k.device)
    mask = heads.mask[index if heads.mask.shape[0] > 1 else 0].expand(-1, -1, heads.k.shape[-2])
    widest = mask.shape[1] - 1 - mask.sum(dim=-1).flip(-1).argmax(dim=-1)
    return mask[torch.arange(mask.shape[0], device=mask.device), widest]

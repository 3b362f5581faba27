r"""The claim that a head's values span the principal axes of its keys, measured by the variance they capture.

With the source's symbols: k(x, y) = exp(s x.y), g(x) = sum_j k(x, k_j), phi(x) = phi0(x) / g(x), and the axes of a head
with values V are u_d = sum_j g(k_j) v_dj phi(k_j) (any V defines such axes; the theorem says which). Measured is

    EV(V) = tr[(W^T K W)^+ W^T K H K W] / (sum of the e largest eigenvalues of H K H),    W = G^-1 V,

K the Gram matrix of phi on the keys and H the centring: the share of the keys' centred variance that lies in the span
of the axes, over the most that e axes can hold. It does not change when V is rescaled, rotated or mixed, as the output
projection may do, and it is 1 iff the span is the principal subspace.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.axes import Bool, Float
from clearhead.findings import Claim, Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import captured_fraction, centred, features_from_log_kernel, orthonormal_basis
from clearhead.theories.over_inputs import OverInputs, Sample, sample_by_head

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
EMPTY = 100.0
"""How far below the shortest key a coordinate of no key is put, in logarithms: behind all that have any."""


def captured_variance(
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*#b m e"],
    *,
    scale: float,
    sinks: Float[Tensor, "*b"] | None = None,
) -> Float[Tensor, "*b"]:
    """EV(V) of the module's docstring, for keys that all can be seen; computed in float64 whatever comes in.

    g spreads over many orders of magnitude between the tokens of one input, so every vector is kept as a direction with
    the logarithm of its length; only ratios within one sum are ever taken, and coordinates come largest first. A sink
    adds to g as a key without a value.
    NaN where the keys have no variance: a single one, or all equal.
    """
    k, v = k.double(), v.double()
    space = _feature_space(k, scale, sinks)
    return captured_fraction(space.rows, orthonormal_basis(space.axes @ v, space.log_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FeatureSpace:
    """Keys in coordinates of their feature space, the largest coordinate of the axes first.

    The axes of values V are diag(exp(log_size)) @ axes @ V, up to a factor; `rows` are the centred phi(k_j), up to
    another. Neither factor changes a span or a ratio.
    """

    axes: Float[Tensor, "*b r m"]
    log_size: Float[Tensor, "*b r"]
    rows: Float[Tensor, "*b m r"]


def _feature_space(k: Tensor, scale: float, sinks: Tensor | None) -> _FeatureSpace:
    """With the longest key first, coordinate r of the axes holds the keys from r on: it is no larger than key r is."""
    longest_first = k.square().sum(dim=-1).argsort(dim=-1, descending=True, stable=True)
    k = k.gather(-2, longest_first.unsqueeze(-1).expand_as(k))
    log_kernel = scale * k @ k.mT
    log_g = torch.logsumexp(log_kernel, dim=-1)
    if sinks is not None:
        log_g = torch.logaddexp(log_g, sinks.double().unsqueeze(-1))
    features = features_from_log_kernel(log_kernel)
    rows = _scaled(features.direction, features.log_norm - log_g)
    shorter = (features.log_norm.unsqueeze(-2) - features.log_norm.unsqueeze(-1)).clamp_max(0)
    axes = features.direction.mT * shorter.exp()
    size = axes.norm(dim=-1)
    empty = size == 0
    size = torch.where(empty, 1, size)
    log_size = torch.where(empty, features.log_norm.amin(dim=-1, keepdim=True) - EMPTY, features.log_norm + size.log())
    log_size, order = log_size.sort(dim=-1, descending=True, stable=True)
    axes = (axes / size.unsqueeze(-1)).gather(-2, order.unsqueeze(-1).expand_as(axes))
    as_given = longest_first.argsort(dim=-1)
    return _FeatureSpace(
        axes=axes.gather(-1, as_given.unsqueeze(-2).expand_as(axes)),
        log_size=log_size,
        rows=_without_rounding(centred(rows), rows).gather(-1, order.unsqueeze(-2).expand_as(rows)),
    )


def _without_rounding(centred_rows: Tensor, rows: Tensor) -> Tensor:
    """Zero where the variance is no more than what rounding makes of equal keys: there is none to capture."""
    least = 8 * rows.shape[-2] ** 2 * machine_epsilon(rows.dtype)
    energy, total = (x.square().sum(dim=(-2, -1), keepdim=True) for x in (centred_rows, rows))
    return torch.where(energy > least * total, centred_rows, 0)


def _scaled(direction: Tensor, log_norm: Tensor) -> Tensor:
    return direction * (log_norm - log_norm.amax(dim=-1, keepdim=True)).exp().unsqueeze(-1)


class CapturedVariance:
    """The measurement of `captured_variance` on a stream of calls, beside random values on the same keys.

    Where a mask shows queries different keys (causal masks), the keys of the query that sees most are taken: the
    theorem holds for that query alone.
    """

    def __init__(self, seed: int, *, draws: int = 20) -> None:
        self._draws = draws
        self._over_inputs = OverInputs(
            claim=CLAIM,
            control=CONTROL,
            draws=draws,
            seed=seed,
            obstacle=_obstacle,
            sample=self._sample,
            undefined="keys without variance",
        )

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        self._over_inputs.observe(heads)

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""
        return self._over_inputs.findings()

    def _sample(self, heads: Heads, index: int, generator: torch.Generator) -> Sample:
        return sample_by_head(
            _key_set(heads, index), lambda part, seen: self._measure_keys(heads, index, part, seen, generator)
        )

    def _measure_keys(self, heads: Heads, index: int, part: slice, seen: Tensor, generator: torch.Generator) -> Sample:
        # Query heads that share their keys and values share the number: it is computed once and repeated.
        step = heads.groups if part == slice(None) else 1
        k = heads.k[index, part][::step, seen].double()
        v = heads.v[index, part][::step, seen].double()
        sinks = None if heads.sinks is None else heads.sinks[part][::step]
        space = _feature_space(k, heads.scale, sinks)
        m, e = v.shape[-2:]
        drawn = torch.randn(m, self._draws * e, generator=generator, dtype=torch.float64).to(k.device)
        spans = torch.cat([space.axes @ v, space.axes @ drawn], dim=-1).reshape(
            *space.log_size.shape, self._draws + 1, e
        )
        shares = captured_fraction(space.rows, orthonormal_basis(spans.movedim(-2, 0).contiguous(), space.log_size))
        repeated: Array = shares.repeat_interleave(step, dim=-1).cpu().numpy()
        return Sample(value=repeated[0], chance=repeated[1:])


def _obstacle(heads: Heads, index: int) -> str:
    """Why the claim says nothing of this entry of the batch, if so."""
    if heads.bias is not None:
        return "a bias on the scores depends on positions, so they are no kernel of the keys"
    if heads.softcap is not None:
        return "capped scores are no exponential kernel"
    width = heads.v.shape[-1]
    if int(_key_set(heads, index).sum(dim=-1).min()) <= width:
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

"""The provable part of the theory, checked on drawn keys and queries; each row has a control that must fail.

The other side of every equation goes by another route: explicit coordinates in feature space, from a factor of the
kernel on keys and queries together, in which projections are plain inner products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.axes import Float
from clearhead.findings import Theorem
from clearhead.operators.softmax import softmax_attention, softmax_attention_slow
from clearhead.theories.kernel_pca.captured import captured_variance

__all__ = ["theorem_values", "theorems"]

PAPER = "Teo and Nguyen 2024"
KEYS, QUERIES, WIDTH, AXES = 23, 19, 7, 5


def theorem_values(k: Float[Tensor, "*b m d"], *, scale: float, axes: int) -> Float[Tensor, "*b m e"]:
    r"""The values under which attention projects on the first unit principal axes of its keys (theorem 1).

    .. math:: v_{dj} = \frac{a_{dj} - \bar a_d}{g(k_j)}, \qquad \tilde K a_d = N\lambda_d\, a_d, \quad
        \lVert a_d \rVert^2 = \frac{1}{N \lambda_d}

    Axes without variance, beyond the rank of the centred Gram matrix, are zero.
    """
    log_kernel = scale * k @ k.mT
    log_g = torch.logsumexp(log_kernel, dim=-1)
    gram = (log_kernel - log_g.unsqueeze(-1) - log_g.unsqueeze(-2)).exp()
    energy, vectors = torch.linalg.eigh(_centred_twice(gram))
    energy, vectors = energy.flip(-1)[..., :axes], vectors.flip(-1)[..., :axes]
    kept = energy > k.shape[-2] * torch.finfo(k.dtype).eps * energy[..., :1]
    a = vectors * torch.where(kept, energy.clamp_min(torch.finfo(k.dtype).tiny).rsqrt(), 0).unsqueeze(-2)
    values: Tensor = (a - a.mean(dim=-2, keepdim=True)) * (-log_g).exp().unsqueeze(-1)
    return values


def _centred_twice(gram: Tensor) -> Tensor:
    rows = gram - gram.mean(dim=-2, keepdim=True)
    both = rows - rows.mean(dim=-1, keepdim=True)
    return (both + both.mT) / 2


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Keys and queries with their coordinates in feature space, phi0 scaled by 1/g to phi."""

    k: Tensor
    q: Tensor
    v: Tensor
    scale: float
    phi_k: Tensor
    phi_q: Tensor
    g_k: Tensor

    @classmethod
    def of(cls, dtype: torch.dtype) -> "_Drawn":
        generator = torch.Generator().manual_seed(20240613)
        k, q = (torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for n in (KEYS, QUERIES))
        v = torch.randn(KEYS, AXES, generator=generator, dtype=torch.float64)
        scale = WIDTH**-0.5
        points = torch.cat([k, q])
        energy, vectors = torch.linalg.eigh((scale * points @ points.T).exp())
        phi0 = vectors * energy.clamp_min(0).sqrt()
        g = (scale * points @ k.T).exp().sum(dim=-1)
        phi = phi0 / g[:, None]
        k, q, v, phi_k, phi_q, g_k = (x.to(dtype) for x in (k, q, v, phi[:KEYS], phi[KEYS:], g[:KEYS]))
        return cls(k=k, q=q, v=v, scale=scale, phi_k=phi_k, phi_q=phi_q, g_k=g_k)

    def projections(self) -> Tensor:
        """<phi(q), u_d> on the unit principal axes of the centred phi(k_j), by singular vectors."""
        _, _, right = torch.linalg.svd((self.phi_k - self.phi_k.mean(dim=0)).double(), full_matrices=False)
        projected: Tensor = self.phi_q.double() @ right[:AXES].T
        return projected.to(self.q.dtype)


def theorems() -> Sequence[Theorem]:
    """Every statement of this theory that is checked, with its residual now."""
    double, single = _Drawn.of(torch.float64), _Drawn.of(torch.float32)
    return [
        _row(f"K{number}", statement, residual, control_name, control, double, single, where)
        for number, (statement, residual, control_name, control, where) in enumerate(_STATEMENTS, start=1)
    ]


def _row(
    identifier: str,
    statement: str,
    residual: Callable[[_Drawn], float],
    control_name: str,
    control: Callable[[_Drawn], float],
    double: _Drawn,
    single: _Drawn,
    where: str,
) -> Theorem:
    return Theorem(
        source="kernel PCA",
        id=identifier,
        statement=statement,
        residual=residual(double),
        residual_single=residual(single),
        tolerance=1e-12,
        tolerance_single=1e-5,
        control=control_name,
        control_residual=control(double),
        citation=f"{PAPER}, {where}",
    )


def _apart(found: Tensor, expected: Tensor, *, signs: bool = False) -> float:
    """Largest difference relative to the largest entry; columns up to their sign where the sign is free."""
    if signs:
        found = found * torch.sign((found * expected).sum(dim=-2, keepdim=True))
    return float((found - expected).abs().max() / expected.abs().max())


def _attend(d: _Drawn, v: Tensor) -> Tensor:
    return softmax_attention(d.q, d.k, v, scale=d.scale)


def _theorem_1(d: _Drawn) -> float:
    return _apart(_attend(d, theorem_values(d.k, scale=d.scale, axes=AXES)), d.projections(), signs=True)


def _wrong_index(d: _Drawn) -> float:
    """The variant of the formula with g of the summed index: (1/N) sum_j' a_dj' / g(k_j') is subtracted instead."""
    scaled_a = theorem_values(d.k, scale=d.scale, axes=AXES)
    return _apart(_attend(d, scaled_a - scaled_a.mean(dim=0)), d.projections(), signs=True)


def _any_values(d: _Drawn) -> float:
    return _apart(_attend(d, d.v), d.phi_q @ (d.phi_k.T @ (d.g_k[:, None] * d.v)))


def _any_values_unscaled(d: _Drawn) -> float:
    return _apart(_attend(d, d.v), d.phi_q @ (d.phi_k.T @ d.v))


def _zero_mean(d: _Drawn) -> float:
    a = d.g_k[:, None] * theorem_values(d.k, scale=d.scale, axes=AXES)
    return float(a.sum(dim=0).abs().max() / a.abs().sum(dim=0).max())


def _uncentred_mean(d: _Drawn) -> float:
    _, vectors = torch.linalg.eigh(d.phi_k @ d.phi_k.T)
    a = vectors.flip(-1)[:, :AXES]
    return float(a.sum(dim=0).abs().max() / a.abs().sum(dim=0).max())


def _captures_all(d: _Drawn) -> float:
    return float(1 - captured_variance(d.k, theorem_values(d.k, scale=d.scale, axes=AXES), scale=d.scale))


def _random_captures(d: _Drawn) -> float:
    return float(1 - captured_variance(d.k, d.v, scale=d.scale))


def _mix_invariant(d: _Drawn) -> float:
    mix = torch.randn(AXES, AXES, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(d.v.dtype)
    mixed, plain = (captured_variance(d.k, v, scale=d.scale) for v in (d.v @ mix, d.v))
    return float((mixed - plain).abs() / plain)


def _other_values(d: _Drawn) -> float:
    other, plain = (captured_variance(d.k, v, scale=d.scale) for v in (d.v.roll(1, dims=0), d.v))
    return float((other - plain).abs() / plain)


def _trace_excess(gram: Tensor, d: _Drawn) -> float:
    bound = (-d.scale * d.k.square().sum(dim=-1)).exp().sum()
    return float(((gram.trace() - bound) / bound).clamp_min(0))


def _trace_bound(d: _Drawn) -> float:
    return _trace_excess(_centred_twice(d.phi_k @ d.phi_k.T), d)


def _trace_unnormalised(d: _Drawn) -> float:
    return _trace_excess((d.scale * d.k @ d.k.T).exp(), d)


def _twin(d: _Drawn) -> float:
    return _apart(_attend(d, d.v), softmax_attention_slow(d.q, d.k, d.v, scale=d.scale))


def _unscaled(d: _Drawn) -> float:
    return _apart(softmax_attention(d.q, d.k, d.v, scale=1.0), softmax_attention_slow(d.q, d.k, d.v, scale=d.scale))


_STATEMENTS: tuple[tuple[str, Callable[[_Drawn], float], str, Callable[[_Drawn], float], str], ...] = (
    ("softmax attention is the kernel average of the values", _twin,
     "scale left out", _unscaled, "setting of theorem 1"),
    ("with the theorem's values, attention projects on the keys' principal axes", _theorem_1,
     "g taken at the summed index", _wrong_index, "theorem 1"),
    ("with any values, attention projects on some axes", _any_values,
     "keys not weighted by g", _any_values_unscaled, "theorem 1, for values of any kind"),
    ("eigenvectors of the centred Gram matrix sum to zero", _zero_mean,
     "Gram matrix left uncentred", _uncentred_mean, "remark 1"),
    ("the theorem's values capture all that so many axes can", _captures_all,
     "random values", _random_captures, "theorem 1"),
    ("captured variance does not change when values are mixed", _mix_invariant,
     "values moved to other tokens", _other_values, "theorem 1"),
    ("the centred Gram matrix has trace at most the sum of exp(-s |k|^2)", _trace_bound,
     "kernel not divided by g", _trace_unnormalised, "remark 1 (bound derived here)"),
)  # fmt: skip

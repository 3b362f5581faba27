"""What every checked statement of the theory shares: drawn keys and queries, and their coordinates in feature space.

The other side of every equation goes by another route than the operators: explicit coordinates, from a factor of the
kernel on keys and queries together, in which projections are plain inner products.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.findings import Theorem
from clearhead.operators.kernel_pca import KernelPCA, kernel_pca
from clearhead.operators.softmax import softmax_attention

__all__ = ["AXES", "KEYS", "PAPER", "Drawn", "Statement", "apart", "attend", "centred_gram", "checked"]

PAPER = "Teo and Nguyen 2024"
KEYS, QUERIES, WIDTH, AXES = 23, 19, 7, 5


@dataclass(frozen=True, slots=True)
class Drawn:
    """Keys, queries and values with the coordinates of phi(k_j) and phi(q_i) in feature space."""

    k: Tensor
    q: Tensor
    v: Tensor
    scale: float
    phi_k: Tensor
    phi_q: Tensor
    g_k: Tensor

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Drawn":
        """Drawn in double precision and then rounded, so that both precisions see the same numbers."""
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

    @property
    def centred_phi(self) -> Tensor:
        """phi(k_j) less the mean over keys."""
        return self.phi_k - self.phi_k.mean(dim=0)

    def axes(self) -> Tensor:
        """The first unit principal axes of the centred phi(k_j), as columns, by singular vectors."""
        _, _, right = torch.linalg.svd(self.centred_phi.double(), full_matrices=False)
        axes: Tensor = right[:AXES].T.to(self.q.dtype)
        return axes

    def found(self) -> KernelPCA:
        """What the operator finds."""
        return kernel_pca(self.k, axes=AXES, scale=self.scale)

    def theorem_values(self) -> Tensor:
        """The theorem's values, by the operator."""
        return self.found().values.to(self.k.dtype)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in words; its residual and its control, each on drawn numbers; where it is said."""

    id: str
    statement: str
    residual: Callable[[Drawn], float]
    control: str
    control_residual: Callable[[Drawn], float]
    where: str
    tolerance: float = 1e-12
    needs: Callable[[], str] = lambda: ""
    """Says what would have to be installed to check it, if anything."""


def checked(statements: Sequence[Statement]) -> list[Theorem]:
    """Measure every statement in both precisions, and its control in double."""
    double, single = Drawn.of(torch.float64), Drawn.of(torch.float32)
    return [_checked(statement, double, single) for statement in statements]


def _checked(statement: Statement, double: Drawn, single: Drawn) -> Theorem:
    missing = statement.needs()
    return Theorem(
        source="kernel PCA",
        id=statement.id,
        statement=statement.statement,
        residual=math.nan if missing else statement.residual(double),
        residual_single=math.nan if missing else statement.residual(single),
        tolerance=statement.tolerance,
        tolerance_single=1e-5,
        control=statement.control,
        control_residual=math.nan if missing else statement.control_residual(double),
        citation=f"{PAPER}, {statement.where}",
        missing=missing,
    )


def apart(found: Tensor, expected: Tensor, *, signs: bool = False) -> float:
    """Largest difference relative to the largest entry; columns up to their sign where the sign is free."""
    if signs:
        found = found * torch.sign((found * expected).sum(dim=-2, keepdim=True))
    return float((found - expected).abs().max() / expected.abs().max())


def attend(d: Drawn, v: Tensor) -> Tensor:
    """Softmax attention of the drawn queries over values of the drawn keys."""
    return softmax_attention(d.q, d.k, v, scale=d.scale)


def centred_gram(d: Drawn) -> Tensor:
    """Inner products of the centred phi(k_j)."""
    return d.centred_phi @ d.centred_phi.T

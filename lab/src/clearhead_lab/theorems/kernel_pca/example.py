r"""The random keys and queries on which the theorems of kernel PCA are checked, and their coordinates in feature space.

Symbols of Teo and Nguyen 2024: the kernel is k(x, y) = exp(s x·y), g(x) = sum_j k(x, k_j) is the normaliser of
softmax, and phi(x) = phi_0(x) / g(x) with <phi_0(x), phi_0(y)> = k(x, y).

Each check compares an operator with explicit coordinates of phi, in which projections are plain inner products. The
coordinates come from the eigendecomposition of the kernel on keys and queries together, which no operator uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from clearhead.operators.kernel_pca import KernelPCA, kernel_pca
from clearhead.operators.softmax import softmax_attention
from clearhead_lab.theorems.theorem import Theorem

PAPER = "Teo and Nguyen 2024"
KEYS, QUERIES, WIDTH, AXES = 23, 19, 7, 5


@dataclass(frozen=True, slots=True)
class Example:
    """Keys, queries and values, the coordinates of phi(k_j) and phi(q_i), and g(k_j)."""

    k: Tensor
    q: Tensor
    v: Tensor
    scale: float
    phi_k: Tensor
    phi_q: Tensor
    g_k: Tensor

    @property
    def centred_phi(self) -> Tensor:
        """phi(k_j) minus its mean over the keys."""
        return self.phi_k - self.phi_k.mean(dim=0)

    def principal_axes(self) -> Tensor:
        """Return the first `AXES` unit principal axes of the centred phi(k_j) as columns, by an SVD."""
        _, _, right = torch.linalg.svd(self.centred_phi.double(), full_matrices=False)
        axes: Tensor = right[:AXES].T.to(self.q.dtype)
        return axes

    def kernel_pca(self) -> KernelPCA:
        """Return the result of the operator `kernel_pca` on the keys."""
        return kernel_pca(self.k, axes=AXES, scale=self.scale)

    def theorem_values(self) -> Tensor:
        """Return the values of theorem 1, computed by the operator."""
        return self.kernel_pca().values.to(self.k.dtype)


@cache
def _example(dtype: torch.dtype) -> Example:
    """Return the example rounded to the dtype; it is computed in float64, so that all dtypes use the same numbers."""
    generator = torch.Generator().manual_seed(20240613)
    k, q = (torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for n in (KEYS, QUERIES))
    v = torch.randn(KEYS, AXES, generator=generator, dtype=torch.float64)
    scale = WIDTH**-0.5
    points = torch.cat([k, q])
    eigenvalues, eigenvectors = torch.linalg.eigh((scale * points @ points.T).exp())
    phi_0 = eigenvectors * eigenvalues.clamp_min(0).sqrt()
    g = (scale * points @ k.T).exp().sum(dim=-1)
    phi = phi_0 / g[:, None]
    k, q, v, phi_k, phi_q, g_k = (x.to(dtype) for x in (k, q, v, phi[:KEYS], phi[KEYS:], g[:KEYS]))
    return Example(k=k, q=q, v=v, scale=scale, phi_k=phi_k, phi_q=phi_q, g_k=g_k)


def kernel_pca_theorem(
    id: str,
    statement: str,
    residual: Callable[[Example], float],
    control: str,
    control_residual: Callable[[Example], float],
    location: str,
    *,
    requires: str = "",
) -> Theorem:
    """Return a theorem whose residuals are measured on the example; `location` is its place in the paper."""
    return Theorem(
        id,
        statement,
        lambda dtype: residual(_example(dtype)),
        control,
        lambda dtype: control_residual(_example(dtype)),
        f"{PAPER}, {location}",
        requires=requires,
    )


def largest_relative_error(actual: Tensor, expected: Tensor, *, up_to_sign: bool = False) -> float:
    """Return max |actual - expected| / max |expected|; `up_to_sign` first gives each column the expected sign."""
    if up_to_sign:
        actual = actual * torch.sign((actual * expected).sum(dim=-2, keepdim=True))
    return float((actual - expected).abs().max() / expected.abs().max())


def attend(example: Example, v: Tensor) -> Tensor:
    """Return softmax attention of the example's queries over its keys with the given values."""
    return softmax_attention(example.q, example.k, v, scale=example.scale)


def centred_gram(example: Example) -> Tensor:
    """Return the Gram matrix of the centred phi(k_j)."""
    return example.centred_phi @ example.centred_phi.T

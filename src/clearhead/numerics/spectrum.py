r"""Gram matrices of positive kernels in log space, and their principal subspaces.

Feature vectors are never formed: a kernel exp(s_ij) enters by its logarithms s_ij, so that nothing overflows, and
every vector is carried as a unit direction with the logarithm of its length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.axes import Float
from clearhead.numerics.precision import machine_epsilon

__all__ = ["Features", "captured_fraction", "centred", "features_from_log_kernel", "orthonormal_basis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Coordinates of n vectors in a feature space: row i is exp(log_norm_i) * direction_i, with unit directions."""

    direction: Float[Tensor, "*b n r"]
    log_norm: Float[Tensor, "*b n"]


def features_from_log_kernel(log_kernel: Float[Tensor, "*b n n"]) -> Features:
    r"""Coordinates with which a positive semi-definite kernel is an inner product.

    .. math:: e^{s_{ij}} = \langle x_i, x_j \rangle,\quad
        x_i = e^{s_{ii}/2}\,\hat x_i,\quad \langle \hat x_i, \hat x_j \rangle = e^{s_{ij} - s_{ii}/2 - s_{jj}/2}

    The correlations on the right lie in (0, 1] whatever the size of s, and their Cholesky factor holds the directions.
    Equal vectors make them singular, so 4 n eps is added to the diagonal. Where that does not suffice, 4 n eps max|s|
    is: a logarithm of size |s| was rounded by eps |s|, and its exponential is wrong by as much.
    """
    n = log_kernel.shape[-1]
    log_norm = log_kernel.diagonal(dim1=-2, dim2=-1) / 2
    correlation = (log_kernel - log_norm.unsqueeze(-1) - log_norm.unsqueeze(-2)).exp()
    jitter = 4 * n * machine_epsilon(log_kernel.dtype) * torch.eye(n, dtype=log_kernel.dtype, device=log_kernel.device)
    factor, info = torch.linalg.cholesky_ex(correlation + jitter)
    failed = info != 0
    if bool(failed.any()):
        largest = log_kernel[failed].abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1)
        factor[failed], info[failed] = torch.linalg.cholesky_ex(correlation[failed] + largest * jitter)
    if bool((info != 0).any()):
        raise ValueError("the kernel is not positive semi-definite: its Cholesky factor does not exist")
    return Features(direction=factor, log_norm=log_norm)


def centred(rows: Float[Tensor, "*b n r"]) -> Float[Tensor, "*b n r"]:
    """The rows less their mean row."""
    return rows - rows.mean(dim=-2, keepdim=True)


def orthonormal_basis(columns: Float[Tensor, "*b r e"]) -> Float[Tensor, "*b r e"]:
    """Orthonormal columns that span the same space, whatever the columns' sizes; columns beyond the rank are zero.

    QR serves where the rank is full. Where the triangular factor shows a deficit, whose completion QR would invent, the
    singular vectors above max(r, e) * eps of the largest singular value are taken instead.
    """
    r, e = columns.shape[-2:]
    size = columns.abs().amax(dim=-2, keepdim=True)
    columns = columns / torch.where(size > 0, size, 1)
    basis: Tensor
    basis, triangular = torch.linalg.qr(columns)
    pivots = triangular.diagonal(dim1=-2, dim2=-1).abs()
    threshold = max(r, e) * machine_epsilon(columns.dtype)
    deficient = pivots.amin(dim=-1) <= threshold * pivots.amax(dim=-1)
    if bool(deficient.any()):
        left, singular, _ = torch.linalg.svd(columns[deficient], full_matrices=False)
        kept = singular > threshold * singular.amax(dim=-1, keepdim=True)
        basis[deficient] = left * kept.unsqueeze(-2)
    return pad(basis, (0, max(e - r, 0)))


def captured_fraction(rows: Float[Tensor, "*#b n r"], basis: Float[Tensor, "*#b r e"]) -> Float[Tensor, "*b"]:
    r"""How much of the rows' total square a subspace holds, over the most that e directions can hold.

    .. math:: \frac{\lVert X Q \rVert_F^2}{\sum_{d \le e} \sigma_d(X)^2}

    1 iff the orthonormal columns of Q span e leading right singular directions of X; NaN where X vanishes.
    """
    energy = torch.linalg.eigvalsh(rows @ rows.mT).flip(-1).clamp_min(0)
    most = energy[..., : basis.shape[-1]].sum(dim=-1)
    held = (rows @ basis).square().sum(dim=(-2, -1))
    return torch.where(most > 0, held / most, torch.nan)

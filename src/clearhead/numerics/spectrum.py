r"""Gram matrices of positive kernels in log space, and their principal subspaces.

Feature vectors are never formed: a kernel exp(s_ij) is given by its logarithms s_ij, so that nothing overflows, and
each vector is stored as a unit direction with the logarithm of its length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.errors import InputError
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float, Int, ShapeError, check_finite

INDEPENDENT = 1e-6
"""If less than this fraction of a row or column is independent of the others, pivots are used to keep digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Coordinates of n vectors in a feature space: row i is exp(log_norm_i) * direction_i, with unit directions.

    `pivots` lists for each coordinate its pivot vector: earlier pivots are zero there, so that the directions in this
    order are triangular. Unused coordinates are zero and come last.
    """

    direction: Float[Tensor, "*b n r"]
    log_norm: Float[Tensor, "*b n"]
    pivots: Int[Tensor, "*b r"]


def features_from_log_kernel(log_kernel: Float[Tensor, "*b n n"]) -> Features:
    r"""Return coordinates in which a positive semi-definite kernel is an inner product.

    .. math:: e^{s_{ij}} = \langle x_i, x_j \rangle,\quad
        x_i = e^{s_{ii}/2}\,\hat x_i,\quad \langle \hat x_i, \hat x_j \rangle = e^{s_{ij} - s_{ii}/2 - s_{jj}/2}

    The correlations on the right lie in (0, 1] whatever the size of s, and their Cholesky factor contains the
    directions. A logarithm of size |s| has a rounding error of eps |s|, and its exponential a relative error as large.
    So the part of a vector outside the span of those before it counts only if its square exceeds
    4 eps (n + max|s|). If not, as for equal vectors, the vector gets no coordinate of its own: long vectors would
    amplify a small one. Pivots come in the order of the vectors, unless there are such vectors: see `_singular_factor`.
    """
    n = log_kernel.shape[-1]
    if n == 0:
        raise ShapeError("expected at least one vector; got a kernel without entries")
    check_finite("logarithms of kernels", log_kernel)
    log_norm = log_kernel.diagonal(dim1=-2, dim2=-1) / 2
    correlation = (log_kernel - log_norm.unsqueeze(-1) - log_norm.unsqueeze(-2)).exp()
    least = 4 * machine_epsilon(log_kernel.dtype) * (n + log_kernel.abs().amax(dim=(-2, -1)))
    factor, info = torch.linalg.cholesky_ex(correlation)
    smallest_pivot = factor.diagonal(dim1=-2, dim2=-1).square().amin(dim=-1)
    singular = (info != 0) | ~(smallest_pivot > least)
    pivots = torch.arange(n, device=factor.device).expand(log_norm.shape).clone()
    if bool(singular.any()):
        factor[singular], pivots[singular] = _singular_factor(correlation[singular], least[singular])
    return Features(direction=factor, log_norm=log_norm, pivots=pivots)


def _singular_factor(matrix: Float[Tensor, "b n n"], least: Float[Tensor, "b"]) -> tuple[Tensor, Tensor]:
    """Return a factor F with F F^T = matrix to rounding, and the pivot row of each column.

    The pivot is the first row whose remainder is at least a quarter of the largest. A row with a remainder of at most
    `least` gets zeros in all further columns. Pivoting in the given order instead would let a small pivot leave errors
    of its root in later rows, which would then become pivots.
    """
    n = matrix.shape[-1]
    item = torch.arange(len(matrix), device=matrix.device)
    factor = torch.zeros_like(matrix)
    left = matrix.diagonal(dim1=-2, dim2=-1).clone()
    chosen = torch.full((len(matrix), n), n, device=matrix.device)
    for j in range(n):
        active = left > least.unsqueeze(-1)
        some = active.any(dim=-1)
        if not bool(some.any()):
            break
        if bool((left < -16 * least.unsqueeze(-1)).any()):
            raise InputError("expected a positive semi-definite kernel; its Cholesky factor does not exist")
        large = active & (left >= left.amax(dim=-1, keepdim=True) / 4)
        pivot = large.to(torch.uint8).argmax(dim=-1)
        column = matrix[item, :, pivot] - (factor @ factor[item, pivot].unsqueeze(-1)).squeeze(-1)
        root = torch.where(some, left[item, pivot], 1).clamp_min(0).sqrt()
        column = torch.where(active & some.unsqueeze(-1), column / root.unsqueeze(-1), 0)
        column[item, pivot] = torch.where(some, root, 0)
        factor[..., j] = column
        left = left - column.square()
        chosen[item[some], pivot[some]] = j
    return factor, chosen.argsort(dim=-1, stable=True)


def centred(rows: Float[Tensor, "*b n r"]) -> Float[Tensor, "*b n r"]:
    """Subtract the mean row."""
    return rows - rows.mean(dim=-2, keepdim=True)


def orthonormal_basis(
    columns: Float[Tensor, "*b r e"], log_size: Float[Tensor, "*#b r"] | None = None, *, pivots: bool = True
) -> Float[Tensor, "*b r e"]:
    r"""Return orthonormal columns with the span of diag(exp(log_size)) @ columns; those beyond the rank are zero.

    Rows may differ in size by any factor if they are sorted, largest first: `log_size` falls. If rows were multiplied
    out, the first few would dominate every column, and the others would be lost to rounding. Multiplication from the
    right keeps the span, so the columns are first brought to echelon form, in which column j starts at row j, and then
    scaled by the size of that row. QR of such columns is accurate row by row (Cox and Higham 1998). If the leading rows
    or the columns are nearly dependent, or a leading row is nearly zero, pivots are used: see `_pivoted_basis`. They
    have no gradient; without `pivots` such columns lose digits instead.
    """
    r, e = columns.shape[-2:]
    rank = min(r, e)
    if rank == 0:
        return torch.zeros_like(columns)
    check_finite("columns", columns)
    if log_size is None:
        log_size = columns.new_zeros(r)
    largest = columns.abs().amax(dim=-2, keepdim=True)
    columns = columns / torch.where(largest > 0, largest, 1)
    mix, leading = torch.linalg.qr(columns[..., :rank, :].mT)
    falling = (log_size.unsqueeze(-1) - log_size[..., None, :rank]).clamp_max(0).exp().tril()
    basis: Tensor
    basis, triangular = torch.linalg.qr((columns @ mix) * falling)
    if not pivots:
        return pad(basis, (0, e - rank))
    of_rows = _independence(leading, leading.norm(dim=-2).amax(dim=-1, keepdim=True))
    of_columns = _independence(triangular, triangular.norm(dim=-2))
    doubtful = torch.minimum(of_rows, of_columns) <= INDEPENDENT
    if bool(doubtful.any()):
        sizes = log_size.expand(columns.shape[:-1])
        basis[doubtful] = _pivoted_basis(columns[doubtful], sizes[doubtful])
    return pad(basis, (0, e - rank))


def _independence(triangular: Tensor, size: Tensor) -> Tensor:
    """Return the smallest fraction of a column outside the span of earlier columns, from their triangular factor."""
    return (triangular.diagonal(dim1=-2, dim2=-1).abs() / torch.where(size > 0, size, 1)).amin(dim=-1)


def _pivoted_basis(columns: Tensor, log_size: Tensor) -> Tensor:
    """Return `orthonormal_basis` with pivots: for each column the row with the largest remainder.

    A remainder below 8 max(r, e) eps of its row counts as zero; when all are zero, the rank is reached.
    """
    r, e = columns.shape[-2:]
    item = torch.arange(columns.shape[0], device=columns.device)
    remainder = columns.clone()
    least = 8 * max(r, e) * machine_epsilon(columns.dtype) * remainder.norm(dim=-1)
    rank = min(r, e)
    chosen = torch.zeros_like(log_size)
    for j in range(rank):
        left = remainder[..., j:].norm(dim=-1)
        nonzero = left > least
        remainder[..., j:] *= nonzero.unsqueeze(-1)
        pivot = torch.where(nonzero, left.log() + log_size, -torch.inf).argmax(dim=-1)
        row = remainder[item, pivot, j:]
        mirror = row.clone()
        mirror[:, 0] += torch.where(row[:, 0] < 0, -1, 1) * row.norm(dim=-1)
        square = mirror.square().sum(dim=-1, keepdim=True)
        mirror = mirror * (2 / torch.where(square > 0, square, 1)).sqrt()
        remainder[..., j:] -= (remainder[..., j:] @ mirror.unsqueeze(-1)) * mirror.unsqueeze(-2)
        remainder[item, pivot, j + 1 :] = 0
        chosen[item, pivot] = torch.where(nonzero.any(dim=-1), float(rank - j), chosen[item, pivot])
    remainder = remainder[..., :rank]
    log_entry = remainder.abs().log() + log_size.unsqueeze(-1)
    highest = log_entry.amax(dim=-2, keepdim=True)
    scaled = remainder.sign() * (log_entry - torch.where(highest.isfinite(), highest, 0)).exp()
    # Householder reflections are accurate for small rows only if each column's pivot comes first.
    order = chosen.argsort(dim=-1, descending=True, stable=True).unsqueeze(-1).expand_as(scaled)
    basis: Tensor = torch.linalg.qr(scaled.gather(-2, order)).Q * highest.isfinite()
    return torch.zeros_like(basis).scatter(-2, order, basis)


def captured_fraction(rows: Float[Tensor, "*#b n r"], basis: Float[Tensor, "*#b r e"]) -> Float[Tensor, "*b"]:
    r"""Return the sum of squares of the rows in a subspace, over the largest that e directions can have.

    .. math:: \frac{\lVert X Q \rVert_F^2}{\sum_{d \le e} \sigma_d(X)^2}

    1 iff the orthonormal columns of Q span e leading right singular directions of X; NaN where X vanishes.
    """
    gram = rows @ rows.mT
    check_finite("rows and products of rows", gram)
    energy = torch.linalg.eigvalsh(gram).flip(-1).clamp_min(0)
    most = energy[..., : basis.shape[-1]].sum(dim=-1)
    held = (rows @ basis).square().sum(dim=(-2, -1))
    return torch.where(most > 0, held / most, torch.nan)


TALL = 4
"""Ratio of rows to columns from which on a Gaussian matrix is well conditioned: (1 + 1/2) / (1 - 1/2) = 3 for many."""


def orthonormal_columns(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return Q of X = Q R, n >= d, where R has a positive diagonal, for Gaussian X.

    R of a tall X is the Cholesky factor of X^T X: a fifth of the time of reflections. The columns are orthonormal up to
    rounding times the squared condition number of X, which is small for tall Gaussian X alone.
    """
    n, d = x.shape[-2:]
    if n >= TALL * d:
        upper, info = torch.linalg.cholesky_ex(x.mT @ x, upper=True)
        if not bool(info.any()):
            solved: Tensor = torch.linalg.solve_triangular(upper, x, upper=True, left=False)
            return solved
    basis, triangular = torch.linalg.qr(x)
    signed: Tensor = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return signed

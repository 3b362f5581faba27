"""Random attention SVM problems, and their margins by definition, with every constraint matrix stored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.theories.max_margin import Norm

FLOAT64 = torch.float64


def normal(*shape: int, seed: int) -> Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=FLOAT64)


@dataclass(frozen=True, slots=True)
class Problem:
    """Tokens (n, t, d), queries (n, e), the selected tokens (n)."""

    x: Tensor
    z: Tensor
    selected: Tensor


def linear_problem(n: int, t: int, d: int, *, seed: int = 0) -> Problem:
    """Return unit tokens and queries; each sequence selects its token of highest score Y v.x, v and sign Y random."""
    generator = torch.Generator().manual_seed(seed)
    v, signs, x, z = (torch.randn(shape, generator=generator) for shape in ((d,), (n,), (n, t, d), (n, d)))
    v, x, z = (u / u.norm(dim=-1, keepdim=True) for u in (v, x, z))
    v, x, z, signs = v.double(), x.double(), z.double(), signs.sign().double()
    return Problem(x, z, (signs[:, None] * (x @ v)).argmax(dim=1))


def feasible_problem(n: int, t: int, d: int, e: int, *, seed: int = 0) -> Problem:
    """Return tokens selected by a random matrix, which separates them: feasible for any number of tokens."""
    generator = torch.Generator().manual_seed(seed)
    x, z, W = (torch.randn(s, generator=generator, dtype=FLOAT64) for s in ((n, t, d), (n, e), (d, e)))
    return Problem(x, z, torch.einsum("ntd,de,ne->nt", x, W, z).argmax(dim=1))


def random_selection(n: int, t: int, d: int, e: int, *, seed: int = 0) -> Problem:
    """Return tokens selected at random: infeasible if there are many more tokens than d e."""
    generator = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(s, generator=generator, dtype=FLOAT64) for s in ((n, t, d), (n, e)))
    return Problem(x, z, torch.randint(t, (n,), generator=generator))


def matrices(problem: Problem, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return every A_it = (x_selected - x_it) z_i^T, (constraints, d, e), and their (sequence, token)."""
    n, t = problem.x.shape[:2]
    visible = torch.ones(n, t, dtype=torch.bool) if mask is None else mask.clone()
    visible[torch.arange(n), problem.selected] = False
    i, j = visible.nonzero(as_tuple=True)
    x, z = problem.x.double(), problem.z.double()
    delta = x[i, problem.selected[i]] - x[i, j]
    return delta[:, :, None] * z[i][:, None, :], torch.stack([i, j], dim=1)


def matrix_norm(W: Tensor, norm: Norm) -> float:
    """Return |W|."""
    values = {
        Norm.FROBENIUS: lambda: W.square().sum().sqrt(),
        Norm.NUCLEAR: lambda: torch.linalg.svdvals(W).sum(),
        Norm.MAX_ENTRY: lambda: W.abs().max(),
    }
    return float(values[norm]())


def dual_matrix_norm(W: Tensor, norm: Norm) -> float:
    """Return the largest inner product with a matrix of norm one."""
    values = {
        Norm.FROBENIUS: lambda: W.square().sum().sqrt(),
        Norm.NUCLEAR: lambda: torch.linalg.svdvals(W).max(),
        Norm.MAX_ENTRY: lambda: W.abs().sum(),
    }
    return float(values[norm]())


def attained_margin(problem: Problem, W: Tensor, norm: Norm) -> float:
    """Return the margin of W, min <A, W> / |W|."""
    A, _ = matrices(problem)
    return float(torch.einsum("jde,de->j", A, W).min()) / matrix_norm(W, norm)


def margin_bound(problem: Problem, multipliers: Tensor, norm: Norm) -> float:
    """Return the bound on the margin of every W, |sum l A| in the dual norm / sum l."""
    A, tokens = matrices(problem)
    weights = multipliers[tokens[:, 0], tokens[:, 1]]
    assert (weights >= 0).all()
    return dual_matrix_norm(torch.einsum("j,jde->de", weights, A), norm) / float(weights.sum())

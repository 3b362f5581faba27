"""Problems to draw, and what they are checked by: the definition, with every constraint matrix stored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.theories.max_margin import Norm

FLOAT64 = torch.float64


@dataclass(frozen=True, slots=True)
class Problem:
    """Tokens (n, t, d), queries (n, e), the selected tokens (n)."""

    x: Tensor
    z: Tensor
    selected: Tensor


def drawn(n: int, t: int, d: int, *, seed: int = 0) -> Problem:
    """Unit tokens and queries; each sequence selects the token of the highest score Y v.x for a drawn v and sign Y."""
    generator = torch.Generator().manual_seed(seed)
    v, signs, x, z = (torch.randn(shape, generator=generator) for shape in ((d,), (n,), (n, t, d), (n, d)))
    v, x, z = (u / u.norm(dim=-1, keepdim=True) for u in (v, x, z))
    v, x, z, signs = v.double(), x.double(), z.double(), signs.sign().double()
    return Problem(x, z, (signs[:, None] * (x @ v)).argmax(dim=1))


def scored(n: int, t: int, d: int, e: int, *, seed: int = 0) -> Problem:
    """Selected by a random matrix, which separates after scaling: feasible however many tokens there are."""
    generator = torch.Generator().manual_seed(seed)
    x, z, W = (torch.randn(s, generator=generator, dtype=FLOAT64) for s in ((n, t, d), (n, e), (d, e)))
    return Problem(x, z, torch.einsum("ntd,de,ne->nt", x, W, z).argmax(dim=1))


def at_random(n: int, t: int, d: int, e: int, *, seed: int = 0) -> Problem:
    """Selected by chance: infeasible where there are many more tokens than d e."""
    generator = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(s, generator=generator, dtype=FLOAT64) for s in ((n, t, d), (n, e)))
    return Problem(x, z, torch.randint(t, (n,), generator=generator))


def matrices(problem: Problem, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Every A_it = (x_selected - x_it) z_i^T, (constraints, d, e), and their (sequence, token)."""
    n, t = problem.x.shape[:2]
    there = torch.ones(n, t, dtype=torch.bool) if keep is None else keep.clone()
    there[torch.arange(n), problem.selected] = False
    i, j = there.nonzero(as_tuple=True)
    x, z = problem.x.double(), problem.z.double()
    delta = x[i, problem.selected[i]] - x[i, j]
    return delta[:, :, None] * z[i][:, None, :], torch.stack([i, j], dim=1)


def size_of(W: Tensor, norm: Norm) -> float:
    """|W|."""
    values = {
        Norm.FROBENIUS: lambda: W.square().sum().sqrt(),
        Norm.NUCLEAR: lambda: torch.linalg.svdvals(W).sum(),
        Norm.MAX_ENTRY: lambda: W.abs().max(),
    }
    return float(values[norm]())


def dual_size_of(W: Tensor, norm: Norm) -> float:
    """The largest inner product with a matrix of norm one."""
    values = {
        Norm.FROBENIUS: lambda: W.square().sum().sqrt(),
        Norm.NUCLEAR: lambda: torch.linalg.svdvals(W).max(),
        Norm.MAX_ENTRY: lambda: W.abs().sum(),
    }
    return float(values[norm]())


def reached(problem: Problem, W: Tensor, norm: Norm, keep: Tensor | None = None) -> float:
    """The margin of W: min <A, W> / |W|."""
    A, _ = matrices(problem, keep)
    return float(torch.einsum("jde,de->j", A, W).min()) / size_of(W, norm)


def proved(problem: Problem, multipliers: Tensor, norm: Norm, keep: Tensor | None = None) -> float:
    """What no W passes: |sum l A| in the dual norm / sum l."""
    A, places = matrices(problem, keep)
    weights = multipliers[places[:, 0], places[:, 1]]
    assert (weights >= 0).all()
    return dual_size_of(torch.einsum("j,jde->de", weights, A), norm) / float(weights.sum())

r"""Whether scores with a bias or a soft cap are a kernel at all, where the theorem asks for exp(s x.y).

On keys at their places, self-attention with a bias b or a cap c has E_ij = exp(cap(s k_i.k_j) + b_ij). It is a kernel
of tokens and places if it is symmetric and positive. Measured is how far it is from the nearest that is, after scaling
to ones on the diagonal, which changes neither:

    |E - E+| / |E|,   E+ the nearest symmetric positive semi-definite matrix,

where |E - E+|^2 is the square of the antisymmetric part and of the symmetric part's negative eigenvalues (Higham 1988).
"""

import torch
from torch import Tensor

from clearhead.heads import Heads
from clearhead.shapes import Bool, Float
from clearhead.theories.over_inputs import OverInputs
from clearhead.theories.tallies import Control, Sample, Samples
from clearhead.theories.theory import Claim, Role

__all__ = ["KERNEL", "distance_from_a_kernel", "kernel_over_inputs"]

KERNEL = Claim(
    theory="kernel PCA",
    statistic="distance from a kernel",
    statement="scores with their bias or cap are a kernel of tokens and places, as theorem 1 asks",
    formula="‖E − E₊‖ / ‖E‖,  E_ij = exp(cap(s k_i·k_j) + b_ij) with unit diagonal, E₊ the nearest positive kernel",
    citation="a condition of theorem 1 of Teo and Nguyen 2024 (arXiv 2406.13762)",
    exact=0.0,
    role=Role.SECONDARY,
    note="measured only where a bias or a cap makes the other claims not applicable",
)
SHUFFLED = Control(name="scores in other places")
DRAWS = 2


def distance_from_a_kernel(log_kernel: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b"]:
    """|E - E+| / |E| of the module's docstring, for E given by its logarithm."""
    log_kernel = log_kernel.double()
    half = log_kernel.diagonal(dim1=-2, dim2=-1) / 2
    scaled = log_kernel - half.unsqueeze(-1) - half.unsqueeze(-2)
    entries = (scaled - scaled.amax(dim=(-2, -1), keepdim=True)).exp()
    odd, even = (entries - entries.mT) / 2, (entries + entries.mT) / 2
    negative = torch.linalg.eigvalsh(even).clamp_max(0).square().sum(dim=-1)
    away: Tensor = (odd.square().sum(dim=(-2, -1)) + negative).sqrt()
    return away / entries.square().sum(dim=(-2, -1)).sqrt()


def kernel_over_inputs(seed: int, *, controls: bool) -> OverInputs:
    """The measurement of `KERNEL` on calls whose scores have a bias or a cap."""
    return OverInputs(
        claims=(KERNEL,),
        seed=seed,
        obstacle=_obstacle,
        sample=lambda heads, index, generator: _sample(heads, index, generator, DRAWS if controls else 0),
        undefined=lambda _: "no tokens",
    )


def _obstacle(heads: Heads, index: int) -> str:
    if heads.q.shape[-2] != heads.k.shape[-2]:
        return "in cross-attention the bias says nothing of pairs of keys"
    if not bool(torch.isfinite(heads.k[index]).all()):
        return "keys are not finite"
    return ""


def _sample(heads: Heads, index: int, generator: torch.Generator, draws: int) -> Samples:
    seen = _visible(heads, index)
    k = heads.k[index][:, seen].double()
    scores = heads.scale * k @ k.mT
    if heads.softcap is not None:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    if heads.bias is not None:
        m = heads.k.shape[-2]
        bias = heads.bias[index if heads.bias.shape[0] > 1 else 0].expand(-1, m, m)
        scores = scores + bias[:, seen][:, :, seen]
    shuffled = [_shuffled(scores, generator) for _ in range(draws)]
    chance = torch.stack([distance_from_a_kernel(one) for one in shuffled]) if shuffled else None
    return {
        KERNEL: Sample(
            value=distance_from_a_kernel(scores).cpu().numpy(),
            controls={} if chance is None else {SHUFFLED: chance.cpu().numpy()},
        )
    }


def _shuffled(scores: Tensor, generator: torch.Generator) -> Tensor:
    """The scores between different tokens in another order, symmetric where they were."""
    m = scores.shape[-1]
    first, second = torch.triu_indices(m, m, offset=1, device=scores.device)
    order = torch.randperm(len(first), generator=generator).to(scores.device)
    moved = scores.clone()
    moved[..., first, second] = scores[..., first[order], second[order]]
    moved[..., second, first] = scores[..., second[order], first[order]]
    return moved


def _visible(heads: Heads, index: int) -> Bool[Tensor, "m"]:
    """The tokens that some query of some head may look at."""
    m = heads.k.shape[-2]
    if heads.mask is None:
        return torch.ones(m, dtype=torch.bool, device=heads.k.device)
    mask = heads.mask[index if heads.mask.shape[0] > 1 else 0]
    return mask.any(dim=-2).any(dim=0).expand(m)

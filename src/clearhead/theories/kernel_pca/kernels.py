r"""Whether scores with a bias or a soft cap are a kernel at all, where the theorem asks for exp(s x.y).

On keys at their places, self-attention with a bias b or a cap c has E_ij = exp(cap(s k_i.k_j) + b_ij). It is a kernel
of tokens and places if it is symmetric and positive. Measured is how far it is from the nearest that is, after scaling
to ones on the diagonal, which changes neither:

    |E - E+| / |E|,   E+ the nearest symmetric positive semi-definite matrix,

where |E - E+|^2 is the square of the antisymmetric part and of the symmetric part's negative eigenvalues (Higham 1988).
"""

import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Control, Role, Sample

__all__ = ["KERNEL", "distance_from_a_kernel", "measure_kernel"]

KERNEL = Claim(
    theory="kernel PCA",
    statistic="distance from a kernel",
    statement="scores with their bias or cap are a kernel of tokens and places, as theorem 1 asks",
    formula="‖E − E₊‖ / ‖E‖,  E_ij = exp(cap(s k_i·k_j) + b_ij) with unit diagonal, E₊ the nearest positive kernel",
    citation="a condition of theorem 1 of Teo and Nguyen 2024 (arXiv 2406.13762)",
    predicted=0.0,
    role=Role.SECONDARY,
    note="measured only where a bias or a cap makes the other claims not applicable",
    undefined="no tokens",
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


def measure_kernel(example: Example, rng: Random) -> Sample | Reason:
    """Measure `KERNEL` on an example whose scores have a bias or a cap."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return Reason(ReasonKind.NOT_COVERED, "in cross-attention the bias says nothing of pairs of keys")
    if not bool(torch.isfinite(example.k).all()):
        return Reason(ReasonKind.NOT_FINITE, "keys are not finite")
    tokens = example.visible.any(dim=0)
    k = example.k[:, tokens].double()
    scores = example.scale * k @ k.mT
    if example.softcap is not None:
        scores = example.softcap * torch.tanh(scores / example.softcap)
    if example.bias is not None:
        scores = scores + example.bias[:, tokens][:, :, tokens]
    draws = [distance_from_a_kernel(_shuffled(scores, rng.torch)) for _ in range(DRAWS if example.controls else 0)]
    return Sample(
        value=distance_from_a_kernel(scores).cpu().numpy(),
        controls={SHUFFLED: torch.stack(draws).cpu().numpy()} if draws else {},
    )


def _shuffled(scores: Tensor, generator: torch.Generator) -> Tensor:
    """Return the scores between different tokens in another order, symmetric where they were."""
    m = scores.shape[-1]
    first, second = torch.triu_indices(m, m, offset=1, device=scores.device)
    order = torch.randperm(len(first), generator=generator).to(scores.device)
    moved = scores.clone()
    moved[..., first, second] = scores[..., first[order], second[order]]
    moved[..., second, first] = scores[..., second[order], first[order]]
    return moved

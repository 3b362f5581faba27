r"""Distance from a kernel of scores with a bias or a soft cap; the theorem assumes the kernel exp(s x.y).

Self-attention with a bias b or a soft cap has E_ij = exp(cap(s k_i.k_j) + b_ij) on its keys. This is a kernel of tokens
and positions if it is symmetric and positive semi-definite. The statistic is the distance from the nearest such matrix,
after scaling E to ones on the diagonal, which does not change these properties:

    |E - E+| / |E|,   E+ the nearest symmetric positive semi-definite matrix.

|E - E+|^2 is the squared norm of the antisymmetric part plus the squared negative eigenvalues of the symmetric part
(Higham 1988).
"""

import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Control, Role, Sample

KERNEL = Claim(
    theory="kernel PCA",
    statistic="distance from a kernel",
    statement="scores with their bias or cap are a kernel of tokens and positions, as theorem 1 requires",
    formula="‖E − E₊‖ / ‖E‖,  E_ij = exp(cap(s k_i·k_j) + b_ij) with unit diagonal, E₊ the nearest positive kernel",
    citation="a condition of theorem 1 of Teo and Nguyen 2024 (arXiv 2406.13762)",
    predicted=0.0,
    role=Role.SECONDARY,
    note="measured only if a bias or a cap makes the other claims not applicable",
    undefined="no tokens",
)
SHUFFLED = Control(name="shuffled scores")
DRAWS = 2


def distance_from_a_kernel(log_kernel: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b"]:
    """Return |E - E+| / |E| for E given by its logarithm."""
    log_kernel = log_kernel.double()
    half = log_kernel.diagonal(dim1=-2, dim2=-1) / 2
    scaled = log_kernel - half.unsqueeze(-1) - half.unsqueeze(-2)
    entries = (scaled - scaled.amax(dim=(-2, -1), keepdim=True)).exp()
    antisymmetric, symmetric = (entries - entries.mT) / 2, (entries + entries.mT) / 2
    negative = torch.linalg.eigvalsh(symmetric).clamp_max(0).square().sum(dim=-1)
    distance: Tensor = (antisymmetric.square().sum(dim=(-2, -1)) + negative).sqrt()
    return distance / entries.square().sum(dim=(-2, -1)).sqrt()


def measure_kernel(example: Example, rng: Random) -> Sample | Reason:
    """Measure `KERNEL` on an example whose scores have a bias or a cap."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return Reason(ReasonKind.NOT_COVERED, "in cross-attention the bias is not defined for pairs of keys")
    if not bool(torch.isfinite(example.k).all()):
        return Reason(ReasonKind.NOT_FINITE, "keys are not finite")
    tokens = example.visible.any(dim=0)
    k = example.k[:, tokens].double()
    scores = example.scale * k @ k.mT
    if example.softcap is not None:
        scores = example.softcap * torch.tanh(scores / example.softcap)
    if example.bias is not None:
        scores = scores + example.bias[:, tokens][:, :, tokens]
    draws = [distance_from_a_kernel(_shuffle(scores, rng.torch)) for _ in range(DRAWS if example.controls else 0)]
    return Sample(
        value=distance_from_a_kernel(scores).cpu().numpy(),
        controls={SHUFFLED: torch.stack(draws).cpu().numpy()} if draws else {},
    )


def _shuffle(scores: Tensor, generator: torch.Generator) -> Tensor:
    """Return the scores between different tokens in another order, symmetric where they were."""
    m = scores.shape[-1]
    first, second = torch.triu_indices(m, m, offset=1, device=scores.device)
    order = torch.randperm(len(first), generator=generator).to(scores.device)
    shuffled = scores.clone()
    shuffled[..., first, second] = scores[..., first[order], second[order]]
    shuffled[..., second, first] = scores[..., second[order], first[order]]
    return shuffled

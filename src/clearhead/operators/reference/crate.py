"""Reference definitions of the steps of CRATE and of token statistics attention, as their sources print them."""

import torch
from torch import Tensor

from clearhead.operators.reference.attention import symmetric_attention
from clearhead.operators.sparse_coding import check_dictionaries, check_dictionary
from clearhead.operators.subspace import check_bases
from clearhead.operators.token_statistics import ADDED, LEAST_ENERGY, check_heads
from clearhead.shapes import Bool, Float

__all__ = [
    "causal_token_statistics_attention",
    "ista_step",
    "overcomplete_step",
    "subspace_attention",
    "subspace_step",
    "token_statistics_attention",
    "token_statistics_step",
]


def subspace_attention(
    v: Float[Tensor, "*b n p"], *, mask: Bool[Tensor, "..."] | None = None, scale: float | None = None
) -> Float[Tensor, "*b n p"]:
    """Compute `operators.subspace_attention` one token at a time."""
    return symmetric_attention(v, v, mask=mask, scale=scale)


def subspace_step(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    *,
    length: float,
    eps: float = 0.5,
    scale: float = 1.0,
) -> Float[Tensor, "*b n d"]:
    """Compute `operators.subspace_step` with tokens as columns, one subspace after the other, as printed."""
    check_bases(z, bases)
    Z = z.mT
    a = bases.shape[-1] / (Z.shape[-1] * eps**2)
    attended = torch.zeros_like(Z)
    for U in bases:
        V = U.mT @ Z
        attended = attended + U @ (V @ torch.softmax(scale * V.mT @ V, dim=-2))
    return ((1 - length) * Z + length * a * attended).mT


def ista_step(
    z: Float[Tensor, "*b n d"], dictionary: Float[Tensor, "d d"], *, step: float = 0.1, penalty: float = 0.1
) -> Float[Tensor, "*b n d"]:
    """Compute `operators.ista_step` with tokens as columns, product by product."""
    check_dictionary(z, dictionary, square=True)
    Z, D = z.mT, dictionary
    return torch.relu(Z + step * (D.mT @ Z) - step * (D.mT @ (D @ Z)) - step * penalty).mT


def overcomplete_step(
    z: Float[Tensor, "*b n d"],
    dictionary: Float[Tensor, "d m"],
    decoder: Float[Tensor, "d m"],
    *,
    step: float = 0.1,
    penalty: float = 0.1,
) -> Float[Tensor, "*b n d"]:
    """Compute `operators.overcomplete_step` with tokens as columns, as printed."""
    check_dictionaries(z, dictionary, decoder)
    Z, D = z.mT, dictionary
    first = torch.relu(step * D.mT @ Z - step * penalty)
    second = torch.relu(first - step * D.mT @ (D @ first - Z) - step * penalty)
    return (decoder @ second).mT


def token_statistics_step(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    *,
    length: float,
    eps: float = 0.5,
    temperature: float = 1.0,
) -> Float[Tensor, "*b n d"]:
    """Compute `operators.token_statistics_step` with tokens as columns, one subspace after the other, as printed."""
    check_bases(z, bases)
    Z = z.mT
    d, N = Z.shape[-2:]
    energies = torch.stack([(U.mT @ Z).square().sum(dim=-2) for U in bases], dim=-1)
    Pi = torch.softmax(energies / (2 * temperature), dim=-1)
    step = torch.zeros_like(Z)
    for k, U in enumerate(bases):
        V, pi = U.mT @ Z, Pi[..., k]
        mean = (V.square() @ pi.unsqueeze(-1)) / pi.sum(dim=-1)[..., None, None]
        D = (d / eps**2) / (1 + (d / eps**2) * mean)
        step = step + U @ (D * V * pi.unsqueeze(-2))
    return (Z - length / N * step).mT


def token_statistics_attention(
    w: Float[Tensor, "*b h n p"], *, sharpness: Float[Tensor, "h"] | None = None
) -> Float[Tensor, "*b h n p"]:
    """Compute `operators.token_statistics_attention` one token at a time."""
    check_heads(w, sharpness, None)
    s = w.new_ones(w.shape[-3]) if sharpness is None else sharpness
    unit = torch.nn.functional.normalize(w, dim=-2)
    pi = [torch.softmax(s * unit[..., j, :].square().sum(dim=-1), dim=-1) for j in range(w.shape[-2])]
    total = sum(pi, torch.zeros_like(w[..., 0, 0])) + ADDED
    moment = sum(((pi[j] / total).unsqueeze(-1) * w[..., j, :].square() for j in range(len(pi))), 0 * w[..., 0, :])
    return torch.stack([-pi[j].unsqueeze(-1) * w[..., j, :] / (1 + moment) for j in range(len(pi))], dim=-2)


def causal_token_statistics_attention(
    w: Float[Tensor, "*b h n p"],
    *,
    sharpness: Float[Tensor, "h"] | None = None,
    bias: Float[Tensor, "h n"] | None = None,
) -> Float[Tensor, "*b h n p"]:
    """Compute `operators.causal_token_statistics_attention` for each token separately, from all tokens before it."""
    check_heads(w, sharpness, None)
    s = w.new_ones(w.shape[-3]) if sharpness is None else sharpness
    c = w.new_zeros(w.shape[-3:-1]) if bias is None else bias
    pi: list[Tensor] = []
    outputs = []
    for j in range(w.shape[-2]):
        past = w[..., : j + 1, :].square()
        shares = past[..., j, :] / past.sum(dim=-2).clamp_min(LEAST_ENERGY) + c[:, j].unsqueeze(-1)
        pi.append(torch.softmax(s * shares.sum(dim=-1), dim=-1))
        members = torch.stack(pi, dim=-1)
        moment = (members.unsqueeze(-1) * past).sum(dim=-2) / (members.sum(dim=-1) + ADDED).unsqueeze(-1)
        outputs.append(-pi[j].unsqueeze(-1) * w[..., j, :] / (1 + moment))
    return torch.stack(outputs, dim=-2) if outputs else torch.zeros_like(w)

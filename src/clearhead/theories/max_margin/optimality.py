"""What training reached: how near it is to an SVM, whether it is saturated, and how good the selected tokens are."""

import torch
from torch import Tensor

from clearhead.shapes import Bool, Float, Int

__all__ = ["correlation", "globally_optimal", "locally_optimal", "saturated"]

SATURATED = 0.99


def correlation(W: Float[Tensor, "*b d e"], other: Float[Tensor, "*b d e"]) -> Float[Tensor, "*b"]:
    r""":math:`\langle W, W'\rangle / (\|W\|_F \|W'\|_F)`; NaN where one of them is zero."""
    lengths = torch.linalg.matrix_norm(W) * torch.linalg.matrix_norm(other)
    products: Tensor = (W * other).sum(dim=(-2, -1)) / lengths
    return products


def saturated(attention: Float[Tensor, "*b n t"], *, least: float = SATURATED) -> Bool[Tensor, "*b"]:
    """Whether every sequence has a token of at least that probability."""
    return (attention.amax(dim=-1) >= least).all(dim=-1)


def globally_optimal(token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"]) -> Bool[Tensor, "*b"]:
    r"""Whether every selected token has the highest score, :math:`\alpha_i = \arg\max_t \gamma_{it}`."""
    return (_of(token_scores, selected) >= token_scores.amax(dim=-1)).all(dim=-1)


def locally_optimal(
    token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"], support: Bool[Tensor, "*b n t"]
) -> Bool[Tensor, "*b"]:
    r"""Whether every selected token scores above all support tokens of its sequence (`MaxMargin.support`).

    :math:`\gamma_{i\alpha_i} > \gamma_{it}` for every t whose constraint of the SVM is active.
    """
    return ((token_scores < _of(token_scores, selected).unsqueeze(-1)) | ~support).flatten(-2).all(dim=-1)


def _of(token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return token_scores.gather(-1, selected.unsqueeze(-1)).squeeze(-1)

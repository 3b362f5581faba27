"""Measures of trained attention: correlation with an SVM, saturation, and optimality of the selected tokens."""

import torch
from torch import Tensor

from clearhead.shapes import Bool, Float, Int

__all__ = ["correlation", "globally_optimal", "locally_optimal", "saturated"]

SATURATED = 0.99


def correlation(W: Float[Tensor, "*b d e"], other: Float[Tensor, "*b d e"]) -> Float[Tensor, "*b"]:
    r"""Return :math:`\langle W, W'\rangle / (\|W\|_F \|W'\|_F)`; NaN if one of them is zero."""
    lengths = torch.linalg.matrix_norm(W) * torch.linalg.matrix_norm(other)
    products: Tensor = (W * other).sum(dim=(-2, -1)) / lengths
    return products


def saturated(attention: Float[Tensor, "*b n t"], *, threshold: float = SATURATED) -> Bool[Tensor, "*b"]:
    """Return whether every sequence has a token of at least the threshold probability."""
    return (attention.amax(dim=-1) >= threshold).all(dim=-1)


def globally_optimal(token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"]) -> Bool[Tensor, "*b"]:
    r"""Return whether every selected token has the highest score, :math:`\alpha_i = \arg\max_t \gamma_{it}`."""
    return (_selected_scores(token_scores, selected) >= token_scores.amax(dim=-1)).all(dim=-1)


def locally_optimal(
    token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"], support: Bool[Tensor, "*b n t"]
) -> Bool[Tensor, "*b"]:
    r"""Return whether every selected token scores above all support tokens of its sequence (`MaxMargin.support`).

    That is :math:`\gamma_{i\alpha_i} > \gamma_{it}` for every t whose constraint in the SVM is active.
    """
    return ((token_scores < _selected_scores(token_scores, selected).unsqueeze(-1)) | ~support).flatten(-2).all(dim=-1)


def _selected_scores(token_scores: Float[Tensor, "*b n t"], selected: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return token_scores.gather(-1, selected.unsqueeze(-1)).squeeze(-1)

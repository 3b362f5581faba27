r"""The loss of projecting queries on a head's axes: as published, and the residual that holds for any values.

    log |phi(q)|^2 = s |q|^2 - 2 log sum_j exp(s q.k_j)
    J_paper = mean_i [|phi(q_i)|^2 - |h_i|^2]                              a residual only if the axes are orthonormal
    J_true  = mean_i [|phi(q_i)|^2 - h_i^T (V^T K V)^+ h_i] >= 0           for any values; U^T U = V^T K V of their axes

J_true is what is left of phi(q) outside the span of the axes, so it is computed from the angles between phi(q) and the
span, each at most 1, and not as a difference of large numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, query_directions

__all__ = ["Queries", "explained_fraction", "log_output_square", "log_true_loss", "seen_queries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Queries that see all keys of a space: their weights on the keys, lengths, and directions within its span.

    g query heads may share the keys of one head.
    """

    weights: Float[Tensor, "*b g n m"]
    log_square: Float[Tensor, "*b g n"]
    directions: Float[Tensor, "*b g n r"]

    @property
    def log_mean_square(self) -> Float[Tensor, "*b g"]:
        """log of mean_i |phi(q_i)|^2."""
        return torch.logsumexp(self.log_square, dim=-1) - math.log(self.log_square.shape[-1])


def seen_queries(space: KeySpace, q: Float[Tensor, "*b g n d"]) -> Queries:
    """Place queries in the space of the keys they see. Their number may be any but zero."""
    *lead, g, n, _ = q.shape
    q = q.double().flatten(-3, -2)
    scores = space.scale * q @ space.k.mT
    log_g = torch.logsumexp(scores, dim=-1)
    if space.sinks is not None:
        log_g = torch.logaddexp(log_g, space.sinks.unsqueeze(-1))
    return Queries(
        weights=(scores - log_g.unsqueeze(-1)).exp().reshape(*lead, g, n, -1),
        log_square=(space.scale * q.square().sum(dim=-1) - 2 * log_g).reshape(*lead, g, n),
        directions=query_directions(space, q).reshape(*lead, g, n, -1),
    )


def explained_fraction(queries: Queries, span: Float[Tensor, "*t r e"]) -> Float[Tensor, "*s g"]:
    """1 - J_true / mean |phi(q)|^2: the share of the queries that lies in the span of orthonormal columns."""
    share = (queries.log_square - torch.logsumexp(queries.log_square, dim=-1, keepdim=True)).exp()
    inside = (queries.directions @ span.unsqueeze(-3)).square().sum(dim=-1)
    return (share * inside).sum(dim=-1).clamp(0, 1)


def log_true_loss(queries: Queries, explained: Float[Tensor, "*s g"]) -> Float[Tensor, "*s g"]:
    """log of J_true, given the explained fraction; minus infinity where nothing is left."""
    return queries.log_mean_square + torch.log1p(-explained)


def log_output_square(queries: Queries, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s g"]:
    """log of mean_i |h_i|^2, h the attention of the queries over values V."""
    return (queries.weights @ v.double().unsqueeze(-3)).square().sum(dim=-1).mean(dim=-1).log()

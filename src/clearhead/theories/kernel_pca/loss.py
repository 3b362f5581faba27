r"""The loss of projecting queries on a head's axes: as published, and the true residual for any values.

    log |phi(q)|^2 = s |q|^2 - 2 log sum_j exp(s q.k_j)
    J_published = mean_i [|phi(q_i)|^2 - |h_i|^2]                   a residual only if the axes are orthonormal
    J_true      = mean_i [|phi(q_i)|^2 - h_i^T (V^T K V)^+ h_i]     >= 0 for any values; V^T K V = U^T U of their axes U

h_i is the output of query i. J_true is the part of phi(q) outside the span of the axes. It is computed from the cosines
between phi(q) and the span, which are at most 1, and not as a difference of large numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, product, query_directions


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Queries over all keys of a space: attention weights, log |phi(q)|^2, and directions within the keys' span.

    Axis g is for query heads that share the keys of one head.
    """

    weights: Float[Tensor, "*b g n m"]
    log_square: Float[Tensor, "*b g n"]
    directions: Float[Tensor, "*b g n r"]

    @property
    def log_mean_square(self) -> Float[Tensor, "*b g"]:
        """Logarithm of mean_i |phi(q_i)|^2."""
        return torch.logsumexp(self.log_square, dim=-1) - math.log(self.log_square.shape[-1])


def queries_in_space(space: KeySpace, q: Float[Tensor, "*b g n d"]) -> Queries:
    """Return the queries in the space of the keys; there must be at least one query."""
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
    """Return 1 - J_true / mean |phi(q)|^2, the share of the queries within the span of orthonormal columns."""
    share = (queries.log_square - torch.logsumexp(queries.log_square, dim=-1, keepdim=True)).exp()
    weighted = share.sqrt().unsqueeze(-1) * queries.directions
    *_, g, n, _ = weighted.shape
    inside = product(weighted.flatten(-3, -2), span).square().sum(dim=-1)
    return inside.reshape(*inside.shape[:-1], g, n).sum(dim=-1).clamp(0, 1)


def log_true_loss(queries: Queries, explained: Float[Tensor, "*s g"]) -> Float[Tensor, "*s g"]:
    """Return log J_true from the explained fraction; minus infinity if that is 1."""
    return queries.log_mean_square + torch.log1p(-explained)


def log_output_square(queries: Queries, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s g"]:
    """Return log mean_i |h_i|^2, h_i the output of query i for values V."""
    return (queries.weights @ v.double().unsqueeze(-3)).square().sum(dim=-1).mean(dim=-1).log()

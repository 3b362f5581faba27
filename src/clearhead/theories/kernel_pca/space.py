r"""The keys of attention heads in coordinates of their feature space, and their principal axes there.

Symbols of Teo and Nguyen 2024: k(x, y) = exp(s x.y), g(x) = sum_j k(x, k_j), phi(x) = phi_0(x) / g(x). K is the Gram
matrix of phi on the keys and H the centring matrix. g varies over many orders of magnitude between the tokens of one
input, so every vector is stored as a direction and the logarithm of its length; only ratios within a sum are formed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import centred, features_from_log_kernel
from clearhead.shapes import Bool, Float, Int

EMPTY = 100.0
"""Log-length of an empty coordinate below that of the shortest key, so that it is sorted last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpace:
    """Keys in coordinates of their feature space, the largest coordinate of the axes first.

    axes, log_size: the axes of values V are diag(exp(log_size)) @ axes @ V
    rows, log_unit: the centred phi(k_j) are rows * exp(log_unit); zero if the keys have no variance (one key, or all
        equal)
    factor: directions of the phi_0(k_j) that introduce a coordinate, triangular
    pivots: the key that introduces each coordinate, before sorting
    largest_first: the order that sorts the coordinates
    """

    k: Float[Tensor, "*b m d"]
    scale: float
    sinks: Float[Tensor, "*b"] | None
    log_g: Float[Tensor, "*b m"]
    axes: Float[Tensor, "*b r m"]
    log_size: Float[Tensor, "*b r"]
    rows: Float[Tensor, "*b m r"]
    log_unit: Float[Tensor, "*b"]
    factor: Float[Tensor, "*b r r"]
    pivots: Int[Tensor, "*b r"]
    largest_first: Int[Tensor, "*b r"]


def key_space(k: Float[Tensor, "*b m d"], *, scale: float, sinks: Float[Tensor, "*b"] | None = None) -> KeySpace:
    """Return the keys in feature space, computed in float64. A sink adds to g like a key without a value.

    The longest keys introduce the first coordinates, so that few coordinates represent them.
    """
    k = k.double()
    longest_first = k.square().sum(dim=-1).argsort(dim=-1, descending=True, stable=True)
    original_order = longest_first.argsort(dim=-1)
    sorted_k = k.gather(-2, longest_first.unsqueeze(-1).expand_as(k))
    log_kernel = scale * sorted_k @ sorted_k.mT
    log_g = torch.logsumexp(log_kernel, dim=-1)
    if sinks is not None:
        log_g = torch.logaddexp(log_g, sinks.double().unsqueeze(-1))
    features = features_from_log_kernel(log_kernel)
    log_length = features.log_norm - log_g
    log_unit = log_length.amax(dim=-1)
    rows = features.direction * (log_length - log_unit.unsqueeze(-1)).exp().unsqueeze(-1)
    log_entry = features.direction.mT.abs().log() + features.log_norm.unsqueeze(-2)
    log_size = log_entry.amax(dim=-1)
    empty = log_size == -torch.inf
    log_size = torch.where(empty, features.log_norm.amin(dim=-1, keepdim=True) - EMPTY, log_size)
    axes = features.direction.mT.sign() * (log_entry - log_size.unsqueeze(-1)).exp()
    size = torch.where(empty, 1, axes.norm(dim=-1))
    log_size, order = (log_size + size.log()).sort(dim=-1, descending=True, stable=True)
    axes = (axes / size.unsqueeze(-1)).gather(-2, order.unsqueeze(-1).expand_as(axes))
    rows = _zero_if_rounding(centred(rows), rows).gather(-1, order.unsqueeze(-2).expand_as(rows))
    return KeySpace(
        k=k,
        scale=scale,
        sinks=None if sinks is None else sinks.double(),
        log_g=log_g.gather(-1, original_order),
        axes=axes.gather(-1, original_order.unsqueeze(-2).expand_as(axes)),
        log_size=log_size,
        rows=rows.gather(-2, original_order.unsqueeze(-1).expand_as(rows)),
        log_unit=log_unit,
        factor=features.direction.gather(-2, features.pivots.unsqueeze(-1).expand_as(features.direction)),
        pivots=longest_first.gather(-1, features.pivots),
        largest_first=order,
    )


def _zero_if_rounding(centred_rows: Tensor, rows: Tensor) -> Tensor:
    """Return the centred rows, or zeros if their variance is within the rounding error of equal keys."""
    threshold = 8 * rows.shape[-2] ** 2 * machine_epsilon(rows.dtype)
    energy, total = (x.square().sum(dim=(-2, -1), keepdim=True) for x in (centred_rows, rows))
    return torch.where(energy > threshold * total, centred_rows, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The first principal axes: eigenvalues and unit eigenvectors a_d of the centred Gram matrix, largest first.

    energy: N lambda_d / exp(2 log_unit)
    vectors: a_d, with the sign that makes the entry of largest magnitude positive
    directions: unit axes u_d in the coordinates of the space
    known: False for axes whose eigenvalue is rounding error relative to the first; all their entries are zero
    values, log_values: the theorem's V for unit axes, a_dj / (g_j sqrt(N lambda_d)), is values * exp(log_values)
    """

    energy: Float[Tensor, "*b e"]
    vectors: Float[Tensor, "*b m e"]
    directions: Float[Tensor, "*b r e"]
    known: Bool[Tensor, "*b e"]
    values: Float[Tensor, "*b m e"]
    log_values: Float[Tensor, "*b"]


def principal_axes(space: KeySpace, count: int) -> Principal:
    """Return the first `count` principal axes of the keys, in feature space and as the theorem's values."""
    energy, vectors = torch.linalg.eigh(space.rows @ space.rows.mT)
    m = energy.shape[-1]
    count = min(count, m)
    energy, vectors = energy.flip(-1)[..., :count], vectors.flip(-1)[..., :count]
    known = energy > m * machine_epsilon(energy.dtype) * energy[..., :1]
    largest = vectors.gather(-2, vectors.abs().argmax(dim=-2, keepdim=True))
    vectors = vectors * torch.where(largest < 0, -1, 1) * known.unsqueeze(-2)
    energy = torch.where(known, energy, 0)
    root = torch.where(known, energy, 1).sqrt()
    smallest = space.log_g.amin(dim=-1)
    scaled = vectors / root.unsqueeze(-2)
    return Principal(
        energy=energy,
        vectors=vectors,
        directions=space.rows.mT @ scaled,
        known=known,
        values=scaled * (smallest.unsqueeze(-1) - space.log_g).exp().unsqueeze(-1),
        log_values=-smallest - space.log_unit,
    )


def product(matrix: Float[Tensor, "*b r m"], v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t r e"]:
    """Return matrix @ v. If v has an axis of draws first, all draws are one product; broadcasting copies the matrix."""
    return torch.einsum("...rm,t...me->t...re", matrix, v) if v.dim() == matrix.dim() + 1 else matrix @ v


def query_directions(space: KeySpace, q: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n r"]:
    """Return the projection of every phi(q) / |phi(q)| on the span of the keys, in the coordinates of the space.

    Its inner products with the directions of the keys are exp(-s |q - k_j|^2 / 2), which cannot overflow.
    """
    k = space.k.gather(-2, space.pivots.unsqueeze(-1).expand_as(space.k))
    q = q.double()
    distance = (
        k.square().sum(dim=-1).unsqueeze(-1) + q.square().sum(dim=-1).unsqueeze(-2) - 2 * k @ q.mT
    )  # squared, m by n
    products = (-space.scale / 2 * distance.clamp_min(0)).exp()
    nonempty = space.factor.diagonal(dim1=-2, dim2=-1) > 0
    factor = space.factor + torch.diag_embed((~nonempty).to(space.factor.dtype))
    solved = torch.linalg.solve_triangular(factor, products, upper=False)
    coordinates: Tensor = (solved * nonempty.unsqueeze(-1)).mT
    return coordinates.gather(-1, space.largest_first.unsqueeze(-2).expand_as(coordinates))

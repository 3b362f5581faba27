r"""Three principles of good features, measured on labelled features: discriminative, compressible, diverse.

Yu et al. 2020 (arXiv 2006.08558, section 1) state them in words: features of different classes should be uncorrelated,
features of the same class should lie in a low-dimensional subspace, and they should be spread within it. The basis U_i
of class i holds the leading directions with 95 % of its energy, the sum of squared singular values; r_i is its rank.
Features are not centred.

`principles_with_nulls` measures three nulls as well: random features, shuffled labels, and classes collapsed to one
direction each.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import class_rates, coding_rate, rate_reduction
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float, Int, ShapeError

ENERGY = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Principles:
    """Measurements of labelled features; tuples have one entry per class.

    discriminative:
        overlap: mean over pairs of |U_i^T U_j|^2 / min(r_i, r_j); 0 for orthogonal classes, 1 if one contains the other
        largest_cosine: cosine of the smallest principal angle between any two classes
        reduction: Delta R, in nats
    compressible:
        ranks: r_i
        effective_ranks: exp of the entropy of the normalised squared singular values
        rates: R of each class alone, in nats
        outside: share of a class's energy outside its first `directions` directions
    diverse:
        flatness: effective rank / r_i; 1 if the energy is spread evenly. It can exceed 1 because the basis leaves out
            5 % of the energy
        rate_fraction: R / R_max, R_max = d / 2 log(1 + mean |z|^2 / eps^2)
    """

    overlap: float
    largest_cosine: float
    reduction: float
    ranks: tuple[int, ...]
    effective_ranks: tuple[float, ...]
    rates: tuple[float, ...]
    directions: int
    outside: tuple[float, ...]
    flatness: tuple[float, ...]
    rate_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrinciplesWithNulls:
    """Measurements of the features and of three nulls, for each of which some principle fails.

    random: features of the same lengths in random directions
    shuffled: the same features with shuffled labels
    collapsed: every feature along its class's leading direction, at its length: each class has rank one
    """

    features: Principles
    random: Principles
    shuffled: Principles
    collapsed: Principles


def principles(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], *, eps: float = 0.5, directions: int | None = None
) -> Principles:
    """Measure labelled features; `directions` defaults to d over the number of classes."""
    z = z.detach().double()
    classes = _split_classes(z, labels)
    directions = max(1, z.shape[1] // len(classes)) if directions is None else directions
    decompositions = [torch.linalg.svd(features, full_matrices=False) for features in classes]
    energies = [values.square() for _, values, _ in decompositions]
    ranks = [_rank(energy) for energy in energies]
    bases = [v[:rank].mT for (_, _, v), rank in zip(decompositions, ranks, strict=True)]
    cosines = [torch.linalg.svdvals(bases[i].mT @ bases[j]) for j in range(len(bases)) for i in range(j)]
    overlaps = [float(cosine.square().mean()) for cosine in cosines]
    effective_ranks = [_effective_rank(energy) for energy in energies]
    largest_rate = z.shape[1] / 2 * math.log1p(float(z.square().sum(dim=-1).mean()) / eps**2)
    rates = class_rates(z, labels=labels, eps=eps)
    return Principles(
        overlap=sum(overlaps) / len(overlaps),
        largest_cosine=max(float(cosine[0]) for cosine in cosines),
        reduction=float(rate_reduction(z, labels=labels, eps=eps).value),
        ranks=tuple(ranks),
        effective_ranks=tuple(effective_ranks),
        rates=tuple(rates.rates[rates.weights > 0].tolist()),
        directions=directions,
        outside=tuple(float(energy[directions:].sum() / energy.sum()) for energy in energies),
        flatness=tuple(effective / rank for effective, rank in zip(effective_ranks, ranks, strict=True)),
        rate_fraction=float(coding_rate(z, eps=eps)) / largest_rate,
    )


def principles_with_nulls(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], *, eps: float = 0.5, directions: int | None = None, seed: int = 0
) -> PrinciplesWithNulls:
    """Measure labelled features and three nulls, the random ones drawn from `seed`."""
    z = z.detach().double()
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    noise = torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z.device)
    order = torch.randperm(len(z), generator=generator).to(labels.device)

    def measure(features: Tensor, labels: Tensor) -> Principles:
        return principles(features, labels, eps=eps, directions=directions)

    return PrinciplesWithNulls(
        features=measure(z, labels),
        random=measure(lengths * torch.nn.functional.normalize(noise, dim=-1), labels),
        shuffled=measure(z, labels[order]),
        collapsed=measure(_collapse(z, labels, lengths), labels),
    )


def _split_classes(z: Tensor, labels: Tensor) -> list[Tensor]:
    if labels.shape != z.shape[:1]:
        raise ShapeError(f"expected features (n, d) and labels (n); got {tuple(z.shape)} and {tuple(labels.shape)}")
    classes = [z[labels == k] for k in sorted(set(labels.tolist()))]
    if len(classes) < 2:
        raise InputError(f"expected features of at least two classes, to compare them; got {len(classes)}")
    if any(not bool(features.any()) for features in classes):
        raise InputError("expected a nonzero feature in every class: zero features span no subspace")
    return classes


def _rank(energy: Tensor) -> int:
    """Return the number of directions that hold 95 % of the energy, up to rounding."""
    cumulative = energy.cumsum(dim=0) / energy.sum()
    return int((cumulative < ENERGY - len(energy) * machine_epsilon(energy.dtype)).sum()) + 1


def _effective_rank(energy: Tensor) -> float:
    share = energy / energy.sum()
    return math.exp(float(torch.special.entr(share).sum()))


def _collapse(z: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """Replace every feature by its class's leading direction times its length."""
    collapsed = torch.empty_like(z)
    for k in set(labels.tolist()):
        in_class = labels == k
        collapsed[in_class] = lengths[in_class] * torch.linalg.svd(z[in_class], full_matrices=False)[2][:1]
    return collapsed

r"""Three principles of good features, as numbers of labelled features: discriminative, compressible, diverse.

They are said in words by Yu et al. 2020 (arXiv 2006.08558, section 1): features of different classes should be
uncorrelated, those of one class should lie in a small subspace, and within it they should be spread. Each has several
numbers here. A basis of a class holds the leading directions with 95 % of its energy, the sum of squared singular
values; features are not centred. All numbers stand beside three nulls: random features, labels of other features, and
classes that have collapsed to one direction each.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import class_rates, coding_rate, rate_reduction
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float, Int, ShapeError

__all__ = ["Principles", "PrinciplesWithNulls", "principles", "principles_with_nulls"]

ENERGY = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Principles:
    """What labelled features are like; tuples have one entry for each class that has features.

    discriminative:
        overlap: mean over pairs of |U_i^T U_j|^2 / min(r_i, r_j): 0 where orthogonal, 1 where one holds the other
        largest_cosine: of the smallest principal angle between any two classes
        reduction: Delta R, in nats
    compressible:
        effective_ranks: exp of the entropy of the squared singular values over their sum
        rates: R of each class alone, in nats
        outside: share of a class's energy outside of its leading `room` directions
    diverse:
        flatness: effective rank over r, the size of the class's basis: 1 where the spread is even, or a little more, as
            the basis leaves 5 % out
        filled: R / R_max, R_max = d / 2 log(1 + |z|^2 / eps^2) with the mean of |z|^2, 1 for features of length one
    """

    overlap: float
    largest_cosine: float
    reduction: float
    ranks: tuple[int, ...]
    effective_ranks: tuple[float, ...]
    rates: tuple[float, ...]
    room: int
    outside: tuple[float, ...]
    flatness: tuple[float, ...]
    filled: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrinciplesWithNulls:
    """The features, and the same numbers where a principle cannot hold.

    random: features of the same lengths in random directions
    shuffled: the same features, with labels of others
    collapsed: every feature laid along its class's leading direction, at its length: the rank of each class is one
    """

    found: Principles
    random: Principles
    shuffled: Principles
    collapsed: Principles


def principles(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], *, eps: float = 0.5, room: int | None = None
) -> Principles:
    """The numbers of labelled features; `room` is d over the number of classes unless it is given."""
    z = z.detach().double()
    classes = _classes(z, labels)
    room = max(1, z.shape[1] // len(classes)) if room is None else room
    decomposed = [torch.linalg.svd(rows, full_matrices=False) for rows in classes]
    energies = [values.square() for _, values, _ in decomposed]
    ranks = [_rank(energy) for energy in energies]
    bases = [v[:rank].mT for (_, _, v), rank in zip(decomposed, ranks, strict=True)]
    cosines = [torch.linalg.svdvals(bases[i].mT @ bases[j]) for j in range(len(bases)) for i in range(j)]
    overlaps = [float(cosine.square().mean()) for cosine in cosines]
    effective = [_effective_rank(energy) for energy in energies]
    whole = z.shape[1] / 2 * math.log1p(float(z.square().sum(dim=-1).mean()) / eps**2)
    rates = class_rates(z, labels=labels, eps=eps)
    return Principles(
        overlap=sum(overlaps) / len(overlaps),
        largest_cosine=max(float(cosine[0]) for cosine in cosines),
        reduction=float(rate_reduction(z, labels=labels, eps=eps).value),
        ranks=tuple(ranks),
        effective_ranks=tuple(effective),
        rates=tuple(rates.rates[rates.weights > 0].tolist()),
        room=room,
        outside=tuple(float(energy[room:].sum() / energy.sum()) for energy in energies),
        flatness=tuple(size / rank for size, rank in zip(effective, ranks, strict=True)),
        filled=float(coding_rate(z, eps=eps)) / whole,
    )


def principles_with_nulls(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], *, eps: float = 0.5, room: int | None = None, seed: int = 0
) -> PrinciplesWithNulls:
    """The numbers of labelled features beside those of three nulls, drawn from a seed."""
    z = z.detach().double()
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    drawn = torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z.device)
    order = torch.randperm(len(z), generator=generator).to(labels.device)
    return PrinciplesWithNulls(
        found=principles(z, labels, eps=eps, room=room),
        random=principles(lengths * torch.nn.functional.normalize(drawn, dim=-1), labels, eps=eps, room=room),
        shuffled=principles(z, labels[order], eps=eps, room=room),
        collapsed=principles(_collapsed(z, labels, lengths), labels, eps=eps, room=room),
    )


def _classes(z: Tensor, labels: Tensor) -> list[Tensor]:
    if labels.shape != z.shape[:1]:
        raise ShapeError(f"expected features (n, d) and labels (n); got {tuple(z.shape)} and {tuple(labels.shape)}")
    classes = [z[labels == k] for k in sorted(set(labels.tolist()))]
    if len(classes) < 2:
        raise InputError(f"expected features of two classes at least, to compare them; got {len(classes)}")
    if any(not bool(rows.any()) for rows in classes):
        raise InputError("expected a feature other than zero in every class: zeros span no subspace")
    return classes


def _rank(energy: Tensor) -> int:
    """How many directions hold 95 % of the energy; what is missed by rounding alone is not."""
    held = energy.cumsum(dim=0) / energy.sum()
    return int((held < ENERGY - len(energy) * machine_epsilon(energy.dtype)).sum()) + 1


def _effective_rank(energy: Tensor) -> float:
    share = energy / energy.sum()
    return math.exp(float(torch.special.entr(share).sum()))


def _collapsed(z: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    out = torch.empty_like(z)
    for k in set(labels.tolist()):
        own = labels == k
        out[own] = lengths[own] * torch.linalg.svd(z[own], full_matrices=False)[2][:1]
    return out

r"""Coding rates of more tokens than fit in memory.

R depends on Z^T Z and the number of tokens alone: d x d sums in double precision, one per class. Sums of several
processes are added; rates cannot be.
"""

import warnings

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import NOTABLE, ClassRates, RateReduction, RoundingNoiseWarning, check_eps
from clearhead.numerics.logdet import log_det_of_gram
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float, Int, ShapeError


class RateAccumulator:
    """Running sums over tokens of width `dim`, by class if there are classes, that give their coding rate.

    Singular values below about 1e-7 of the largest are lost in sums of squares. If eps is so small that the rate would
    count them, a `RoundingNoiseWarning` bounds the error.
    """

    def __init__(self, dim: int, *, classes: int = 0, device: torch.device | str | None = None) -> None:
        if dim < 1 or classes < 0:
            raise InputError(f"expected a width of at least 1 and classes of at least 0; got {dim} and {classes}")
        self.dim, self.classes = dim, classes
        self.products = torch.zeros(max(classes, 1), dim, dim, dtype=torch.float64, device=device)
        """Z^T Z of each class, or of all tokens."""
        self.counts = torch.zeros(max(classes, 1), dtype=torch.int64, device=device)

    @property
    def count(self) -> int:
        """Return the number of tokens added."""
        return int(self.counts.sum())

    def add(self, chunk: Float[Tensor, "n d"], labels: Int[Tensor, "n"] | None = None) -> None:
        """Add tokens, each with a label from 0 to classes - 1 if there are classes."""
        if chunk.ndim != 2 or chunk.shape[1] != self.dim:
            raise ShapeError(f"expected tokens (n, {self.dim}); got {tuple(chunk.shape)}")
        if (labels is None) is (self.classes > 0):
            raise InputError(f"expected labels if and only if there are classes; this accumulator has {self.classes}")
        rows = chunk.detach().to(self.products)
        if not bool(rows.isfinite().all()):
            raise InputError("expected finite tokens; got NaN or infinity")
        if labels is None:
            self.products[0].addmm_(rows.mT, rows)
            self.counts[0] += len(rows)
            return
        if labels.is_floating_point() or labels.is_complex():
            raise InputError(f"expected integer labels; got {labels.dtype}")
        classes = labels.to(self.counts)
        if classes.shape != rows.shape[:1] or (
            len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < self.classes
        ):
            raise InputError(f"expected one label from 0 to {self.classes - 1} for each of {len(rows)} tokens")
        for k in set(classes.tolist()):
            members = rows[classes == k]
            self.products[k].addmm_(members.mT, members)
        self.counts += classes.bincount(minlength=self.classes)

    def merge(self, other: "RateAccumulator") -> None:
        """Add the sums of another accumulator."""
        if (other.dim, other.classes) != (self.dim, self.classes):
            ours, theirs = (f"width {x.dim} with {x.classes} classes" for x in (self, other))
            raise InputError(f"expected an accumulator of {ours}; got one of {theirs}")
        self.products += other.products.to(self.products)
        self.counts += other.counts.to(self.counts)

    def all_reduce(self, group: "torch.distributed.ProcessGroup | None" = None) -> None:
        """Add up the sums of all processes of the group. Call once, at the end."""
        torch.distributed.all_reduce(self.products, group=group)
        torch.distributed.all_reduce(self.counts, group=group)

    def coding_rate(self, *, eps: float = 0.5) -> Float[Tensor, ""]:
        """Return R of all tokens in double precision."""
        check_eps(eps)
        if self.count == 0:
            raise InputError("expected at least one token; got none")
        return self._rates(self.products.sum(dim=0, keepdim=True), self.counts.sum().reshape(1), eps)[0]

    def class_rates(self, *, eps: float = 0.5) -> ClassRates:
        """Return the rate and the fraction of each class; zero for a class without tokens."""
        check_eps(eps)
        if self.classes == 0:
            raise InputError("this accumulator has no classes; create it with classes=k and add labels")
        return ClassRates(
            rates=self._rates(self.products, self.counts, eps), weights=self.counts.double() / max(self.count, 1)
        )

    def rate_reduction(self, *, eps: float = 0.5) -> RateReduction:
        """Return R, R^c and their difference."""
        compression = self.class_rates(eps=eps).compression
        return RateReduction(expansion=self.coding_rate(eps=eps), compression=compression)

    def _rates(self, products: Tensor, counts: Tensor, eps: float) -> Tensor:
        alpha = self.dim / (counts.double().clamp_min(1) * eps**2)
        self._warn(products, alpha, eps)
        return torch.where(counts > 0, log_det_of_gram(products, a=alpha) / 2, 0)

    def _warn(self, products: Tensor, alpha: Tensor, eps: float) -> None:
        """Warn if eigenvalues below the rounding error could add to the rate."""
        largest = torch.linalg.matrix_norm(products, 2)
        hidden = float((alpha * self.dim * machine_epsilon(torch.float64) * largest).max())
        if hidden > NOTABLE:
            warnings.warn(
                f"sums of squares hide singular values that eps = {eps:g} would count: each may add up to "
                f"{0.5 * torch.tensor(hidden).log1p():.3g} nats; use `coding_rate` of the tokens, or a larger eps",
                RoundingNoiseWarning,
                stacklevel=4,
            )

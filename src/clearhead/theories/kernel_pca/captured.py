r"""The captured variance of many values with the same keys, from products of matrices alone.

With E_ij = exp(s k_i.k_j) the axes of values V have inner products V^T E V, and with the keys phi(k_j) those of
G^-1 E V, the outputs of attention from keys to keys. So

    EV(V) = tr[(V^T E V)^-1 (H G^-1 E V)^T (H G^-1 E V)] / (sum of the e largest eigenvalues of H K H).

The compiled kernel computes the trace; without it, torch does. The inverse squares the condition number of the axes.
Values whose axes are nearly dependent, as for keys of very different length, are measured by `spans`, which keeps their
digits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.kernels import calls
from clearhead.kernels.library import kernel
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import captured_fraction
from clearhead.shapes import Bool, Float
from clearhead.theories.kernel_pca.space import key_space
from clearhead.theories.kernel_pca.spans import span_of

AT_ONCE = 2**18
"""Largest number of entries of the kernels that are held at once, unless a single head has more."""
LEAST_PIVOT = 1e-6
"""Smallest squared pivot of the axes at length one: below it, rounding errors could exceed 1e-8 of the number."""


def captured_by_head(
    k: Float[Tensor, "h m d"],
    values: Callable[[int], Float[Tensor, "t e m"]],
    *,
    scale: float,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "t h"]:
    """Return EV(V) of every draw and head; NaN if the keys have no variance.

    values: of a head, by draw; made head by head to hold few at a time
    """
    h, m, _ = k.shape
    step = max(1, AT_ONCE // m**2)
    return torch.cat(
        [
            _Keys.of(k[start : start + step], scale=scale, sinks=None if sinks is None else sinks[start : start + step])
            .captured(lambda head, start=start: values(start + head))  # type: ignore[misc]
            for start in range(0, h, step)
        ],
        dim=-1,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The keys of heads: cosines and logarithms of lengths of phi_0(k_j), and of lengths of phi(k_j) = phi_0 / g."""

    k: Float[Tensor, "h m d"]
    scale: float
    sinks: Float[Tensor, "h"] | None
    cosines: Float[Tensor, "h m m"]
    log_length: Float[Tensor, "h m"]
    log_phi: Float[Tensor, "h m"]

    @classmethod
    def of(cls, k: Float[Tensor, "h m d"], *, scale: float, sinks: Float[Tensor, "h"] | None = None) -> "_Keys":
        """Compute them in float64. A sink adds to g like a key without a value."""
        k = k.double()
        log_kernel = scale * k @ k.mT
        log_length = log_kernel.diagonal(dim1=-2, dim2=-1) / 2
        log_g = torch.logsumexp(log_kernel, dim=-1)
        if sinks is not None:
            log_g = torch.logaddexp(log_g, sinks.double().unsqueeze(-1))
        cosines = log_kernel.sub_(log_length.unsqueeze(-1)).sub_(log_length.unsqueeze(-2)).exp_()
        return cls(k=k, scale=scale, sinks=sinks, cosines=cosines, log_length=log_length, log_phi=log_length - log_g)

    def captured(self, values: Callable[[int], Float[Tensor, "t e m"]]) -> Float[Tensor, "t h"]:
        """Return EV(V) of every draw and head; NaN if the keys have no variance."""
        eigenvalues, varied = self._spectrum()
        numbers, head = [], 0
        while head < len(self.k):
            first = values(head)
            heads = slice(head, min(head + max(1, AT_ONCE // first.numel()), len(self.k)))
            others = [values(other) for other in range(head + 1, heads.stop)]
            of_heads = torch.stack([first, *others]) if others else first.unsqueeze(0)
            captured, safe = self._by_products(heads, of_heads, eigenvalues[heads])
            for doubtful in (~safe).any(dim=-1).nonzero().flatten().tolist():
                draws = ~safe[doubtful]
                captured[doubtful, draws] = self._by_spans(head + doubtful, values, draws)
            numbers.append(captured)
            head = heads.stop
        return torch.cat(numbers).masked_fill(~varied.unsqueeze(-1), torch.nan).mT

    def _spectrum(self) -> tuple[Float[Tensor, "h m"], Bool[Tensor, "h"]]:
        """Return the eigenvalues of the centred Gram matrix, and whether the keys have variance."""
        phi = _relative_to_largest(self.log_phi).unsqueeze(-1)
        gram = (phi * self.cosines).mul_(phi.mT)
        m = gram.shape[-1]
        least = 8 * m**2 * machine_epsilon(gram.dtype) * gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        centred = gram.sub_(gram.mean(dim=-2, keepdim=True))
        centred.sub_(centred.mean(dim=-1, keepdim=True))
        # As in `key_space`: variance within the rounding error of equal keys is none.
        varied = centred.diagonal(dim1=-2, dim2=-1).sum(dim=-1) > least
        return torch.linalg.eigvalsh(centred).clamp_min(0), varied

    def _by_products(
        self, heads: slice, values: Float[Tensor, "h t e m"], eigenvalues: Float[Tensor, "h m"]
    ) -> tuple[Float[Tensor, "h t"], Bool[Tensor, "h t"]]:
        """Return EV(V), and whether rounding errors are small."""
        lengths, phi = (_relative_to_largest(x[heads]) for x in (self.log_length, self.log_phi))
        compiled = kernel() if values.device.type == "cpu" else None
        if compiled is None or compiled.instructions == "generic":  # torch has wider instructions then
            energy, pivot = _energies(values, self.cosines[heads], lengths, phi)
        else:
            energy, pivot = calls.span_energies(compiled, values, self.cosines[heads], lengths, phi)
        captured = energy / eigenvalues[:, -values.shape[-2] :].sum(dim=-1, keepdim=True)
        return captured, (pivot > LEAST_PIVOT) & captured.isfinite()

    def _by_spans(
        self, head: int, values: Callable[[int], Float[Tensor, "t e m"]], draws: Bool[Tensor, "t"]
    ) -> Float[Tensor, "s"]:
        """Return EV(V) of some draws of a head with all digits."""
        at = slice(head, head + 1)
        space = key_space(self.k[at], scale=self.scale, sinks=None if self.sinks is None else self.sinks[at])
        spans = span_of(space, values(head).contiguous()[draws].mT.unsqueeze(1))
        return captured_fraction(space.rows, spans).squeeze(-1)


def _energies(
    values: Float[Tensor, "h t e m"],
    cosines: Float[Tensor, "h m m"],
    lengths: Float[Tensor, "h m"],
    phi: Float[Tensor, "h m"],
) -> tuple[Float[Tensor, "h t"], Float[Tensor, "h t"]]:
    """Return the trace in EV(V), and the least squared pivot of the axes at length one; see `calls.span_energies`.

    lengths, phi: lengths of phi_0(k_j) and phi(k_j), each relative to the largest
    """
    weighted = values * lengths[:, None, None]
    # The cosines are symmetric, and BLAS is faster with a transposed factor.
    product = (weighted.flatten(1, 2) @ cosines.mT).view_as(weighted)
    axes = weighted @ product.mT
    factor, failed = torch.linalg.cholesky_ex(axes)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square() / axes.diagonal(dim1=-2, dim2=-1)
    with_keys = product.mul_(phi[:, None, None])
    with_keys = with_keys.sub_(with_keys.mean(dim=-1, keepdim=True))
    solved = torch.linalg.solve_triangular(factor, with_keys, upper=False)
    energy: Tensor = torch.linalg.vector_norm(solved, dim=(-2, -1)).square()
    return energy, torch.where(failed == 0, pivots.amin(dim=-1), torch.nan)


def _relative_to_largest(log: Float[Tensor, "*h m"]) -> Float[Tensor, "*h m"]:
    return (log - log.amax(dim=-1, keepdim=True)).exp()

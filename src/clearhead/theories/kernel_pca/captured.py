r"""The captured variance of many values with the same keys, from products of matrices alone.

With E_ij = exp(s k_i.k_j) the axes of values V have inner products V^T E V, and with the keys phi(k_j) those of
G^-1 E V, the outputs of attention from keys to keys. So

    EV(V) = tr[(V^T E V)^-1 (H G^-1 E V)^T (H G^-1 E V)] / (sum of the e largest eigenvalues of H K H).

E V is one product for all draws of a control. The inverse squares the condition number of the axes. Values whose axes
are nearly dependent, as for keys of very different length, are measured by `spans`, which keeps their digits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import captured_fraction
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import key_space
from clearhead.theories.kernel_pca.spans import span_of

__all__ = ["captured_by_head"]

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
        phi = _relative_to_largest(self.log_phi).unsqueeze(-1)
        gram = phi * self.cosines * phi.mT
        centred = _centre(_centre(gram).mT)
        # As in `key_space`: variance within the rounding error of equal keys is none.
        m = gram.shape[-1]
        trace, least = (x.diagonal(dim1=-2, dim2=-1).sum(dim=-1) for x in (centred, gram))
        varied = trace > 8 * m**2 * machine_epsilon(gram.dtype) * least
        eigenvalues = torch.linalg.eigvalsh(centred).clamp_min(0)
        numbers, waiting = [], []
        for head in range(len(self.k)):
            waiting.append(values(head))
            if head + 1 == len(self.k) or (len(waiting) + 1) * waiting[0].numel() > AT_ONCE:
                heads = slice(head + 1 - len(waiting), head + 1)
                numbers.append(self._of_heads(heads, torch.stack(waiting), eigenvalues[heads]))
                waiting = []
        return torch.cat(numbers).masked_fill(~varied.unsqueeze(-1), torch.nan).mT

    def _of_heads(
        self, heads: slice, values: Float[Tensor, "h t e m"], eigenvalues: Float[Tensor, "h m"]
    ) -> Float[Tensor, "h t"]:
        e = values.shape[-2]
        lengths, phi = (_relative_to_largest(x[heads])[:, None, None] for x in (self.log_length, self.log_phi))
        product = (values.flatten(1, 2) @ (lengths[:, 0].mT * self.cosines[heads])).view_as(values)
        axes = values @ (product * lengths).mT
        square = axes.diagonal(dim1=-2, dim2=-1)
        unit = torch.where(square > 0, square, 1).rsqrt()
        factor, _ = torch.linalg.cholesky_ex(axes * unit.unsqueeze(-1) * unit.unsqueeze(-2))
        with_keys = product.mul_(phi)
        with_keys = with_keys.sub_(with_keys.mean(dim=-1, keepdim=True))
        # The axes are at length one in the factor, and not in their products with the keys.
        solved = torch.linalg.solve_triangular(factor / unit.unsqueeze(-1), with_keys, upper=False)
        largest = eigenvalues[:, -e:].sum(dim=-1, keepdim=True)
        captured: Tensor = torch.linalg.vector_norm(solved, dim=(-2, -1)).square() / largest
        pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(dim=-1)
        safe = (pivots > LEAST_PIVOT) & (square > 0).all(dim=-1) & captured.isfinite()
        for head in (~safe).any(dim=-1).nonzero().flatten().tolist():
            at = slice(heads.start + head, heads.start + head + 1)
            space = key_space(self.k[at], scale=self.scale, sinks=None if self.sinks is None else self.sinks[at])
            doubtful = ~safe[head]
            spans = span_of(space, values[head, doubtful].mT.unsqueeze(1))
            captured[head, doubtful] = captured_fraction(space.rows, spans).squeeze(-1)
        return captured


def _relative_to_largest(log: Float[Tensor, "*h m"]) -> Float[Tensor, "*h m"]:
    return (log - log.amax(dim=-1, keepdim=True)).exp()


def _centre(x: Float[Tensor, "h m f"]) -> Float[Tensor, "h m f"]:
    return x - x.mean(dim=-2, keepdim=True)

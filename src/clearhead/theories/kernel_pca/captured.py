r"""The captured variance of many values with the same keys, from products of matrices alone.

With E_ij = exp(s k_i.k_j) the axes of values V have inner products V^T E V, and with the keys phi(k_j) those of
G^-1 E V, the outputs of attention from keys to keys. So

    EV(V) = tr[(V^T E V)^-1 (H G^-1 E V)^T (H G^-1 E V)] / (sum of the e largest eigenvalues of H K H).

E V is one product for all draws of a control. The inverse squares the condition number of the axes. Values whose axes
are nearly dependent, as for keys of very different length, are measured by `spans`, which keeps their digits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import captured_fraction
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import key_space
from clearhead.theories.kernel_pca.spans import span_of

__all__ = ["HeadKeys"]

LEAST_PIVOT = 1e-6
"""Smallest squared pivot of the axes at length one: below it, rounding errors could exceed 1e-8 of the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKeys:
    """The keys of one head: cosines and logarithms of lengths of phi_0(k_j), and of lengths of phi(k_j) = phi_0 / g."""

    k: Float[Tensor, "m d"]
    scale: float
    sink: Float[Tensor, ""] | None
    cosines: Float[Tensor, "m m"]
    log_length: Float[Tensor, "m"]
    log_phi: Float[Tensor, "m"]

    @classmethod
    def of(cls, k: Float[Tensor, "m d"], *, scale: float, sink: Float[Tensor, ""] | None = None) -> "HeadKeys":
        """Compute them in float64. A sink adds to g like a key without a value."""
        k = k.double()
        log_kernel = scale * k @ k.mT
        log_length = log_kernel.diagonal() / 2
        log_g = torch.logsumexp(log_kernel, dim=-1)
        if sink is not None:
            log_g = torch.logaddexp(log_g, sink.double())
        return cls(
            k=k,
            scale=scale,
            sink=sink,
            cosines=(log_kernel - log_length.unsqueeze(-1) - log_length).exp(),
            log_length=log_length,
            log_phi=log_length - log_g,
        )

    def captured(self, values: Float[Tensor, "m t e"]) -> Float[Tensor, "t"]:
        """Return EV(V) of every draw; NaN if the keys have no variance."""
        m, t, e = values.shape
        lengths, phi = (_relative_to_largest(x).unsqueeze(-1) for x in (self.log_length, self.log_phi))
        gram = phi * self.cosines * phi.mT
        centred = _centre(_centre(gram).mT)
        # As in `key_space`: variance within the rounding error of equal keys is none.
        if not bool(centred.trace() > 8 * m**2 * machine_epsilon(gram.dtype) * gram.trace()):
            return values.new_full((t,), torch.nan)
        largest = torch.linalg.eigvalsh(centred)[-e:].clamp_min(0).sum()
        weighted = values.reshape(m, t * e) * lengths
        product = self.cosines @ weighted
        axes = weighted.view(m, t, e).permute(1, 2, 0) @ product.view(m, t, e).transpose(0, 1)
        square = axes.diagonal(dim1=-2, dim2=-1)
        unit = torch.where(square > 0, square, 1).rsqrt()
        factor, _ = torch.linalg.cholesky_ex(axes * unit.unsqueeze(-1) * unit.unsqueeze(-2))
        with_keys = product.mul_(phi)
        with_keys = with_keys.sub_(with_keys.mean(dim=0)).mul_(unit.reshape(-1)).view(m, t, e)
        solved = torch.linalg.solve_triangular(factor, with_keys.permute(1, 2, 0), upper=False)
        captured: Tensor = torch.linalg.vector_norm(solved, dim=(-2, -1)).square() / largest
        pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(dim=-1)
        safe = (pivots > LEAST_PIVOT) & (square > 0).all(dim=-1) & captured.isfinite()
        if not bool(safe.all()):
            sinks = None if self.sink is None else self.sink.reshape(1)
            doubtful = values.transpose(0, 1)[~safe].unsqueeze(1)
            space = key_space(self.k[None], scale=self.scale, sinks=sinks)
            captured[~safe] = captured_fraction(space.rows, span_of(space, doubtful)).squeeze(-1)
        return captured


def _relative_to_largest(log: Float[Tensor, "m"]) -> Float[Tensor, "m"]:
    return (log - log.amax()).exp()


def _centre(x: Float[Tensor, "m f"]) -> Float[Tensor, "m f"]:
    return x - x.mean(dim=0)

r"""Kernel principal component analysis of keys (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762, theorem 1).

The keys k_1 .. k_N, the kernel k(x, y) = exp(s x.y) with s = `scale`, g(x) = sum_j k(x, k_j), the
features phi(x) = phi0(x) / g(x), the axes u_d = sum_j a_dj phi~(k_j) with phi~ centred over the keys, and
V = G A - G 1_N A with G = diag(1 / g(k_j)) are the source's symbols; `energy` is N lambda_d.

Differences from the source: 1 is in the null space of the centred Gram matrix, so the second term of V vanishes and
V = G A. The source does not treat the rank; here axes without variance are zero. It leaves the length of the axes open
(its proof has unit axes, Saritas and Yildiz 2025 take eigenvectors of length one): see `axis_norm`.
"""

import math
import warnings
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.errors import InputError
from clearhead.numerics.eigenpairs import Eigenpairs, identified, same_sign
from clearhead.numerics.gram import GramScales, centred_gram
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.numerics.partial import all_eigenvalues
from clearhead.numerics.threads import one_thread_each
from clearhead.operators.kernel_pca_solvers import Axes, ByExplained, ByRank, Solver, choose_solver, leading_axes
from clearhead.shapes import Bool, Float, ShapeError, broadcasts, check_finite

__all__ = [
    "AxisNorm",
    "ByExplained",
    "ByRank",
    "FlatSpectrumWarning",
    "KernelPCA",
    "KernelSpectrum",
    "kernel_pca",
    "kernel_pca_spectrum",
]

AxisNorm = Literal["unit", "eigenvector"]

CHUNK = 2**22
"""Entries of Gram matrices per thread, 32 MiB: larger batches are decomposed chunk by chunk."""


class FlatSpectrumWarning(UserWarning):
    """Axes with nearly equal eigenvalues, of which only the common subspace is known, or that did not converge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPCA:
    r"""The first r principal axes of m keys in feature space, largest variance first, in double precision.

    Quantities that grow exponentially with the keys are stored with their logarithm. Axes beyond `rank` and rows
    of hidden keys are zero. The largest entry of every a_d is positive.
    """

    coefficients: Float[Tensor, "*b m r"]
    """a_d for axis_norm "eigenvector"; a_d exp(log_scale / 2) for unit axes."""
    energy: Float[Tensor, "*b r"]
    """N lambda_d exp(-log_scale), the eigenvalues of the centred Gram matrix."""
    log_scale: Float[Tensor, "*b"]
    log_g: Float[Tensor, "*b m"]
    """log g(k_j), zero at hidden keys."""
    values: Float[Tensor, "*b m r"]
    """V: v_dj = (a_dj - mean a_d) / g(k_j). Zero where that underflows, never infinite."""
    key_mean: Float[Tensor, "*b r"]
    """c_d, the mean of h_d(k_j) over the keys, which centring the queries subtracts from projections."""
    explained: Float[Tensor, "*b r"]
    """Share of the variance on each axis."""
    rank: Tensor
    """Number of axes, of the r, whose variance exceeds rounding errors, (*b)."""
    residual: Float[Tensor, "*b r"]
    """||K a - e a|| / (||a|| e_1) for each axis, K the centred Gram matrix."""
    identified: Bool[Tensor, "*b r"]
    """True if the eigenvalue is distinct from its neighbours; if not, only their common subspace is known."""
    converged: Bool[Tensor, "*b"]


NAMES = tuple(field.name for field in fields(KernelPCA))
WITHOUT_AXES = frozenset({"log_scale", "log_g", "rank", "converged"})


def kernel_pca(
    k: Float[Tensor, "*b m d"],
    *,
    axes: Axes,
    scale: float | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    axis_norm: AxisNorm = "unit",
    learn_axes: bool = False,
    solver: Solver | None = None,
    precision: torch.dtype | None = None,
) -> KernelPCA:
    r"""Return the principal axes of keys in the feature space of softmax attention, and the values that encode them.

    .. math:: \tilde K a_d = N\lambda_d\, a_d, \qquad [\tilde K] = H K_\varphi H, \qquad
        [K_\varphi]_{ij} = \frac{e^{s k_i \cdot k_j}}{g(k_i)\, g(k_j)}, \qquad v_{dj} = \frac{a_{dj} - \bar a_d}{g(k_j)}

    axes: the number of axes, of which those beyond the rank are zero; or `ByRank()` or `ByExplained(share)`
    scale: s, above zero; 1/sqrt(d) if None
    mask: True at keys, broadcasts to (..., m); hidden keys count in no sum, and N counts the others
    axis_norm: "unit" for ||u_d|| = 1, that is ||a_d||^2 = 1 / (N lambda_d); "eigenvector" for ||a_d|| = 1
    learn_axes: True if the result is differentiable in k, False if it is a constant. The derivative of an eigenvector
        grows as 1 / gap; see `dense_eigenpairs` for the terms that are left out
    solver: "dense" decomposes all matrices completely, in one batch; "partial" computes the leading axes only;
        "matrix_free" iterates in memory of order m, see `krylov_eigenpairs`. None chooses by m and the number of axes
    precision: torch.float64 or torch.float32, of the solver. "dense" always uses float64, "partial" does by default,
        and "matrix_free" uses float32 unless k is float64 or float32 would lose some of the axes

    Scores, g and results are float64, except g without a matrix. Axes whose energy is below about m eps of the trace of
    K_phi, or below their residual, cannot be distinguished from rounding errors and count as beyond the rank: with long
    keys, whose energies differ by orders of magnitude, that may be most. `FlatSpectrumWarning` reports axes with
    variance that cannot be distinguished from their neighbours, and iterations that did not converge; `residual` is the
    error of each axis.
    """
    scale, visible = _check(k, scale, mask, axes, axis_norm)
    leading, (m, d) = k.shape[:-2], k.shape[-2:]
    solver = choose_solver(solver, m=m, axes=axes, learn_axes=learn_axes, device=k.device)
    flat, masks = k.reshape(math.prod(leading), m, d), visible.reshape(math.prod(leading), m)
    threaded = (
        solver != "matrix_free" and not learn_axes and k.device.type == "cpu" and not torch.compiler.is_compiling()
    )
    step = 1 if solver == "matrix_free" else max(1, CHUNK // max(m * m, 1))
    if threaded:
        step = max(1, min(step, math.ceil(len(flat) / torch.get_num_threads())))

    def decompose(keys: Tensor, key_mask: Tensor) -> KernelPCA:
        scales, pairs = leading_axes(
            keys,
            None if mask is None else key_mask,
            axes=axes,
            scale=scale,
            solver=solver,
            precision=precision,
            differentiable=learn_axes,
        )
        return _assemble(scales, pairs, key_mask, axes, axis_norm)

    with torch.set_grad_enabled(learn_axes and torch.is_grad_enabled()):
        chunks = list(zip(torch.split(flat, step), torch.split(masks, step), strict=True))
        if threaded and len(chunks) > 1:
            results = one_thread_each(lambda chunk: decompose(*chunk), chunks)
        else:
            results = [decompose(*chunk) for chunk in chunks]
        result = _join(results, leading, axes)
    if not torch.compiler.is_compiling():
        _warn(result)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpectrum:
    """The energies of all principal axes of m keys, largest first, zero beyond the rank (see `KernelPCA`)."""

    energy: Float[Tensor, "*b m"]
    log_scale: Float[Tensor, "*b"]
    rank: Tensor


def kernel_pca_spectrum(
    k: Float[Tensor, "*b m d"], *, scale: float | None = None, mask: Bool[Tensor, "..."] | None = None
) -> KernelSpectrum:
    """Return the energies N lambda_d exp(-log_scale) of `kernel_pca`, without the axes, in less than half its time."""
    scale, visible = _check(k, scale, mask, 1, "unit")
    leading, (m, d) = k.shape[:-2], k.shape[-2:]
    flat, masks = k.detach().reshape(math.prod(leading), m, d), visible.reshape(math.prod(leading), m)
    step, energy, log_scale = max(1, CHUNK // max(m * m, 1)), [], []
    for keys, key_mask in zip(torch.split(flat, step), torch.split(masks, step), strict=True):
        energies_of_keys, log_scale_of_keys = run_within_memory(
            partial(_energies, keys, None if mask is None else key_mask, scale),
            task=f"the spectrum of {m} keys, which needs their Gram matrix,",
            remedy="pass fewer keys, or use kernel_pca with a number of axes, which can do without the matrix",
            device=k.device,
            needed=bytes_of_matrices((len(keys), m, m), torch.float64),
        )
        energy.append(energies_of_keys)
        log_scale.append(log_scale_of_keys)
    energies = torch.cat(energy).reshape((*leading, m))
    rank = (energies > 0).sum(dim=-1)
    return KernelSpectrum(energy=energies, log_scale=torch.cat(log_scale).reshape(leading), rank=rank)


def _energies(k: Tensor, visible: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return the energies of keys (b, m, d) and their log_scale."""
    gram = centred_gram(k.double(), scale=scale, visible=visible)
    eigenvalues = all_eigenvalues(gram.matrix)
    return torch.where(eigenvalues > gram.scales.rounding.unsqueeze(-1), eigenvalues, 0), gram.scales.log_scale


def _check(k: Tensor, scale: float | None, mask: Tensor | None, axes: Axes, axis_norm: str) -> tuple[float, Tensor]:
    """Return the scale and the mask (..., m). Raise `ShapeError` or ValueError unless the arguments fit."""
    if k.ndim < 2 or k.shape[-1] == 0:
        raise ShapeError(f"expected k (..., m, d) with d > 0; got k {tuple(k.shape)}")
    if not k.is_floating_point():
        raise InputError(f"expected k of a floating dtype; got {k.dtype}")
    if mask is not None and not broadcasts(tuple(mask.shape), tuple(k.shape[:-1])):
        got = f"k {tuple(k.shape)}, mask {tuple(mask.shape)}"
        raise ShapeError(f"expected a mask that broadcasts to (..., m) = {tuple(k.shape[:-1])}; got {got}")
    if mask is not None and mask.dtype is not torch.bool:
        raise InputError(f"expected a boolean mask, True at keys; got {mask.dtype}")
    if isinstance(axes, bool) or not isinstance(axes, int | ByRank | ByExplained):
        raise InputError(f"expected axes as a whole number, ByRank() or ByExplained(share); got {axes!r}")
    if isinstance(axes, int) and axes < 1:
        raise InputError(f"expected one axis or more; got {axes}")
    if axis_norm not in ("unit", "eigenvector"):
        raise InputError(f'expected axis_norm "unit" or "eigenvector"; got {axis_norm!r}')
    scale = 1 / math.sqrt(k.shape[-1]) if scale is None else scale
    if not (scale > 0 and math.isfinite(scale)):
        raise InputError(f"expected a scale above zero, with which exp(scale x.y) is a kernel; got {scale}")
    visible = torch.ones(k.shape[:-1], dtype=torch.bool, device=k.device) if mask is None else mask
    visible = visible.expand(k.shape[:-1])
    check_finite("keys", k.detach() if mask is None else k.detach().masked_fill(~visible.unsqueeze(-1), 0))
    return scale, visible


def _select(pairs: Eigenpairs, scales: GramScales, axes: Axes) -> Tensor:
    """Return a mask (b, r) of the axes with variance, limited by the share to explain."""
    energy = pairs.values.detach()
    selected = energy > torch.maximum(scales.rounding.unsqueeze(-1), pairs.residual)
    if isinstance(axes, ByExplained):
        # The axis that reaches the share is included: the axes before it explain less.
        before = energy.cumsum(dim=-1) - energy
        selected = selected & (before < (1 - 1e-12) * axes.share * scales.trace.unsqueeze(-1))
    return selected


def _assemble(scales: GramScales, pairs: Eigenpairs, visible: Tensor, axes: Axes, axis_norm: AxisNorm) -> KernelPCA:
    selected = _select(pairs, scales, axes)
    if not isinstance(axes, int):
        largest = int(selected.sum(dim=-1).max()) if selected.numel() else 0
        pairs, selected = pairs.first(largest), selected[..., :largest]
    energy = torch.where(selected, pairs.values, 0)
    vectors = (pairs.vectors * same_sign(pairs.vectors)).masked_fill(~selected.unsqueeze(-2), 0)
    vectors = vectors.masked_fill(~visible.unsqueeze(-1), 0)
    unit = axis_norm == "unit"
    a = vectors * torch.where(selected, pairs.values, 1).rsqrt().unsqueeze(-2) if unit else vectors
    count = visible.sum(dim=-1)[..., None, None].clamp_min(1)
    a = (a - a.sum(dim=-2, keepdim=True) / count).masked_fill(~visible.unsqueeze(-1), 0)
    # -log_scale / 2 - log_g is at most -s|k_j|^2 / 2, so that the exponential cannot overflow.
    log_weight = -scales.log_g - (scales.log_scale.unsqueeze(-1) / 2 if unit else 0)
    log_size = scales.log_scale / 2 if unit else scales.log_scale
    first = pairs.values.detach()[..., :1]
    return KernelPCA(
        coefficients=a,
        energy=energy,
        log_scale=scales.log_scale,
        log_g=scales.log_g,
        values=a * log_weight.exp().unsqueeze(-1),
        key_mean=(scales.column_mean.unsqueeze(-1) * a).sum(dim=-2) * log_size.exp().unsqueeze(-1),
        explained=torch.where(selected, energy / torch.where(selected, scales.trace.unsqueeze(-1), 1), 0),
        rank=selected.sum(dim=-1),
        residual=torch.where(selected, pairs.residual / torch.where(selected, first, 1), 0),
        identified=identified(pairs) & selected,
        converged=pairs.converged,
    )


def _join(results: list[KernelPCA], leading: torch.Size, axes: Axes) -> KernelPCA:
    """Concatenate the results of chunks, padded to the number of axes, or to the largest number of any chunk."""
    count = axes if isinstance(axes, int) else max(result.energy.shape[-1] for result in results)
    joined = {}
    for name in NAMES:
        values = [getattr(result, name) for result in results]
        if name not in WITHOUT_AXES:
            values = [pad(x, (0, count - x.shape[-1])) for x in values]
        value = torch.cat(values)
        joined[name] = value.reshape(leading + value.shape[1:])
    return KernelPCA(**joined)


def _warn(result: KernelPCA) -> None:
    """Warn if an iteration did not converge, or if an axis cannot be distinguished from its neighbours."""
    if not bool(result.converged.all()):
        warnings.warn(
            f"flat spectrum: the iteration did not converge, relative residual {float(result.residual.max()):.1e}; "
            'use fewer axes, or solver="partial", which needs memory for the Gram matrix',
            FlatSpectrumWarning,
            stacklevel=3,
        )
        return
    ambiguous = ((result.energy > 0) & ~result.identified).sum(dim=-1)
    if bool((ambiguous > 0).any()):
        warnings.warn(
            f"flat spectrum: up to {int(ambiguous.max())} axes of one input have nearly equal eigenvalues, so only the "
            "subspace that they span is known; compare projections onto it, or use fewer axes",
            FlatSpectrumWarning,
            stacklevel=3,
        )

r"""log det(I + a X^T X), the quantity in every coding rate, and its gradient.

It is the sum of log(1 + a s_i^2) over the singular values of X. Three methods are tried in order until one is exact
enough: a Cholesky factor in the precision of X, one in double precision, and the singular values, which cannot fail. A
factor allows an estimate of its error. Its squared pivots p_i are the remainders of the diagonal entries m_i of
I + a X^T X. The error of each is about eps m_i times the largest ratio m_j / p_j up to it, since small pivots divide
later entries. So the error of the sum of logarithms is about eps times the sum of r_i max(r_1, ..., r_i) with
r_i = m_i / p_i.

The matrix is that of the smaller side of X: I + a X^T X and I + a X X^T have the same determinant (Sylvester).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float

LOST = {torch.float32: 2.0**-16, torch.float64: 2.0**-36}
"""Largest relative error of a factor that is accepted, by dtype of the result: five and eleven digits remain."""


def log_det(x: Float[Tensor, "*b n d"], *, a: Float[Tensor, "*#b"] | float = 1.0) -> Float[Tensor, "*b"]:
    r"""Return the logarithm of a determinant that is at least one.

    .. math:: \log\det(I + a X^T X) = \sum_i \log(1 + a \sigma_i(X)^2), \qquad X \in R^{n \times d},\ a \ge 0

    The result has the precision of x, single precision at least: products are never formed in half precision, even
    under autocast. Its gradient is 2 a X (I + a X^T X)^-1. Second derivatives work if a factor was exact enough, and
    raise `InputError` if singular values were needed; so do values that are not finite. torch.func.grad and vmap work.
    """
    if isinstance(a, Tensor) and a.requires_grad:
        raise InputError("expected a without gradient; call a.detach(), or multiply x by its square root")
    wide = _widened(x)
    needs_gradient = torch.is_grad_enabled() and wide.requires_grad
    value: Tensor = _LogDet.apply(wide, _factor(x, a), needs_gradient)[0]  # type: ignore[no-untyped-call]
    return value


def log_det_gradient(x: Float[Tensor, "*b n d"], *, a: Float[Tensor, "*#b"] | float = 1.0) -> Float[Tensor, "*b n d"]:
    """Return the gradient of `log_det` in x, 2 a X (I + a X^T X)^-1, without an autograd graph."""
    with torch.no_grad(), _in_full(x):
        return 2 * _solve(_widened(x), _factor(x, a), pull=True).pull


def log_det_slow(x: Float[Tensor, "*b n d"], *, a: Float[Tensor, "*#b"] | float = 1.0) -> Float[Tensor, "*b"]:
    """Return the definition: torch's determinant of I + a X^T X, in the precision of x."""
    factor = a[..., None, None] if isinstance(a, Tensor) else a
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return torch.logdet(identity + factor * (x.mT @ x))


def log_det_of_gram(gram: Float[Tensor, "*b d d"], *, a: Float[Tensor, "*#b"] | float) -> Float[Tensor, "*b"]:
    """Return log det(I + a G) of a positive semi-definite G in double precision, without an autograd graph.

    If a factor is not exact enough, eigenvalues of G below d eps times the largest count as zero: without X, small
    singular values cannot be distinguished from rounding.
    """
    with torch.no_grad():
        factor = a[..., None, None] if isinstance(a, Tensor) else a
        factored = _factorise(gram.double() * factor, torch.float64)
        if bool(factored.exact.all()):
            return factored.value
        scaled = gram.double() * factor
        if not bool(scaled.isfinite().all()):
            raise InputError("expected a finite matrix of products; got NaN or infinity: look for NaN in the tokens")
        values = torch.linalg.eigvalsh(scaled)
        least = scaled.shape[-1] * machine_epsilon(torch.float64) * values[..., -1:]
        return torch.where(factored.exact, factored.value, torch.where(values > least, values, 0).log1p().sum(dim=-1))


def log_det_by_gram(
    gram: Float[Tensor, "*b d d"], x: Callable[[], Float[Tensor, "*b n d"]], *, a: Float[Tensor, "*#b"]
) -> Float[Tensor, "*b"]:
    """Return `log_det` of X from G = X^T X in the same precision, without an autograd graph.

    x: returns X; it is called if a factor is not exact enough
    """
    with torch.no_grad():
        factored = _factorise(gram * a[..., None, None].to(gram.dtype), gram.dtype)
        unsolved = ~factored.exact
        if bool(unsolved.any()):
            hard = a.expand(unsolved.shape)[unsolved].sqrt()[:, None, None] * x()[unsolved].double()
            factored.value[unsolved] = _solve_hard(hard, gram.dtype, pull=False).value.to(gram.dtype)
        return factored.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factored:
    """The Cholesky factor of I + G and the logarithm of its determinant.

    exact: True if the logarithm is exact enough
    inverse_exact: True if the inverse is, also where the logarithm is nearly zero
    """

    lower: Float[Tensor, "*b s s"]
    value: Float[Tensor, "*b"]
    exact: Tensor
    inverse_exact: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """log det(I + a X^T X); on request `pull`, a X (I + a X^T X)^-1; and whether factors gave all of it."""

    value: Float[Tensor, "*b"]
    pull: Float[Tensor, "*b n d"]
    by_factor: bool


def _factorise(matrix: Tensor, dtype: torch.dtype) -> _Factored:
    """Factor I + G; G becomes that matrix, so that no copy is needed."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    lower, info = torch.linalg.cholesky_ex(matrix)
    pivots = lower.diagonal(dim1=-2, dim2=-1).square()
    value = pivots.log().sum(dim=-1)
    ratios = matrix.diagonal(dim1=-2, dim2=-1) / pivots
    lost = machine_epsilon(matrix.dtype) * (ratios * ratios.cummax(dim=-1).values).sum(dim=-1)
    succeeded = info == 0
    exact, inverse_exact = (
        succeeded & (lost <= LOST[dtype] * value),
        succeeded & (lost <= LOST[dtype] * value.clamp_min(1)),
    )
    return _Factored(lower=lower, value=value, exact=exact, inverse_exact=inverse_exact)


def _solve(x: Tensor, a: Tensor, *, pull: bool) -> _Solved:
    """Solve by factors where they are exact enough, item by item."""
    flat, factors = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]), a.expand(x.shape[:-2]).reshape(-1)
    dtype, by_tokens = x.dtype, x.shape[-2] < x.shape[-1]
    factored = _factorise(factors.to(dtype)[:, None, None] * _gram(flat, by_tokens), dtype)
    pulled = factors.to(dtype)[:, None, None] * _times_inverse(flat, factored, by_tokens) if pull else flat
    value, unsolved = factored.value, ~factored.exact
    if bool(unsolved.any()):
        # a is in double precision too: x scaled in single precision would be rounded again, and change its rank.
        hard, root = flat[unsolved].double(), factors[unsolved].sqrt()[:, None, None]
        solution = _solve_hard(root * hard, dtype, pull=pull)
        value, pulled = value.clone(), pulled.clone()
        value[unsolved] = solution.value.to(dtype)
        if pull:
            pulled[unsolved] = (root * solution.pull).to(dtype)
    by_factor = (
        not bool(unsolved.any())
        or solution.by_factor
        or (dtype is torch.float64 and bool(factored.inverse_exact.all()))
    )
    return _Solved(value=value.reshape(x.shape[:-2]), pull=pulled.reshape(x.shape), by_factor=by_factor)


def _solve_hard(x: Tensor, dtype: torch.dtype, *, pull: bool) -> _Solved:
    """Solve in double precision with a = 1, by a factor if that is new and exact enough, else by singular values."""
    if not bool(x.isfinite().all()):
        raise InputError("expected finite numbers; got NaN or infinity: look for a token that overflowed")
    by_tokens = x.shape[-2] < x.shape[-1]
    if dtype is torch.float64:
        return _by_singular_values(x, pull)
    factored = _factorise(_gram(x, by_tokens), dtype)
    value, pulled = factored.value, _times_inverse(x, factored, by_tokens) if pull else x
    unsolved = ~factored.exact
    if bool(unsolved.any()):
        solution = _by_singular_values(x[unsolved], pull)
        value[unsolved] = solution.value
        if pull:
            pulled[unsolved] = solution.pull
    return _Solved(value=value, pull=pulled, by_factor=bool(factored.inverse_exact.all()))


def _by_singular_values(x: Tensor, pull: bool) -> _Solved:
    if not pull:
        return _Solved(value=_log_of_one_plus_square(torch.linalg.svdvals(x)).sum(dim=-1), pull=x, by_factor=False)
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    # s / (1 + s^2) without overflow of the square.
    shrunk = torch.where(values > 1, (1 / values) / (1 + (1 / values).square()), values / (1 + values.square()))
    pulled = (u * shrunk.unsqueeze(-2)) @ v
    return _Solved(value=_log_of_one_plus_square(values).sum(dim=-1), pull=pulled, by_factor=False)


def _log_of_one_plus_square(values: Tensor) -> Tensor:
    """Return log(1 + s^2) without overflow, accurate at small s."""
    large = values.clamp_min(1)
    return torch.where(values > 1, 2 * large.log() + large.pow(-2).log1p(), values.clamp_max(1).square().log1p())


def _gram(x: Tensor, by_tokens: bool) -> Tensor:
    return x @ x.mT if by_tokens else x.mT @ x


def _times_inverse(x: Tensor, factored: _Factored, by_tokens: bool) -> Tensor:
    """Return X times the inverse of the factored matrix where the factor is exact; undefined elsewhere."""
    lower = factored.lower
    if not bool(factored.exact.all()):  # a factor with a zero pivot has no inverse
        identity = torch.eye(lower.shape[-1], dtype=x.dtype, device=x.device)
        lower = torch.where(factored.exact[..., None, None], lower, identity)
    inverse = torch.cholesky_inverse(lower)
    return inverse @ x if by_tokens else x @ inverse


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype in LOST else x.float()


def _factor(x: Tensor, a: Tensor | float) -> Tensor:
    return torch.as_tensor(a, dtype=torch.float64, device=x.device)


def _in_full(x: Tensor) -> Any:
    """Return a context without autocast, which would form products in half precision."""
    return torch.autocast(x.device.type, enabled=False)


class _LogDet(torch.autograd.Function):
    """log det(I + a X^T X) with the gradient computed in the forward pass, where it shares the factor."""

    @staticmethod
    def forward(x: Tensor, a: Tensor, pull: bool) -> tuple[Tensor, Tensor, bool]:
        with torch.no_grad(), _in_full(x):
            solution = _solve(x, a, pull=pull)
        return solution.value, solution.pull if pull else x.new_empty(0), solution.by_factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: tuple[Tensor, Tensor, bool]) -> None:
        x, a, _ = inputs
        _, pulled, ctx.by_factor = output
        ctx.mark_non_differentiable(pulled)
        ctx.save_for_backward(x, a, pulled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        x, a, pulled = ctx.saved_tensors
        along = 2 * gradient[..., None, None]
        with _in_full(x):
            if not torch.is_grad_enabled():
                return along * pulled, None, None
            if not ctx.by_factor:
                raise InputError(
                    "second derivatives of log det(I + a X^T X) are not available where a s_max^2 is so large that "
                    "singular values were needed; use a larger eps, or tokens in double precision"
                )
            # In double precision, where the factor is known to be sound.
            return along * _recorded_pull(x.double(), a.double()[..., None, None]).to(x.dtype), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None, None], x: Tensor, a: Tensor, pull: bool) -> Any:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        if in_dims[1] is not None:
            a = a.movedim(in_dims[1], 0)
            a = a.reshape(len(a), *[1] * (x.ndim - 2 - a.ndim), *a.shape[1:])
        return _LogDet.apply(x, a, pull), (0, 0 if pull else None, None)  # type: ignore[no-untyped-call]


def _recorded_pull(x: Tensor, a: Tensor) -> Tensor:
    """Return a X (I + a X^T X)^-1 in operations that torch can differentiate."""
    by_tokens = x.shape[-2] < x.shape[-1]
    gram = a * _gram(x, by_tokens)
    lower = torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device))
    return a * (torch.cholesky_solve(x, lower) if by_tokens else torch.cholesky_solve(x.mT, lower).mT)

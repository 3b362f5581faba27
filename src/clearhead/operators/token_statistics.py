r"""Token statistics self-attention (ToST; Wu et al. 2025, arXiv 2412.17810): linear in the number of tokens.

Three operators have this name, and all differ. In all of them tokens Z are projected onto K
subspaces, V_k = U_k^T Z, every token belongs to every subspace by Pi, a softmax over the subspaces, and a subspace
damps each of its axes by the second moment of its members along it. No token is compared with another.

- `token_statistics_step`, of the paper: a step of descent on the variational rate.
- `token_statistics_attention`, of the released vision code: Pi by shares of each axis' energy, not by energies, and
  1 / (1 + moment), which absorbs d / eps^2 and f'.
- `causal_token_statistics_attention`, of the released language code: sums over tokens end at each token, and a learned
  bias for every head and position enters Pi.

The sources write tokens as columns; here they are rows.
"""

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import check_eps
from clearhead.operators.subspace import check_bases, projected
from clearhead.shapes import Bool, Float, ShapeError, format_shapes

# As released: the constants that keep divisions from zero.
_LEAST_NORM, LEAST_ENERGY, ADDED = 1e-12, 1e-12, 1e-8


def variational_rate(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    memberships: Float[Tensor, "*b k n"],
    *,
    eps: float = 0.5,
) -> Float[Tensor, "*b"]:
    r"""Return an upper bound of the rate of members of subspaces, tight if the bases are their principal axes.

    .. math::
        \frac12 \sum_k \frac{n_k}{n} \sum_i f\Big(\frac{1}{n_k} \sum_j \pi_{kj} (u_{ki} \cdot z_j)^2\Big), \qquad
        f(x) = \log\Big(1 + \frac{d}{\epsilon^2} x\Big), \qquad n_k = \sum_j \pi_{kj}
    """
    check_bases(z, bases)
    check_eps(eps)
    _check_memberships(z, bases, memberships)
    counts, moments = _moments(projected(z, bases), memberships)
    shares = counts / z.shape[-2]
    return (shares * torch.log1p(z.shape[-1] / eps**2 * moments).sum(dim=-1)).sum(dim=-1) / 2


def token_statistics_step(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    *,
    length: float,
    eps: float = 0.5,
    temperature: float = 1.0,
    memberships: Float[Tensor, "*b k n"] | None = None,
) -> Float[Tensor, "*b n d"]:
    r"""Return one step of the paper: descent on the variational rate with fixed memberships.

    .. math::
        z_j \leftarrow z_j - \frac{\tau}{n} \sum_k \pi_{kj} U_k D_k U_k^T z_j, \qquad
        D_k = \mathrm{diag}\, f'\Big(\frac{1}{n_k} \sum_j \pi_{kj} (U_k^T z_j)^2\Big)

    length: tau
    temperature: eta, in pi = softmax over k of |U_k^T z|^2 / 2 eta
    memberships: pi, (..., k, n); that softmax if None
    """
    check_bases(z, bases)
    check_eps(eps)
    if not temperature > 0:
        raise InputError(f"expected a temperature above zero; got {temperature}")
    if memberships is not None:
        _check_memberships(z, bases, memberships)
    v = projected(z, bases)
    pi = torch.softmax(v.square().sum(dim=-1) / (2 * temperature), dim=-2) if memberships is None else memberships
    _, moments = _moments(v, pi)
    inverse = eps**2 / z.shape[-1]  # f'(x) = 1 / (eps^2 / d + x)
    damped = pi.unsqueeze(-1) * v / (inverse + moments).unsqueeze(-2)
    return z - length / z.shape[-2] * torch.einsum("...knp,kdp->...nd", damped, bases)


def slow_token_statistics_step(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    *,
    length: float,
    eps: float = 0.5,
    temperature: float = 1.0,
) -> Float[Tensor, "*b n d"]:
    """Compute `token_statistics_step` with tokens as columns, one subspace after the other, as printed."""
    check_bases(z, bases)
    Z = z.mT
    d, N = Z.shape[-2:]
    energies = torch.stack([(U.mT @ Z).square().sum(dim=-2) for U in bases], dim=-1)
    Pi = torch.softmax(energies / (2 * temperature), dim=-1)
    step = torch.zeros_like(Z)
    for k, U in enumerate(bases):
        V, pi = U.mT @ Z, Pi[..., k]
        mean = (V.square() @ pi.unsqueeze(-1)) / pi.sum(dim=-1)[..., None, None]
        D = (d / eps**2) / (1 + (d / eps**2) * mean)
        step = step + U @ (D * V * pi.unsqueeze(-2))
    return (Z - length / N * step).mT


def token_statistics_attention(
    w: Float[Tensor, "*b h n p"],
    *,
    sharpness: Float[Tensor, "h"] | None = None,
    key_mask: Bool[Tensor, "*b n"] | None = None,
) -> Float[Tensor, "*b h n p"]:
    r"""Return the update of the tokens' projections in each head, as in the released vision code.

    .. math::
        o_{hj} = -\frac{\pi_{hj} w_{hj}}{1 + m_h}, \qquad m_h = \sum_j \frac{\pi_{hj}}{\sum_l \pi_{hl}} w_{hj}^2, \qquad
        \pi_{\cdot j} = \mathrm{softmax}_h\Big(s_h \sum_i \frac{w_{hji}^2}{\sum_l w_{hli}^2}\Big)

    w: projections of the tokens, (..., heads, n, p)
    sharpness: s, `temp` in the source; ones if None
    key_mask: (..., n), True at tokens; padding has no influence and gets zeros
    """
    check_heads(w, sharpness, key_mask)
    wide, square, s = _prepared(w, sharpness, key_mask)
    energy = square.sum(dim=-2, keepdim=True).clamp_min(_LEAST_NORM**2)
    pi = torch.softmax((square / energy).sum(dim=-1) * s, dim=-2)
    members = _members(pi, key_mask)
    moments = (members / (members.sum(dim=-1, keepdim=True) + ADDED)).unsqueeze(-2) @ square
    return (-pi.unsqueeze(-1) * wide / (1 + moments)).to(w.dtype)


def slow_token_statistics_attention(
    w: Float[Tensor, "*b h n p"], *, sharpness: Float[Tensor, "h"] | None = None
) -> Float[Tensor, "*b h n p"]:
    """Compute `token_statistics_attention` one token at a time."""
    check_heads(w, sharpness, None)
    s = w.new_ones(w.shape[-3]) if sharpness is None else sharpness
    unit = torch.nn.functional.normalize(w, dim=-2)
    pi = [torch.softmax(s * unit[..., j, :].square().sum(dim=-1), dim=-1) for j in range(w.shape[-2])]
    total = sum(pi, torch.zeros_like(w[..., 0, 0])) + ADDED
    moment = sum(((pi[j] / total).unsqueeze(-1) * w[..., j, :].square() for j in range(len(pi))), 0 * w[..., 0, :])
    return torch.stack([-pi[j].unsqueeze(-1) * w[..., j, :] / (1 + moment) for j in range(len(pi))], dim=-2)


def causal_token_statistics_attention(
    w: Float[Tensor, "*b h n p"],
    *,
    sharpness: Float[Tensor, "h"] | None = None,
    bias: Float[Tensor, "h n"] | None = None,
    key_mask: Bool[Tensor, "*b n"] | None = None,
) -> Float[Tensor, "*b h n p"]:
    r"""Return `token_statistics_attention` with sums that end at the token itself, as in the released language code.

    .. math::
        \pi_{\cdot j} = \mathrm{softmax}_h\Big(s_h \sum_i \Big[\frac{w_{hji}^2}{\sum_{l \le j} w_{hli}^2} + c_{hj}\Big]
        \Big), \qquad m_{hj} = \frac{\sum_{l \le j} \pi_{hl} w_{hl}^2}{\sum_{l \le j} \pi_{hl}}, \qquad
        o_{hj} = -\frac{\pi_{hj} w_{hj}}{1 + m_{hj}}

    w, sharpness, key_mask: as in `token_statistics_attention`
    bias: c, `denom_bias` in the source; zeros if None. It counts once for each of the p axes, as released

    No later token changes an earlier output, not by a single bit.
    """
    check_heads(w, sharpness, key_mask)
    wide, square, s = _prepared(w, sharpness, key_mask)
    logits = (square / square.cumsum(dim=-2).clamp_min(LEAST_ENERGY)).sum(dim=-1)
    if bias is not None:
        logits = logits + w.shape[-1] * bias.to(wide.dtype)
    pi = torch.softmax(logits * s, dim=-2)
    members = _members(pi, key_mask)
    moments = (members.unsqueeze(-1) * square).cumsum(dim=-2) / (members.cumsum(dim=-1) + ADDED).unsqueeze(-1)
    return (-pi.unsqueeze(-1) * wide / (1 + moments)).to(w.dtype)


def slow_causal_token_statistics_attention(
    w: Float[Tensor, "*b h n p"],
    *,
    sharpness: Float[Tensor, "h"] | None = None,
    bias: Float[Tensor, "h n"] | None = None,
) -> Float[Tensor, "*b h n p"]:
    """Compute `causal_token_statistics_attention` for each token separately, from all tokens before it."""
    check_heads(w, sharpness, None)
    s = w.new_ones(w.shape[-3]) if sharpness is None else sharpness
    c = w.new_zeros(w.shape[-3:-1]) if bias is None else bias
    pi: list[Tensor] = []
    outputs = []
    for j in range(w.shape[-2]):
        past = w[..., : j + 1, :].square()
        shares = past[..., j, :] / past.sum(dim=-2).clamp_min(LEAST_ENERGY) + c[:, j].unsqueeze(-1)
        pi.append(torch.softmax(s * shares.sum(dim=-1), dim=-1))
        members = torch.stack(pi, dim=-1)
        moment = (members.unsqueeze(-1) * past).sum(dim=-2) / (members.sum(dim=-1) + ADDED).unsqueeze(-1)
        outputs.append(-pi[j].unsqueeze(-1) * w[..., j, :] / (1 + moment))
    return torch.stack(outputs, dim=-2) if outputs else torch.zeros_like(w)


def _moments(v: Tensor, memberships: Tensor) -> tuple[Tensor, Tensor]:
    """Return n_k, (..., k), and the members' second moment along each axis, (..., k, p); zero without members."""
    counts = memberships.sum(dim=-1)
    sums = (memberships.unsqueeze(-2) @ v.square()).squeeze(-2)
    return counts, sums / counts.clamp_min(torch.finfo(v.dtype).tiny).unsqueeze(-1)


def _prepared(w: Tensor, sharpness: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the projections in single precision or better, zero at padding; their squares; the sharpness."""
    wide = w.to(torch.promote_types(w.dtype, torch.float32))
    if key_mask is not None:
        wide = torch.where(key_mask[..., None, :, None], wide, 0)
    s = wide.new_ones(w.shape[-3]) if sharpness is None else sharpness.to(wide.dtype)
    return wide, wide.square(), s.unsqueeze(-1)


def _members(pi: Tensor, key_mask: Tensor | None) -> Tensor:
    return pi if key_mask is None else torch.where(key_mask.unsqueeze(-2), pi, 0)


def _check_memberships(z: Tensor, bases: Tensor, memberships: Tensor) -> None:
    wanted = (*z.shape[:-2], len(bases), z.shape[-2])
    if tuple(memberships.shape) != wanted or memberships.dtype != z.dtype:
        got = f"{tuple(memberships.shape)} {memberships.dtype}"
        raise ShapeError(f"expected memberships (..., k, n) = {wanted} of dtype {z.dtype}; got {got}")


def check_heads(w: Tensor, sharpness: Tensor | None, key_mask: Tensor | None) -> None:
    """Raise unless projections (..., h, n, p), a sharpness (h,) and a mask (..., n) fit each other."""
    fits = w.ndim >= 3 and (sharpness is None or sharpness.shape == w.shape[-3:-2])
    if not fits or (key_mask is not None and key_mask.shape != (*w.shape[:-3], w.shape[-2])):
        got = format_shapes(w=w, sharpness=sharpness, key_mask=key_mask)
        raise ShapeError(f"expected w (..., h, n, p), sharpness (h,), key_mask (..., n); got {got}")
    if not w.is_floating_point() or (key_mask is not None and key_mask.dtype is not torch.bool):
        raise InputError("expected floating w, and a boolean key_mask, True at tokens")

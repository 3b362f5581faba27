"""Checks of sizes and inputs that all modules share, and the combination of their masks."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import ShapeError, broadcasts

__all__ = ["check_sizes", "check_tokens", "combine_masks", "resolve_head_dim"]


def check_sizes(**sizes: int) -> None:
    """Raise ValueError unless every size is one or more."""
    if min(sizes.values()) < 1:
        raise InputError(f"expected sizes of one or more; got {_listed(sizes)}")


def resolve_head_dim(embed_dim: int, num_heads: int, head_dim: int | None) -> int:
    """Return head_dim, embed_dim / num_heads if None. Raise ValueError unless the sizes are positive and fit."""
    check_sizes(embed_dim=embed_dim, num_heads=num_heads)
    if head_dim is None:
        if embed_dim % num_heads:
            raise InputError(f"expected head_dim, or num_heads that divides embed_dim; got {num_heads} and {embed_dim}")
        return embed_dim // num_heads
    check_sizes(head_dim=head_dim)
    return head_dim


def check_tokens(tokens: Mapping[str, Tensor], projections: Mapping[str, nn.Linear]) -> None:
    """Raise unless every input is (..., tokens, width of its projection), with one leading shape for all.

    Inputs must have the dtype of the parameters, except under autocast, which converts them.
    """
    widths = {name: projections[name].in_features for name in tokens}
    leading = next(iter(tokens.values())).shape[:-2]
    if any(x.shape[:-2] != leading for x in tokens.values()) or any(
        x.ndim < 2 or x.shape[-1] != widths[name] for name, x in tokens.items()
    ):
        expected = ", ".join(f"{name} (..., tokens, {width})" for name, width in widths.items())
        shapes = {name: tuple(x.shape) for name, x in tokens.items()}
        raise ShapeError(f"expected {expected} with the same leading shape; got {_listed(shapes)}")
    dtypes = {name: x.dtype for name, x in tokens.items()}
    wanted = {name: projections[name].weight.dtype for name in tokens}
    mixed = any(not dtype.is_floating_point for dtype in dtypes.values()) or dtypes != wanted
    if mixed and not _autocast(next(iter(tokens.values()))):
        raise InputError(f"expected the dtype of the parameters, {_listed(wanted)}; got {_listed(dtypes)}")


def _autocast(x: Tensor) -> bool:
    return x.is_floating_point() and torch.is_autocast_enabled(x.device.type)


def combine_masks(
    scores: tuple[int, ...],
    *,
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    attn_bias: Tensor | None,
    leading: int,
    device: torch.device,
) -> Tensor | None:
    """Return one boolean mask that broadcasts to the scores (..., n, m), True where all masks are; None without any.

    The first `leading` axes of the scores are those of the inputs: a `key_mask` has these axes and m. With `causal` the
    last query sees all keys and each query before it one fewer. `attn_bias` is only checked.
    """
    n, m = scores[-2:]
    for name, value in (("mask", mask), ("attn_bias", attn_bias)):
        if value is not None and not broadcasts(tuple(value.shape), scores):
            raise ShapeError(f"expected {name} to broadcast to {scores}; got {name} {tuple(value.shape)}")
    for name, value in (("mask", mask), ("key_mask", key_mask)):
        if value is not None and value.dtype is not torch.bool:
            raise InputError(f"expected a boolean {name}, True where a query may attend; got {value.dtype}")
    if attn_bias is not None and not attn_bias.is_floating_point():
        raise InputError(f"expected a floating attn_bias, which is added to the scores; got {attn_bias.dtype}")
    combined = mask
    if key_mask is not None:
        wanted = (*scores[:leading], m)
        if tuple(key_mask.shape) != wanted:
            raise ShapeError(f"expected key_mask {wanted}, True at keys; got key_mask {tuple(key_mask.shape)}")
        by_key = key_mask.reshape(*wanted[:-1], *[1] * (len(scores) - len(wanted)), m)
        combined = by_key if combined is None else combined & by_key
    if causal:
        past = torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)
        combined = past if combined is None else combined & past
    return combined


def _listed(named: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())

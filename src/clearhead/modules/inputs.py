"""Checks of sizes and inputs that all modules share, their masks and heads, and padded sets of different sizes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from clearhead.errors import InputError
from clearhead.shapes import Bool, Float, ShapeError, broadcasts


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
    query: Tensor,
    key: Tensor,
    *heads: int,
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool = False,
    attn_bias: Tensor | None = None,
) -> Tensor | None:
    """Return one boolean mask that broadcasts to the scores (..., n, m), True where all masks are; None without any.

    query, key: (..., n, width) and (..., m, width); the scores are (..., *heads, n, m), a `key_mask` is (..., m)
    causal: True if the last query sees all keys and each query before it one fewer
    attn_bias: only checked
    """
    n, m = query.shape[-2], key.shape[-2]
    scores = (*query.shape[:-2], *heads, n, m)
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
        wanted = (*query.shape[:-2], m)
        if tuple(key_mask.shape) != wanted:
            raise ShapeError(f"expected key_mask {wanted}, True at keys; got key_mask {tuple(key_mask.shape)}")
        by_key = key_mask.reshape(*wanted[:-1], *[1] * len(heads), 1, m)
        combined = by_key if combined is None else combined & by_key
    if causal:
        past = torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n)
        combined = past if combined is None else combined & past
    return combined


def present(**options: Any) -> dict[str, Any]:
    """Return the options that are not None: an operator chooses the others."""
    return {name: option for name, option in options.items() if option is not None}


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (..., n, heads * width) as (..., heads, n, width)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).movedim(-2, -3)


def join_heads(x: Tensor) -> Tensor:
    """Return (..., heads, n, width) as (..., n, heads * width)."""
    return x.movedim(-3, -2).flatten(-2)


class PaddedSets(NamedTuple):
    """Sets of different sizes as one padded batch, with its mask."""

    tokens: Tensor
    """(b, n, d), n the size of the largest set; zeros at padding."""
    mask: Tensor
    """(b, n), boolean, True at tokens: the `key_mask` of every module."""


def pad_sets(sets: Sequence[Float[Tensor, "_ d"]]) -> PaddedSets:
    """Pad sets (n_i, d) to one batch (b, n, d), with a mask (b, n) that is True at tokens.

    Attention over the batch with `key_mask=mask` gives each set the output it has alone. If the tokens are also the
    queries, ignore the rows of the output at padding: `[o[tokens] for o, tokens in zip(out, mask)]` is the output of
    each set.
    """
    shapes = ", ".join(str(tuple(x.shape)) for x in sets)
    if not sets or any(x.ndim != 2 or x.shape[-1] != sets[0].shape[-1] for x in sets):
        raise ShapeError(f"expected one set or more, each (n_i, d), with the same d; got {shapes or 'no sets'}")
    if len({(x.dtype, x.device) for x in sets}) > 1:
        got = ", ".join(f"{x.dtype} on {x.device}" for x in sets)
        raise InputError(f"expected sets of one dtype on one device; got {got}")
    tokens = pad_sequence(list(sets), batch_first=True)
    sizes = torch.tensor([len(x) for x in sets], device=tokens.device)
    mask: Bool[Tensor, "b n"] = torch.arange(tokens.shape[1], device=tokens.device) < sizes[:, None]
    return PaddedSets(tokens, mask)


def _listed(named: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())

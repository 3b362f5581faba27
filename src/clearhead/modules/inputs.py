"""The check at every module's door, and its masks made one."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import ShapeError, broadcasts

__all__ = ["check_positive", "check_tokens", "checked_head_width", "visible_keys"]


def check_positive(**sizes: int) -> None:
    """Raise ValueError unless every size is one or more."""
    if min(sizes.values()) < 1:
        raise InputError(f"expected sizes of one or more; got {_listed(sizes)}")


def checked_head_width(width: int, heads: int, head_width: int | None) -> int:
    """The width inside each head, width / heads if None. Raise ValueError unless all three are sizes and fit."""
    check_positive(width=width, heads=heads)
    if head_width is None and width % heads:
        raise InputError(f"expected head_width, or heads that divide width; got {heads} and {width}")
    found = width // heads if head_width is None else head_width
    check_positive(head_width=found)
    return found


def check_tokens(tokens: Mapping[str, Tensor], maps: Mapping[str, nn.Linear]) -> None:
    """Raise unless every input is floating, (..., tokens, width of its map), with one leading shape for all.

    Inputs must have the dtype of the parameters, except under autocast, which sees to that itself.
    """
    widths = {name: maps[name].in_features for name in tokens}
    leading = next(iter(tokens.values())).shape[:-2]
    if any(x.shape[:-2] != leading for x in tokens.values()) or any(
        x.ndim < 2 or x.shape[-1] != widths[name] for name, x in tokens.items()
    ):
        expected = ", ".join(f"{name} (..., tokens, {width})" for name, width in widths.items())
        shapes = {name: tuple(x.shape) for name, x in tokens.items()}
        raise ShapeError(f"expected {expected} of one leading shape; got {_listed(shapes)}")
    dtypes = {name: x.dtype for name, x in tokens.items()}
    wanted = {name: maps[name].weight.dtype for name in tokens}
    mixed = any(not dtype.is_floating_point for dtype in dtypes.values()) or dtypes != wanted
    if mixed and not _autocast(next(iter(tokens.values()))):
        raise InputError(f"expected the dtype of the parameters, {_listed(wanted)}; got {_listed(dtypes)}")


def _autocast(x: Tensor) -> bool:
    return x.is_floating_point() and torch.is_autocast_enabled(x.device.type)


def visible_keys(
    scores: tuple[int, ...],
    *,
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    leading: int,
    device: torch.device,
) -> Tensor | None:
    """One boolean mask that broadcasts to the scores, (..., n, m), True where all of the masks are; None if none is.

    The first `leading` axes of the scores are those of the inputs: a `key_mask` has them and m. With `causal` the last
    query sees all keys and each query before it one less. The bias is only checked.
    """
    n, m = scores[-2:]
    for name, added in (("mask", mask), ("bias", bias)):
        if added is not None and not broadcasts(tuple(added.shape), scores):
            raise ShapeError(f"expected {name} to broadcast to {scores}; got {name} {tuple(added.shape)}")
    masks = {"mask": mask, "key_mask": key_mask}
    for name, added in masks.items():
        if added is not None and added.dtype is not torch.bool:
            raise InputError(f"expected a boolean {name}, True where a query may look; got {added.dtype}")
    if bias is not None and not bias.is_floating_point():
        raise InputError(f"expected a floating additive bias; got {bias.dtype}")
    together = mask
    if key_mask is not None:
        wanted = (*scores[:leading], m)
        if tuple(key_mask.shape) != wanted:
            raise ShapeError(
                f"expected key_mask {wanted}, True where there is a key; got key_mask {tuple(key_mask.shape)}"
            )
        there = key_mask.reshape(*wanted[:-1], *[1] * (len(scores) - len(wanted)), m)
        together = there if together is None else together & there
    if causal:
        past = torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)
        together = past if together is None else together & past
    return together


def _listed(named: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())

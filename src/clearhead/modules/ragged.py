"""Sets of different sizes in one batch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clearhead.errors import InputError
from clearhead.shapes import Bool, Float, ShapeError

__all__ = ["PaddedSets", "pad_sets"]


class PaddedSets(NamedTuple):
    """Sets of different sizes as one batch: tokens, zeros where there is none, and where there is one."""

    tokens: Tensor
    """(b, n, d), n the size of the largest set."""
    mask: Tensor
    """(b, n), boolean: the `key_mask` that every module here takes."""


def pad_sets(sets: Sequence[Float[Tensor, "_ d"]]) -> PaddedSets:
    """Put sets (n_i, d) into one batch (b, n, d), with a mask (b, n) that is True at their tokens.

    Attention over the batch with `key_mask=mask` gives each set what it would get alone. Where the tokens are the
    queries too, rows of the output beyond a set's own size mean nothing: `[o[seen] for o, seen in zip(out, mask)]` is
    the output set by set.
    """
    shapes = ", ".join(str(tuple(x.shape)) for x in sets)
    if not sets or any(x.ndim != 2 or x.shape[-1] != sets[0].shape[-1] for x in sets):
        raise ShapeError(f"expected one set or more, each (n_i, d), of one d; got {shapes or 'none'}")
    if len({(x.dtype, x.device) for x in sets}) > 1:
        got = ", ".join(f"{x.dtype} on {x.device}" for x in sets)
        raise InputError(f"expected sets of one dtype on one device; got {got}")
    tokens = pad_sequence(list(sets), batch_first=True)
    sizes = torch.tensor([len(x) for x in sets], device=tokens.device)
    mask: Bool[Tensor, "b n"] = torch.arange(tokens.shape[1], device=tokens.device) < sizes[:, None]
    return PaddedSets(tokens, mask)

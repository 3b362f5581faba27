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

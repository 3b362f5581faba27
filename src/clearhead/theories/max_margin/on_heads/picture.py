"""The margins of the heads of a layer on one input, for the report."""

import math

import torch
from torch import Tensor

from clearhead.shapes import Int
from clearhead.theories.example import Example
from clearhead.theories.max_margin.claims import RATIO
from clearhead.theories.max_margin.on_heads.choices import SATURATED, obstacle
from clearhead.theories.theory import Picture

__all__ = ["margins"]

MOST_QUERIES = 48


def margins(example: Example) -> Picture | None:
    """Return by how much the score of the selected token exceeds the next one, query by query, largest first.

    The smallest of these is the margin of the head on this input, before it is divided by the norm of its matrix.
    """
    if obstacle(example) is not None:
        return None
    queries = _queries(example)
    scores = example.scale * example.q[:, queries].double() @ example.k.double().mT
    if example.mask is not None:
        scores = scores.masked_fill(~example.mask[:, queries], -torch.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    gaps = (first - second).sort(dim=-1, descending=True).values
    if not gaps.shape[-1]:
        return None
    return Picture(
        theory=RATIO.theory,
        title="Margins by query",
        caption="Score of the selected token minus the score of the next one, one bar for each query, largest first. "
        "The shortest bar is the margin on this input. Above the line one token can have 99% of the attention of two; "
        "the theory covers heads most of whose queries are there.",
        bars=gaps.cpu().numpy(),
        line=math.log(SATURATED / (1 - SATURATED)),
    )


def _queries(example: Example) -> Int[Tensor, "n"]:
    """Return the first queries that are tokens of the input and see at least two keys in every head."""
    n, m = example.q.shape[-2], example.k.shape[-2]
    usable = torch.full((n,), m > 1, device=example.q.device)
    if example.mask is not None:
        usable = usable & (example.mask.sum(dim=-1) > 1).all(dim=0)
    if n == m:
        usable = usable & example.visible.all(dim=0)
    return usable.nonzero().flatten()[:MOST_QUERIES]

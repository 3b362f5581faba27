"""Calls of an attention layer whose matrices are known."""

import torch
from torch import Tensor

from clearhead.audit.examples import make_examples
from clearhead.heads import Heads, LinearMap
from clearhead.operators.softmax import softmax_attention
from clearhead.theories.example import Cache, Example
from clearhead.theories.max_margin.on_heads.choices import Sampling
from clearhead.theories.max_margin.on_heads.random_heads import UntrainedHeads, space_of
from clearhead.theories.theory import Windows

WIDTH = 7


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def call(
    x: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    mask: Tensor | None = None,
    known: bool = True,
    gradient: Tensor | None = None,
    layer: int = 0,
) -> Heads:
    """Heads with keys x left[h] and queries x right[h] + bias[h], on tokens x (b, m, c)."""
    k, q = (torch.einsum("bmc,hcd->bhmd", x, weight) for weight in (left, right))
    q = q if bias is None else q + bias[:, None]
    v = x.unsqueeze(1).expand(-1, left.shape[0], -1, -1)
    return Heads(
        layer=layer,
        name="attention",
        q=q,
        k=k,
        v=v,
        out=softmax_attention(q, k, v, scale=scale, mask=mask),
        scale=scale,
        mask=mask,
        keys_from=LinearMap(x=x, weight=left) if known else None,
        queries_from=LinearMap(x=x, weight=right, bias=bias) if known else None,
        out_gradient=gradient,
    )


def untrained_heads(heads: Heads, sampling: Sampling) -> UntrainedHeads:
    """Draw the untrained heads of a layer."""
    generator = torch.Generator().manual_seed(0)
    return space_of(heads).draw(generator, random=sampling.random, rotated=sampling.rotated)


def matrix(head: Heads, h: int) -> Tensor:
    """W of one head in the space of its tokens, with the bias as a last column, as in the theory."""
    assert head.keys_from is not None
    assert head.queries_from is not None
    right = head.queries_from.weight[h]
    if head.queries_from.bias is not None:
        right = torch.cat([right, head.queries_from.bias[h].unsqueeze(0)])
    return head.scale * head.keys_from.weight[h] @ right.mT


def examples_of(heads: Heads) -> list[Example]:
    """Return the example of every input of a call."""
    made = make_examples(heads, Windows.EACH, first=0, seed=0, controls=True, per_audit=Cache())
    return [example for [(example, _)] in made]

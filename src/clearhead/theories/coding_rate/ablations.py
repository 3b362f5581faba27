"""Ablations: what a block would add to the tokens if its attention weights were others, from the same values.

The sum Z+ depends linearly on the attention's output, by the weight W_O of each head. So with other weights it is

    Z+ + sum_h (out'_h - out_h) W_h.

The differences and their product with W are in the precision that the model has, single at least; the sum and a layer
norm after it are in double precision.
"""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from clearhead.heads import LayerNorm
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float
from clearhead.theories.coding_rate.claims import IDENTITY, OTHER_HEAD, UNIFORM
from clearhead.theories.coding_rate.tokens import Tokens
from clearhead.theories.example import Example
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Control

NO_ABLATION = Reason(
    ReasonKind.NOT_FOUND,
    "what attention adds to the residual stream is not a linear map of its output, so attention cannot be replaced for "
    "the controls",
)
NO_NORM = Reason(ReasonKind.NOT_FOUND, "the norm after the sum is not a layer norm, which the controls need")


def can_ablate(example: Example) -> bool:
    """Return whether the sum is known for other attention weights."""
    return example.output_weight is not None and example.windows == 1


def ablated_sums(example: Example, tokens: Tokens) -> dict[Control, Float[Tensor, "1 n c"]]:
    """Return the sum of the block with every head's attention replaced, for the tokens that are measured.

    A query that may attend to no key, or to itself not, keeps its output.
    """
    assert example.output_weight is not None
    rows = tokens.present
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    k, v = (x.detach().cpu().to(dtype) for x in (example.k, example.v))
    q, out = (x.detach().cpu()[:, rows].to(dtype) for x in (example.q, example.out))
    mask = None if example.mask is None else example.mask.cpu()[:, rows]
    own = v[:, rows]
    replaced = {
        UNIFORM: _mean_of_visible(v, mask).expand_as(out),
        IDENTITY: own if mask is None else _where(_sees_itself(mask, rows), own, out),
    }
    if len(q) > 1:
        replaced[OTHER_HEAD] = _with_weights_of_next_head(example, q, k, v, mask, rows)
    if mask is not None:
        has_keys = mask.any(dim=-1, keepdim=True)
        replaced = {control: _where(has_keys, x, out) for control, x in replaced.items()}
    output_weight = example.output_weight
    weight = example.per_call.get("output weight", lambda: output_weight.detach().cpu().to(dtype).flatten(0, 1))
    differences = out.new_empty(len(replaced), out.shape[1], out.shape[0], out.shape[2])
    for difference, x in zip(differences, replaced.values(), strict=True):
        torch.sub(x, out, out=difference.movedim(1, 0))
    sums = tokens.total + differences.flatten(2) @ weight
    return {control: sums[index : index + 1] for index, control in enumerate(replaced)}


def _mean_of_visible(v: Float[Tensor, "h m e"], mask: Bool[Tensor, "#h n m"] | None) -> Float[Tensor, "h #n e"]:
    """Return the mean of the values that each query may attend to; zero where there are none."""
    if mask is None:
        return v.mean(dim=1, keepdim=True)
    if bool((mask == mask[:, :1]).all()):
        mask = mask[:, :1]
    weights = mask.to(v.dtype) / mask.sum(dim=-1, keepdim=True).clamp_min(1)
    return weights @ v


def _where(condition: Bool[Tensor, "#h n 1"], x: Float[Tensor, "h n e"], other: Float[Tensor, "h n e"]) -> Tensor:
    """Return x where the condition holds, without a copy if it always does."""
    return x if bool(condition.all()) else torch.where(condition, x, other)


def _sees_itself(mask: Bool[Tensor, "#h n m"], rows: Bool[Tensor, "m"]) -> Bool[Tensor, "#h n 1"]:
    """Return whether each of the queries at these rows may attend to its own token."""
    own = rows.nonzero().flatten()
    return mask.gather(-1, own.expand(len(mask), -1).unsqueeze(-1))


def _with_weights_of_next_head(
    example: Example, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rows: Tensor
) -> Tensor:
    """Return the output of every head's values under the attention weights of the head after it."""

    def of_next(x: Tensor | None) -> Tensor | None:
        return x if x is None or len(x) == 1 else x.roll(-1, dims=0)

    bias = None if example.bias is None else example.bias.detach().cpu()[:, rows].to(q.dtype)
    sinks = None if example.sinks is None else example.sinks.detach().cpu().to(q.dtype)
    return softmax_attention(
        q.roll(-1, dims=0), k.roll(-1, dims=0), v, mask=of_next(mask), bias=of_next(bias), scale=example.scale,
        softcap=example.softcap, sinks=of_next(sinks),
    )  # fmt: skip


def apply_norm(norm: LayerNorm, tokens: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s n c"]:
    """Return the layer norm of tokens in float64."""
    weight, bias = (None if x is None else x.detach().cpu().double() for x in (norm.weight, norm.bias))
    return layer_norm(tokens, tokens.shape[-1:], weight, bias, norm.eps)

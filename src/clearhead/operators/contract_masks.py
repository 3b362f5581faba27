"""What every attention operator that takes a mask owes its callers, one check per promise.

A mask is True where a query may look. A query that may look nowhere gets zeros, and keys that nobody may look at could
as well not be there.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.operators.contract_subject import (
    BATCH,
    HEADS,
    QUERIES,
    VALUE_WIDTH,
    WIDTH,
    Operands,
    Subject,
    gradients,
    require,
    require_close,
    require_gradients_close,
    require_refusal,
)
from clearhead.shapes import ShapeError

__all__ = ["MASK_CHECKS"]

LOUD = 2.0**20
"""What hidden keys and values are set to: any weight on them shows, and no product of two overflows."""


def padding_mask(subject: Subject) -> Tensor:
    """(b, 1, 1, m): the first input is two keys short, the second one."""
    places = torch.arange(subject.keys, device=subject.device)
    lengths = subject.keys - torch.arange(BATCH, 0, -1, device=subject.device)
    return (places < lengths[:, None])[:, None, None, :]


def causal_mask(subject: Subject) -> Tensor:
    """(n, m): the last query sees all keys, each query before it one less."""
    everything = torch.ones(QUERIES, subject.keys, dtype=torch.bool, device=subject.device)
    return everything.tril(subject.keys - QUERIES)


def boolean_mask(subject: Subject) -> Tensor:
    """(b, h, n, m): drawn at random, with at least one key for each query."""
    generator = torch.Generator().manual_seed(subject.seed)
    drawn = torch.rand(BATCH, HEADS, QUERIES, subject.keys, generator=generator) < 0.5
    return (drawn | torch.eye(QUERIES, subject.keys, dtype=torch.bool)).to(subject.device)


def _agrees_with_twin(subject: Subject, mask: Tensor) -> None:
    for value_width in (VALUE_WIDTH, WIDTH):  # fused kernels take another path where e = d
        operands = subject.draw(value_width=value_width)
        got, want = subject.operator(*operands, mask=mask), subject.twin(*operands, mask=mask)
        require_close(got, want, within=subject.tolerance(torch.float64), what=f"output, e = {value_width}")
        require_gradients_close(subject, operands, mask=mask, what=f"e = {value_width}")


def _padding_mask(subject: Subject) -> None:
    _agrees_with_twin(subject, padding_mask(subject))


def _causal_mask(subject: Subject) -> None:
    _agrees_with_twin(subject, causal_mask(subject))


def _boolean_mask(subject: Subject) -> None:
    _agrees_with_twin(subject, boolean_mask(subject))


def _mask_shapes(subject: Subject) -> None:
    mask = boolean_mask(subject)
    for smaller in (mask[:1], mask[:, :1], mask[..., :1, :], mask[0, 0], mask[0, 0, 0]):
        operands = subject.draw()
        whole = smaller.expand(mask.shape)
        what = f"mask of shape {tuple(smaller.shape)}"
        want = subject.operator(*operands, mask=whole)
        try:
            got = subject.operator(*operands, mask=smaller)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        require_close(got, want, within=subject.tolerance(torch.float64), what=what)


def _fully_masked_rows(subject: Subject) -> None:
    mask = boolean_mask(subject)
    mask[0, :, 0] = False
    mask[-1] = False
    nowhere = ~mask.any(dim=-1)
    for value_width in (VALUE_WIDTH, WIDTH):
        operands = subject.draw(value_width=value_width)
        out = subject.operator(*operands, mask=mask)
        require(out.isfinite().all(), "a query that may look nowhere made the output not finite")
        require((out[nowhere] == 0).all(), "a query that may look nowhere must get zeros")
        for name, x in zip("qkv", gradients(subject.operator, operands, mask=mask), strict=True):
            require(x.isfinite().all(), f"a query that may look nowhere made the gradient for {name} not finite")
    _agrees_with_twin(subject, mask)


def _masked_keys_have_no_influence(subject: Subject) -> None:
    mask = padding_mask(subject)
    hidden = ~mask.mT
    operands = q, k, v = subject.draw()
    loud = q, k.masked_fill(hidden, LOUD), v.masked_fill(hidden, LOUD)
    # Within one sequence a hidden token is a query as well, and its own output may change.
    kept = slice(0, subject.keys - BATCH) if subject.square else slice(None)

    def visible(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor) -> Tensor:
        return subject.operator(q, k, v, mask=mask)[..., kept, :]

    within = subject.tolerance(torch.float64)
    require_close(visible(*loud, mask=mask), visible(*operands, mask=mask), within=within, what="other hidden keys")
    for name, x in zip("kv", gradients(visible, operands, mask=mask)[1:], strict=True):
        shown = x.masked_fill(~hidden.expand_as(x), 0)
        require_close(shown, torch.zeros_like(x), within=within, size=1.0, what=f"gradient for a hidden {name}")


def _no_look_ahead(subject: Subject) -> None:
    mask = causal_mask(subject)
    operands = q, k, v = subject.draw()
    last = torch.arange(subject.keys, device=subject.device)[:, None] == subject.keys - 1
    loud: Operands = q, k.masked_fill(last, LOUD), v.masked_fill(last, LOUD)
    got, want = subject.operator(*loud, mask=mask), subject.operator(*operands, mask=mask)
    within = subject.tolerance(torch.float64)
    require_close(got[..., :-1, :], want[..., :-1, :], within=within, what="earlier outputs with another last token")


def _mask_compile(subject: Subject) -> None:
    operator, operands, mask = subject.operator, subject.draw(), causal_mask(subject)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v, mask: operator(q, k, v, mask=mask), fullgraph=True, backend=subject.backend
    )
    got, want = compiled(*operands, mask), operator(*operands, mask=mask)
    require_close(got, want, within=subject.tolerance(torch.float64), what="compiled with a mask")


def _mask_vmap(subject: Subject) -> None:
    operands, mask = subject.draw(), boolean_mask(subject)
    mapped = torch.vmap(lambda q, k, v, mask: subject.operator(q, k, v, mask=mask))
    got, want = mapped(*operands, mask), subject.operator(*operands, mask=mask)
    require_close(got, want, within=subject.tolerance(torch.float64), what="mapped over b with a mask each")


def _wrong_masks(subject: Subject) -> None:
    operands, mask = subject.draw(), causal_mask(subject)
    require_refusal(subject, operands, mask=mask[:, 1:], by=ShapeError, what="a mask one key short")
    require_refusal(subject, operands, mask=mask.double(), by=ValueError, what="a mask that is not boolean")


MASK_CHECKS: dict[str, Callable[[Subject], None]] = {
    "padding_mask": _padding_mask,
    "causal_mask": _causal_mask,
    "boolean_mask": _boolean_mask,
    "mask_shapes": _mask_shapes,
    "fully_masked_rows": _fully_masked_rows,
    "masked_keys_have_no_influence": _masked_keys_have_no_influence,
    "no_look_ahead": _no_look_ahead,
    "mask_compile": _mask_compile,
    "mask_vmap": _mask_vmap,
    "wrong_masks": _wrong_masks,
}

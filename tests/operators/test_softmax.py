import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.softmax import slow_softmax_attention, softmax_attention
from clearhead.shapes import ShapeError
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from clearhead.testing.operators import HEADS
from tests.operators.contract import run_check

SINKS = torch.linspace(-1, 1, HEADS, dtype=torch.float64)


def with_bias(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Attention that favours near tokens, with a bias of the operands' dtype."""
    if min(q.ndim, k.ndim) < 2:
        return attention(q, k, v, mask=mask)
    queries, keys = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    bias = -(queries - keys).abs().to(q.dtype if q.is_floating_point() else torch.float64) / 3
    return attention(q, k, v, mask=mask, bias=bias)


def with_fine_bias(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The same with a bias beyond the range of half precision in one column, which then gets all attention."""
    if min(q.ndim, k.ndim) < 2:
        return attention(q, k, v, mask=mask)
    keys = torch.arange(k.shape[-2])
    bias = (
        torch.where(keys == 0, -1e5, -keys / 3).expand(q.shape[-2], -1).to(torch.promote_types(v.dtype, torch.float32))
    )
    return attention(q, k, v, mask=mask, bias=bias)


def subject(change, **options) -> OperatorSubject:
    return OperatorSubject(operator=change(softmax_attention), reference=change(slow_softmax_attention), **options)


def given_options(**options):
    return lambda attention: functools.partial(attention, **options)


VARIANTS = {
    "plain": subject(lambda attention: attention),
    "scale": subject(given_options(scale=0.7)),
    "softcap": subject(given_options(softcap=2.0)),
    "sinks": subject(given_options(sinks=SINKS), leading=(1, 2)),
    "bias": subject(lambda attention: functools.partial(with_bias, attention)),
    "fine bias": subject(lambda attention: functools.partial(with_fine_bias, attention)),
    "all": subject(
        lambda attention: functools.partial(
            with_bias, functools.partial(attention, softcap=2.0, sinks=SINKS, scale=0.7)
        ),
        leading=(1, 2),
    ),
}


@pytest.mark.parametrize("check", OPERATOR_CHECKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(variant: str, check: str, typechecked: bool) -> None:
    run_check(check, VARIANTS[variant], typechecked=typechecked)


def relative_error(got: Tensor, want: Tensor) -> float:
    if want.numel() == 0:
        return 0.0 if got.shape == want.shape else math.inf
    return ((got - want).abs().max() / want.abs().max().clamp_min(1)).item()


@st.composite
def calls(draw):
    """Draw operands of random sizes, with or without each option; `b`, `h` and `m` may be zero."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    b, h, m = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 7))
    n, d = draw(st.integers(1, 5)), draw(st.integers(1, 11))
    e = draw(st.sampled_from([d, 13]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def maybe(x):
        return x if draw(st.booleans()) else None

    operands = normal(b, h, n, d), normal(b, h, m, d), normal(b, h, m, e)
    options = {
        "mask": maybe(torch.rand(b, h, n, m, generator=generator) < draw(st.sampled_from([0.2, 0.7]))),
        "bias": maybe(normal(h, n, m)),
        "scale": maybe(draw(st.sampled_from([0.3, 1.7]))),
        "softcap": maybe(1.5),
        "sinks": maybe(normal(h)),
    }
    return operands, {name: value for name, value in options.items() if value is not None}


def learned(operands, options):
    """Return all differentiable tensors as leaves, and the options that contain them."""
    leaves = [x.detach().clone().requires_grad_() for x in operands]
    extra = {name: options[name].detach().clone().requires_grad_() for name in ("bias", "sinks") if name in options}
    return leaves, {**options, **extra}, [*leaves, *extra.values()]


@settings(max_examples=60)
@given(calls())
def test_outputs_and_gradients_match_the_reference(call) -> None:
    operands, options = call
    results = []
    for attention in (softmax_attention, slow_softmax_attention):
        leaves, arguments, all_leaves = learned(operands, options)
        out = attention(*leaves, **arguments)
        grads = torch.autograd.grad(out.square().sum(), all_leaves, allow_unused=True, materialize_grads=True)
        results.append((out, *grads))
    for got, want in zip(*results, strict=True):
        assert relative_error(got, want) <= tolerance(torch.float64)


@settings(max_examples=30)
@given(calls())
def test_outputs_lie_in_the_hull_of_the_visible_values(call) -> None:
    (q, k, v), options = call
    options.pop("sinks", None)
    mask = options.pop("mask", torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)).expand(*q.shape[:-1], -1)
    out = softmax_attention(q, k, v, mask=mask, **options)
    seen = mask.any(dim=-1, keepdim=True)
    if v.shape[-2]:
        spread = v.unsqueeze(-3).expand(*mask.shape, -1)
        high = spread.masked_fill(~mask[..., None], -torch.inf).amax(dim=-2)
        low = spread.masked_fill(~mask[..., None], torch.inf).amin(dim=-2)
        slack = tolerance(torch.float64)
        assert ((out <= high + slack) & (out >= low - slack) | ~seen).all()
    assert (out.masked_fill(seen, 0) == 0).all()


def test_the_hull_test_can_fail() -> None:
    v = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    q = k = torch.zeros(2, 3, dtype=torch.float64)
    assert (softmax_attention(q, k, v) <= v.max()).all()
    assert (softmax_attention(q, k, 2 * v) > v.max()).any()


def test_shifting_all_scores_matters_only_with_a_sink() -> None:
    (q, k, v), sinks = VARIANTS["plain"].draw().values(), SINKS
    shift = torch.tensor(5.0, dtype=torch.float64)
    plain = relative_error(softmax_attention(q, k, v, bias=shift), softmax_attention(q, k, v))
    sunk = relative_error(softmax_attention(q, k, v, bias=shift, sinks=sinks), softmax_attention(q, k, v, sinks=sinks))
    assert plain <= tolerance(torch.float64) < sunk


def test_a_sink_takes_weight_from_the_values() -> None:
    q, k, v = VARIANTS["plain"].draw().values()
    ones = torch.ones_like(v)
    weight = softmax_attention(q, k, ones, sinks=SINKS)
    assert (softmax_attention(q, k, ones) - 1).abs().max() <= tolerance(torch.float64)
    assert (weight < 1).all()
    assert (weight > 0).all()


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"sinks": SINKS}, {"scale": 0.1}])
@pytest.mark.parametrize("masked", [False, True])
def test_without_keys_the_output_is_zero(options: dict, masked: bool) -> None:
    q, k, v = VARIANTS["plain"].draw().values()
    q, k, v = (x.requires_grad_() for x in (q, k[..., :0, :], v[..., :0, :]))
    mask = torch.ones(q.shape[-2], 0, dtype=torch.bool) if masked else None
    out = softmax_attention(q, k, v, mask=mask, **options)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
    assert (out == 0).all()
    out.sum().backward()
    assert q.grad is None or (q.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"softcap": 30.0}, {"sinks": SINKS}], ids=["plain", "softcap", "sinks"])
def test_large_scores_in_half_precision_are_finite(dtype: torch.dtype, options: dict) -> None:
    q, k, v = VARIANTS["plain"].draw(dtype=dtype).values()
    operands = 256 * q.sign(), 256 * k.sign(), v
    want = slow_softmax_attention(*(x.double() for x in operands), **options)
    assert relative_error(softmax_attention(*operands, **options).double(), want) <= tolerance(dtype, terms=11)


def test_a_bias_keeps_its_precision_with_half_precision_operands() -> None:
    q, k, v = VARIANTS["plain"].draw(dtype=torch.float16).values()
    bias = torch.full((k.shape[-2],), 1e5)
    bias[0] += 1
    want = slow_softmax_attention(q.double(), k.double(), v.double(), bias=bias)
    got = softmax_attention(q, k, v, bias=bias)
    assert relative_error(got.double(), want) <= tolerance(torch.float16, terms=11)
    assert relative_error(softmax_attention(q, k, v).double(), want) > tolerance(torch.float16, terms=11)


@pytest.mark.parametrize("shape", [(), (7,), (5, 1), (5, 7), (3, 5, 7), (2, 1, 1, 7)])
def test_masks_and_biases_broadcast(shape: tuple[int, ...]) -> None:
    q, k, v = VARIANTS["plain"].draw().values()
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(shape, generator=generator) < 0.6
    bias = torch.randn(shape, generator=generator, dtype=torch.float64)
    whole = (2, 3, 5, 7)
    for options in ({}, {"softcap": 2.0}):
        got = softmax_attention(q, k, v, mask=mask, bias=bias, **options)
        want = softmax_attention(q, k, v, mask=mask.expand(whole), bias=bias.expand(whole), **options)
        assert relative_error(got, want) <= tolerance(torch.float64)


@pytest.mark.parametrize("sinks", [torch.zeros(2), torch.zeros(1), torch.zeros(2, 3)], ids=["two", "one", "per input"])
@pytest.mark.parametrize("attention", [softmax_attention, slow_softmax_attention])
def test_sinks_must_be_one_per_head(attention, sinks: Tensor, typechecked: bool) -> None:
    if typechecked and sinks.ndim > 1:
        pytest.skip("the import hook refuses two axes before the operator can")
    q, k, v = VARIANTS["plain"].draw().values()
    with pytest.raises(ShapeError) as error:
        attention(q, k, v, sinks=sinks)
    for name, x in {"q": q, "k": k, "v": v, "sinks": sinks}.items():
        assert f"{name} {tuple(x.shape)}" in str(error.value)


def test_sinks_need_heads() -> None:
    q, k, v = VARIANTS["plain"].draw(leading=()).values()
    with pytest.raises(ShapeError, match="one for each head"):
        softmax_attention(q, k, v, sinks=torch.zeros(1))

"""Causal attention with keys as queries: exact, blind to later tokens, and recognised from a mask."""

import functools
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.kernels.library import status
from clearhead.modules import RPCAttention
from clearhead.numerics.precision import tolerance
from clearhead.operators.clamped_keys import KeyBound, KeyMu, Scope, clamped_key_attention
from clearhead.operators.pursuit import principal_attention_pursuit, slow_principal_attention_pursuit
from clearhead.operators.pursuit_options import PRESETS, DropoutIterations, Pursuit, preset
from clearhead.operators.rpc import rpc_attention, slow_rpc_attention
from clearhead.operators.softmax import softmax_attention, split_causal
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.symmetric_kernel import symmetric
from clearhead.shapes import ShapeError
from tests.operators.paths import forced
from tests.operators.test_symmetric import gradients, normal, relative

WAYS = ("kernel", "torch")


def lower(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def dense(k: Tensor, v: Tensor, visible: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Compute causal symmetric attention in double precision, with zeros for tokens without visible keys."""
    seen = lower(k.shape[-2]) if visible is None else lower(k.shape[-2]) & visible[:, None, None]
    scores = (k.double() @ k.double().mT) * (k.shape[-1] ** -0.5 if scale is None else scale)
    some = seen.any(dim=-1, keepdim=True)
    return torch.where(some, scores.masked_fill(~(seen | ~some), -torch.inf).softmax(dim=-1) @ v.double(), 0)


sizes = st.tuples(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 211),
    st.integers(1, 71),
    st.integers(1, 71),
    st.integers(0, 99),
)


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("padded", [False, True])
@settings(max_examples=30)
@given(sizes)
def test_random_sizes_agree_with_the_dense_computation(path: str, padded: bool, size: tuple[int, ...]) -> None:
    b, h, n, d, e, seed = size
    k, v, along = normal(b, h, n, d, seed=seed), normal(b, h, n, e, seed=seed + 1), normal(b, h, n, e, seed=seed + 2)
    visible = normal(b, n, seed=seed + 3) > 0 if padded else None
    mask = None if visible is None else visible[:, None, None]
    attention = functools.partial(symmetric_attention, mask=mask, is_causal=True)
    with forced(path):
        got, (to_k, to_v) = attention(k, v), gradients(attention, k, v, along=along)
    want = dense(k, v, visible)
    want_k, want_v = gradients(lambda k, v: dense(k, v, visible), k.double(), v.double(), along=along)
    within = tolerance(torch.float32, terms=max(n, d, e))
    assert (got.double() - want).abs().max() <= within * v.abs().max()
    # The gradient of a saturated row is rounding error of numbers of this size.
    noise = within * max(1.0, (along.norm() * v.abs().max() * k.abs().max()).item())
    assert (to_k.double() - want_k).norm() <= within * want_k.norm() + noise
    assert (to_v.double() - want_v).norm() <= within * want_v.norm()


@pytest.mark.parametrize("path", WAYS)
def test_later_tokens_change_nothing_before_them(path: str) -> None:
    n, first = 211, 97
    k, v = normal(1, 2, n, 16), normal(1, 2, n, 16, seed=1)
    later = torch.arange(n)[:, None] >= first
    changed = [torch.where(later, normal(1, 2, n, 16, seed=seed), x) for seed, x in ((2, k), (3, v))]
    pursuit = Pursuit(iterations=3, bound=KeyBound(strength=0.8))
    operators = {
        "symmetric": symmetric_attention,
        "clamped": functools.partial(clamped_key_attention, None, bound=pursuit.bound),
        "rpc": functools.partial(rpc_attention, None, pursuit=pursuit),
    }
    with forced(path):
        for name, operator in operators.items():
            attention = functools.partial(operator, is_causal=True)
            before, after = attention(k, v)[..., :first, :], attention(*changed)[..., :first, :]
            # Later iterations of a pursuit multiply rounding errors.
            within = tolerance(torch.float32) * (64 if name == "rpc" else 1)
            assert relative(after, before.double()) <= within, name
            along = torch.where(later, 0, normal(1, 2, n, 16, seed=4))
            assert all(not x[..., first:, :].any() for x in gradients(attention, k, v, along=along)), name
            everything = operator(k, v)[..., :first, :], operator(*changed)[..., :first, :]
            assert relative(everything[1], everything[0].double()) > 0.01, name


@pytest.mark.parametrize("path", WAYS)
def test_a_mu_over_the_whole_head_lets_later_tokens_through(path: str) -> None:
    """Control of the test above: with `Scope.HEAD` the bound of the first token depends on the last."""
    k, v = normal(1, 2, 97, 16), normal(1, 2, 97, 16, seed=1)
    later = torch.where(torch.arange(97)[:, None] == 96, 50 * k, k)
    with forced(path):
        for scope, leaks in ((Scope.PREFIX, False), (Scope.HEAD, True)):
            chosen = Pursuit(bound=KeyBound(strength=0.8, mu=KeyMu(scope=scope)))
            attention = functools.partial(rpc_attention, None, v=v, is_causal=True, pursuit=chosen)
            change = relative(attention(k=later)[..., :96, :], attention(k=k)[..., :96, :].double())
            assert (change > 0.01) is leaks


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("name", PRESETS)
def test_causal_pursuits_match_the_algorithm(name: str, path: str, padded: bool) -> None:
    """The reference computes mu of every prefix, and every row, from the mask."""
    b, n = 2, 37
    k, v, along = (normal(b, 3, n, 8, seed=i) for i in range(3))
    keys = (normal(b, 1, 1, n, seed=3) > -0.5) if padded else None
    pursuit = preset(name, iterations=2, strength=0.7)
    full = lower(n) if keys is None else lower(n) & keys

    def slow(k: Tensor, v: Tensor) -> Tensor:
        return slow_rpc_attention(None, k, v, mask=full, pursuit=pursuit)

    want, want_back = slow(k.double(), v.double()), gradients(slow, k.double(), v.double(), along=along)
    with forced(path):
        for options in ({"mask": keys, "is_causal": True}, {"mask": full}):
            attention = functools.partial(rpc_attention, None, pursuit=pursuit, **options)
            assert relative(attention(k, v), want) <= 64 * tolerance(torch.float32)
            for got, expected in zip(gradients(attention, k, v, along=along), want_back, strict=True):
                assert relative(got, expected) <= 1024 * tolerance(torch.float32)


@pytest.mark.parametrize("path", WAYS)
def test_other_pursuits_take_the_flag_as_the_mask(path: str) -> None:
    k, v, q = (normal(2, 3, 13, 7, seed=i) for i in range(3))
    with forced(path):
        for chosen, queries in ((preset("paper", strength=0.7), q), (preset("admm"), None)):
            flag = rpc_attention(queries, k, v, is_causal=True, pursuit=chosen)
            assert relative(flag, slow_rpc_attention(queries, k, v, mask=lower(13), pursuit=chosen).double()) <= (
                64 * tolerance(torch.float32)
            )
        dropped = Pursuit(iterations=2, dropout=DropoutIterations.ALL)
        torch.manual_seed(0)
        flag = rpc_attention(None, k, v, is_causal=True, pursuit=dropped, dropout=0.5)
        torch.manual_seed(0)
        assert torch.equal(flag, rpc_attention(None, k, v, mask=lower(13), pursuit=dropped, dropout=0.5))
        one = rpc_attention(None, k, v, is_causal=True, pursuit=Pursuit(iterations=2))
        assert relative(flag, one.double()) > 0.01


@pytest.mark.parametrize("threshold", [0.7, torch.tensor([0.7, 1.1])])
def test_pursuits_with_one_threshold_for_each_head(threshold: Tensor | float) -> None:
    k, v = normal(1, 2, 41, 8), normal(1, 2, 41, 8, seed=1)
    attention = functools.partial(principal_attention_pursuit, iterations=3, threshold=threshold)
    with forced("kernel"):
        got = attention(k, v, is_causal=True)
    want = slow_principal_attention_pursuit(k.double(), v.double(), iterations=3, threshold=threshold, mask=lower(41))
    assert relative(got, want) <= 64 * tolerance(torch.float32)


def test_heads_with_widely_spread_scores_are_exact() -> None:
    k, v, along = normal(2, 3, 131, 16), normal(2, 3, 131, 16, seed=1), normal(2, 3, 131, 16, seed=2)
    k[1, 2] *= torch.linspace(0, 12, 131)[:, None]
    with forced("kernel"):
        out, _, by_row = symmetric(k, v, None, 0.25, True)
        back = gradients(functools.partial(symmetric_attention, is_causal=True), k, v, along=along)
    assert by_row.tolist() == [[False] * 3, [False, False, True]]
    assert (out - dense(k, v)).abs().max() <= tolerance(torch.float32, terms=256)
    for got, want in zip(back, gradients(dense, k.double(), v.double(), along=along), strict=True):
        assert relative(got, want) <= tolerance(torch.float32, terms=256)


def test_equal_tokens_differ_by_what_they_see() -> None:
    """Without a mask they are equal, and the kernel gives all of them the output of the first."""
    k, v = normal(1, 2, 61, 8)[:, :, torch.arange(61) % 7], normal(1, 2, 61, 8, seed=1)
    with forced("kernel"):
        out = symmetric_attention(k, v, is_causal=True)
    assert (out - dense(k, v)).abs().max() <= tolerance(torch.float32)


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("length", [1.0, 12.0])
def test_tokens_before_the_first_visible_one_get_zeros(path: str, length: float) -> None:
    """Padding on the left, in heads in the usual range and in heads computed row by row."""
    k, v, along = normal(2, 2, 61, 16), normal(2, 2, 61, 16, seed=1), normal(2, 2, 61, 16, seed=2)
    k = k * torch.linspace(0, length, 61)[:, None]
    visible = torch.arange(61) >= torch.tensor([[0], [23]])
    attention = functools.partial(symmetric_attention, mask=visible[:, None, None], is_causal=True)
    with forced(path):
        out, back = attention(k, v), gradients(attention, k, v, along=along)
    assert not out[1, :, :23].any()
    assert out[1, :, 23:].all()
    assert (out - dense(k, v, visible)).abs().max() <= tolerance(torch.float32, terms=256)
    assert all(not x[1, :, :23].any() and x.isfinite().all() for x in back)


@pytest.mark.parametrize("heads", [1, 3])
def test_several_threads_give_the_result_of_one(heads: int) -> None:
    k, v, along = normal(1, heads, 691, 23), normal(1, heads, 691, 23, seed=1), normal(1, heads, 691, 23, seed=2)
    symmetric_form = functools.partial(symmetric_attention, is_causal=True)
    pursuit = functools.partial(rpc_attention, None, is_causal=True, pursuit=preset("paper", iterations=2))
    with forced("kernel"):
        for attention, factor in ((symmetric_form, 1), (pursuit, 64)):
            alone = [attention(k, v), *gradients(attention, k, v, along=along)]
            torch.set_num_threads(2)
            try:
                together = [attention(k, v), *gradients(attention, k, v, along=along)]
            finally:
                torch.set_num_threads(1)
            for one, many in zip(alone, together, strict=True):
                assert relative(many, one.double()) <= factor * tolerance(torch.float32)


@pytest.mark.parametrize("n", [61, 64, 131, 200])
def test_causal_masks_are_recognised_and_no_others(n: int) -> None:
    k = normal(2, 3, n, 4)
    keys = normal(2, 1, 1, n, seed=1) > -1
    keys[..., :1] = True
    mask, causal = split_causal(lower(n), k, is_causal=False)
    assert mask is None
    assert causal
    mask, causal = split_causal(lower(n) & keys, k, is_causal=False)
    assert causal
    assert torch.equal(torch.ones_like(keys) if mask is None else mask, keys)
    assert split_causal(keys, k, is_causal=True)[1]
    expanded, causal = split_causal((lower(n) & keys[:1]).expand(2, 3, n, n), k, is_causal=False)
    assert causal
    assert expanded is None or torch.equal(expanded, keys[:1].expand(2, 3, 1, n))
    for row, column in ((n - 1, 0), (n // 2, n // 2), (0, n - 1), (n - 2, n - 1)):
        other = lower(n).expand(2, 1, n, n).clone()
        other[1, 0, row, column] ^= True
        mask, causal = split_causal(other, k, is_causal=False)
        assert not causal, (row, column)
        assert torch.equal(mask, other)
    window = lower(n) & lower(n).mT.roll(1, 0)
    assert not split_causal(window, k, is_causal=False)[1]
    both, causal = split_causal(window, k, is_causal=True)
    assert not causal
    assert torch.equal(both, window & lower(n))


def test_the_kernel_runs_causal_pursuits_of_operators_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    if status().kernel is None:
        pytest.skip(f"no compiled kernel: {status().reason}")
    module, flags = importlib.import_module("clearhead.operators.pursuit"), []
    run = module.pursuit_in_kernel

    def noted(*operands) -> tuple[Tensor, ...]:
        flags.append(operands[-2])
        return run(*operands)

    monkeypatch.setattr(module, "pursuit_in_kernel", noted)
    k = normal(1, 4, 127, 16)
    rpc_attention(None, k, k)
    rpc_attention(None, k, k, is_causal=True)
    rpc_attention(None, k, k, mask=lower(127))
    with torch.no_grad():
        RPCAttention(64, 4)(normal(1, 127, 64), causal=True)
    assert flags == [False, True, True, True]


def test_compiled_calls_equal_eager_ones(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    k, v, along = (normal(1, 2, 61, 16, seed=i) for i in range(3))
    attention = functools.partial(rpc_attention, None, is_causal=True, pursuit=preset("paper", iterations=2))
    with forced("kernel"):
        torch.compiler.reset()
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(k, v), attention(k, v))
        got, want = gradients(compiled, k, v, along=along), gradients(attention, k, v, along=along)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_the_flag_needs_as_many_queries_as_keys() -> None:
    q, k = normal(1, 2, 5, 7), normal(1, 2, 6, 7)
    with pytest.raises(ShapeError, match=r"expected n = m with is_causal=True; got q \(1, 2, 5, 7\)"):
        softmax_attention(q, k, k, is_causal=True)


def test_softmax_attention_takes_the_flag_with_every_option() -> None:
    k = normal(1, 2, 6, 7)
    bias = normal(6, 6, seed=1)
    for options in ({}, {"bias": bias}, {"softcap": 2.0}, {"mask": normal(1, 1, 1, 6, seed=2) > 0}):
        full = options | {"mask": lower(6) & options.get("mask", torch.tensor(True))}
        flag = softmax_attention(k, k, k, is_causal=True, **options)
        assert relative(flag, softmax_attention(k, k, k, **full).double()) <= tolerance(torch.float32)

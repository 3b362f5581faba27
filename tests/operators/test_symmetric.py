"""Symmetric attention: one contract for each way of computing it, its range, its errors, its symmetry."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead.axes import ShapeError, check_attention_operands
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators.contract import CHECKS, COMPILED, Subject
from clearhead.operators.softmax import softmax_attention_slow
from clearhead.operators.symmetric import padding, symmetric_attention, symmetric_attention_slow
from clearhead.operators.symmetric_library import symmetric
from tests.operators.paths import PATHS, forced


def with_queries(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The operator as the contract calls operators: of the queries only the number counts."""
    check_attention_operands(q, k, v, mask=mask)
    if q.shape[-2] != k.shape[-2]:
        raise ShapeError(f"expected n = m; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    return attention(k, v, mask=mask)


def subject(**options) -> Subject:
    return Subject(
        operator=functools.partial(with_queries, functools.partial(symmetric_attention, **options)),
        twin=functools.partial(with_queries, functools.partial(symmetric_attention_slow, **options)),
        square=True,
    )


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("path", PATHS)
def test_contract(path: str, scale: float | None, check: str, typechecked: bool) -> None:
    if typechecked and check in COMPILED:
        pytest.skip("torch.compile is tested in the session without the import hook")
    with forced(path):
        CHECKS[check](subject(scale=scale))


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dense(k: Tensor, v: Tensor, seen: Tensor | None = None, scale: float | None = None) -> Tensor:
    """In double precision, all scores at once."""
    k, v = k.double(), v.double()
    scores = (k @ k.mT) * (k.shape[-1] ** -0.5 if scale is None else scale)
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    return scores.softmax(dim=-1).nan_to_num(0) @ v


def gradients(attention, *leaves: Tensor, along: Tensor) -> list[Tensor]:
    leaves = tuple(x.detach().clone().requires_grad_() for x in leaves)
    return list(torch.autograd.grad((attention(*leaves) * along.to(leaves[0].dtype)).sum(), leaves))


def relative(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want).norm() / want.norm().clamp_min(torch.finfo(torch.float64).tiny)).item()


sizes = st.tuples(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 211),
    st.integers(1, 71),
    st.integers(1, 71),
    st.integers(0, 2**31),
)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize("padded", [False, True])
@settings(max_examples=40)
@given(sizes)
def test_drawn_sizes_agree_with_all_scores_at_once(path: str, padded: bool, size: tuple[int, ...]) -> None:
    b, h, n, d, e, seed = size
    k, v, along = drawn(b, h, n, d, seed=seed), drawn(b, h, n, e, seed=seed + 1), drawn(b, h, n, e, seed=seed + 2)
    seen = drawn(b, n, seed=seed + 3) > 0 if padded else None
    mask = None if seen is None else seen[:, None, None]
    within = tolerance(torch.float32, terms=max(n, d, e))
    with forced(path):
        got = symmetric_attention(k, v, mask=mask)
        to_k, to_v = gradients(lambda k, v: symmetric_attention(k, v, mask=mask), k, v, along=along)
    want = dense(k, v, seen)
    want_k, want_v = gradients(lambda k, v: dense(k, v, seen), k.double(), v.double(), along=along)
    assert (got.double() - want).abs().max() <= within * v.abs().max()
    # A saturated row's gradient is the rounding of numbers of this size, whatever the gradient itself is.
    noise = within * max(1.0, (along.norm() * v.abs().max() * k.abs().max()).item())
    assert (to_k.double() - want_k).norm() <= within * want_k.norm() + noise
    assert (to_v.double() - want_v).norm() <= within * want_v.norm()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_teams_of_threads_give_what_one_does(threads: int, heads: int) -> None:
    k, v, along = drawn(1, heads, 691, 23), drawn(1, heads, 691, 29, seed=1), drawn(1, heads, 691, 29, seed=2)
    seen = drawn(1, 691, seed=3) > -1
    attention = functools.partial(symmetric_attention, mask=seen[:, None, None])
    with forced("kernel"):
        alone = [attention(k, v), *gradients(attention, k, v, along=along)]
        torch.set_num_threads(threads)
        try:
            assert not symmetric(k, v, seen, 23**-0.5)[-1].any()  # what threads get wrong would be mended row by row
            together = [attention(k, v), *gradients(attention, k, v, along=along)]
            again = [attention(k, v), *gradients(attention, k, v, along=along)]
        finally:
            torch.set_num_threads(1)
    for one, many, repeated in zip(alone, together, again, strict=True):
        assert relative(many, one.double()) <= tolerance(torch.float32)
        assert torch.equal(many, repeated)


# --- range: whatever the keys' lengths are, errors stay those of torch's own kernel


def lengths(kind: str, n: int, seed: int) -> Tensor:
    at = drawn(n, 1, seed=seed).sigmoid()
    return {
        "tiny": torch.full((n, 1), 1e-3),
        "equal and long": torch.full((n, 1), 1e3),
        "long and nearly equal": 1e3 + at,
        "spread over all": 10 ** (6 * at - 3),
        "two kinds": torch.where(at < 0.5, 1e-3, 1e3),
        "just inside": (2 * 70 * at).sqrt() * 2,
        "just outside": (2 * 90 * at).sqrt() * 2,
        "one far out": torch.where(torch.arange(n)[:, None] == n // 2, 1e3, 1.0),
    }[kind]


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize(
    "kind",
    [
        "tiny",
        "equal and long",
        "long and nearly equal",
        "spread over all",
        "two kinds",
        "just inside",
        "just outside",
        "one far out",
    ],
)
def test_errors_are_at_most_twice_those_of_torch(path: str, kind: str) -> None:
    n, d, scale = 131, 17, 0.25
    ours = theirs = ours_back = theirs_back = 0.0

    def plain(k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(k, k, v, scale=scale)

    for seed in range(8):
        directions = torch.nn.functional.normalize(drawn(1, 2, n, d, seed=seed), dim=-1)
        k, v, along = (
            directions * lengths(kind, n, seed),
            drawn(1, 2, n, d, seed=seed + 1),
            drawn(1, 2, n, d, seed=seed + 2),
        )
        want = dense(k, v, scale=scale)
        want_back = gradients(lambda k, v: dense(k, v, scale=scale), k.double(), v.double(), along=along)
        with forced(path):
            got = symmetric_attention(k, v, scale=scale)
            back = gradients(lambda k, v: symmetric_attention(k, v, scale=scale), k, v, along=along)
        torch_back = gradients(plain, k, v, along=along)
        assert got.isfinite().all()
        assert all(x.isfinite().all() for x in back)
        ours = max(ours, (got - want).abs().max().item())
        theirs = max(theirs, (plain(k, v) - want).abs().max().item())
        ours_back = max(ours_back, *((x - y).norm().item() for x, y in zip(back, want_back, strict=True)))
        theirs_back = max(theirs_back, *((x - y).norm().item() for x, y in zip(torch_back, want_back, strict=True)))
    few = 4 * machine_epsilon(torch.float32)  # where torch happens to make no error at all
    assert ours <= 2 * theirs + few
    assert ours_back <= 2 * theirs_back + few * math.sqrt(n * d)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_only_heads_that_spread_too_widely_are_computed_otherwise(path: str) -> None:
    k, v = drawn(2, 3, 67, 16), drawn(2, 3, 67, 16, seed=1)
    k[1, 2] *= torch.linspace(0, 12, 67)[:, None]
    with forced(path):
        out, _, plain = symmetric(k, v, None, 0.25)
    assert plain.tolist() == [[False] * 3, [False, False, True]]
    assert (out - dense(k, v)).abs().max() <= tolerance(torch.float32, terms=256)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_a_short_key_weighs_long_ones_by_its_own_length(path: str) -> None:
    """Keys on a line, so far apart that all exponentials would be the smallest one, weighted by the keys' lengths."""
    k = torch.tensor([0.3, 14.8, 14.9, 15.0, 15.1, 15.2]).reshape(1, 1, 6, 1)
    v = torch.eye(6)[None, None]
    with forced(path):
        out, _, plain = symmetric(k, v, None, 1.0)
    want = dense(k, v, scale=1.0)
    assert want[0, 0, 0, 1:].min() > 0.15
    assert plain.all()
    assert (out - want).abs().max() <= tolerance(torch.float32, terms=256)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_a_hidden_token_that_sees_nothing_near_is_not_silently_zero(path: str) -> None:
    k, v = drawn(1, 2, 61, 16, seed=3), drawn(1, 2, 61, 16, seed=4)
    seen = torch.arange(61)[None] < 50
    k[:, 1, 50:] *= 40  # no visible key is near these, and they do not see themselves
    with forced(path):
        out, _, plain = symmetric(k, v, seen, 0.25)
        to_k, to_v = gradients(lambda k, v: symmetric(k, v, seen, 0.25)[0], k, v, along=drawn(1, 2, 61, 16, seed=5))
    want = gradients(lambda k, v: dense(k, v, seen), k.double(), v.double(), along=drawn(1, 2, 61, 16, seed=5))
    assert plain.tolist() == [[False, True]]
    within = tolerance(torch.float32, terms=16 * 40 * 40)
    assert (out - dense(k, v, seen)).abs().max() <= within
    assert relative(to_k, want[0]) <= within
    assert relative(to_v, want[1]) <= within


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize("size", [1e20, 1e30])
def test_values_and_gradients_of_any_size(path: str, size: float) -> None:
    k, v, along = drawn(1, 2, 37, 8), drawn(1, 2, 37, 8, seed=1), drawn(1, 2, 37, 8, seed=2)
    with forced(path):
        large, small = symmetric_attention(k, v * size), symmetric_attention(k, v / size)
        back = gradients(symmetric_attention, k, v, along=along / size)
        loud = gradients(symmetric_attention, k, v / size, along=along * size)
    want = gradients(dense, k.double(), v.double(), along=along)
    assert relative(large / size, dense(k, v)) <= tolerance(torch.float32)
    assert relative(small * size, dense(k, v)) <= tolerance(torch.float32)
    for got, expected in zip(loud, (want[0], want[1] * size), strict=True):
        assert relative(got, expected) <= 4 * tolerance(torch.float32)
    for got, expected in zip(back, want, strict=True):
        assert relative(got.double() * size, expected) <= 4 * tolerance(torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_what_is_not_finite_shows(path: str) -> None:
    with forced(path):
        for bad in (torch.nan, torch.inf):
            k, v = drawn(1, 2, 37, 8), drawn(1, 2, 37, 8, seed=1)
            k[0, 1, 5, 2] = bad
            out = symmetric_attention(k, v)
            assert out[0, 0].isfinite().all()
            assert not out[0, 1, 5].isfinite().all()
            k, v = drawn(1, 2, 37, 8), drawn(1, 2, 37, 8, seed=1)
            v[0, 1, 5, 2] = bad
            assert not symmetric_attention(k, v)[0, 1].isfinite().all()


# --- what makes it symmetric


@pytest.mark.parametrize("path", ["kernel", "tiles", "torch"])
def test_unnormalised_weights_are_symmetric(path: str) -> None:
    """Weights times their row's total are a symmetric matrix; those of attention with other queries are not."""
    n = 53
    k = drawn(n, 7, seed=4)
    with forced(path):
        weights = symmetric_attention(k[None, None], torch.eye(n)[None, None])[0, 0].double()
    totals = ((k.double() @ k.double().mT) / math.sqrt(7)).exp().sum(dim=-1, keepdim=True)
    kernel = weights * totals
    within = tolerance(torch.float32, terms=n)
    assert (kernel - kernel.mT).abs().max() <= within * kernel.abs().max()
    other = softmax_attention_slow(drawn(n, 7, seed=5), k, torch.eye(n)).double() * totals
    assert (other - other.mT).abs().max() > 100 * within * other.abs().max()


@pytest.mark.parametrize("path", PATHS)
def test_a_shift_of_all_keys_changes_only_their_weights(path: str) -> None:
    """|k_i - k_j| is that of shifted keys: a shift multiplies column j by exp(scale k_j . shift), and that is all."""
    k, shift = drawn(1, 1, 43, 5, seed=6), drawn(5, seed=7)
    v = drawn(1, 1, 43, 3, seed=8)
    tilt = (k @ shift / math.sqrt(5)).exp().unsqueeze(-1)
    with forced(path):
        moved = symmetric_attention(k + shift, v)
        weighted, total = symmetric_attention(k, v * tilt), symmetric_attention(k, tilt.expand_as(v))
    assert (moved - weighted / total).abs().max() <= tolerance(torch.float32, terms=256)
    assert (moved - symmetric_attention(k, v)).abs().max() > 0.01


# --- which masks are padding


def test_padding_is_told_from_other_masks() -> None:
    k = drawn(2, 3, 5, 7)
    tokens = torch.tensor([[True, True, False, True, True], [True, False, True, True, True]])
    assert torch.equal(padding(tokens[:, None, None], k), tokens)
    assert torch.equal(padding(tokens[:, None, None].expand(2, 1, 1, 5), k), tokens)
    assert torch.equal(padding(tokens[0], k), tokens[:1].expand(2, 5))
    assert torch.equal(padding(torch.tensor(True), k), torch.ones(2, 5, dtype=torch.bool))
    assert padding(tokens[:, None, None].expand(2, 3, 1, 5), k) is None  # by head
    assert padding(torch.ones(5, 5, dtype=torch.bool), k) is None  # by query
    assert torch.equal(padding(tokens[:, None], k[:, 0]), tokens)
    assert torch.equal(padding(tokens[0], k[0, 0]), tokens[:1])
    assert torch.equal(padding(tokens[:1, None, None], k[:1].expand(4, 3, 5, 7)), tokens[:1].expand(4, 5))


@pytest.mark.parametrize("path", PATHS)
def test_more_leading_axes(path: str) -> None:
    k, v = drawn(2, 3, 2, 17, 5), drawn(2, 3, 2, 17, 4, seed=1)
    mask = drawn(2, 3, 1, 1, 17, seed=2) > 0
    with forced(path):
        got = symmetric_attention(k, v, mask=mask)
    assert (got - symmetric_attention_slow(k, v, mask=mask)).abs().max() <= tolerance(torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_a_negative_scale_is_served(path: str) -> None:
    k, v = drawn(1, 2, 17, 5), drawn(1, 2, 17, 4, seed=1)
    with forced(path):
        got, zero = symmetric_attention(5 * k, v, scale=-0.5), symmetric_attention(k, v, scale=0.0)
        # The exponent of this pair would be +230 bits, beyond what a float holds, and its bits those of a small number.
        opposite = torch.tensor([-8.93, 8.93]).reshape(1, 1, 2, 1)
        swapped = symmetric_attention(opposite, opposite, scale=-1.0)
    assert torch.equal(swapped, opposite.flip(-2))
    assert (got - dense(5 * k, v, scale=-0.5)).abs().max() <= tolerance(torch.float32, terms=25 * 25)
    assert (zero - v.mean(dim=-2, keepdim=True)).abs().max() <= tolerance(torch.float32)


def test_without_a_gradient_nothing_is_kept() -> None:
    k, v = drawn(1, 2, 37, 8), drawn(1, 2, 37, 8, seed=1)
    with forced("kernel"):
        assert not symmetric_attention(k, v).requires_grad
        assert symmetric_attention(k.requires_grad_(), v).requires_grad


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_torch_accepts_the_library_operator(path: str) -> None:
    """Schema, fake kernel and autograd registration, by torch's own checks."""
    k, v = drawn(2, 2, 13, 5).requires_grad_(), drawn(2, 2, 13, 4, seed=1).requires_grad_()
    seen = drawn(2, 13, seed=2) > 0
    with forced(path):
        for arguments in ((k, v, None, 0.3), (k, v, seen, 0.3)):
            checks = ("test_schema", "test_faketensor", "test_autograd_registration")
            torch.library.opcheck(symmetric, arguments, test_utils=checks)


@pytest.mark.parametrize("path", PATHS)
def test_transforms_of_torch_func(path: str) -> None:
    k, v = drawn(3, 2, 17, 5), drawn(3, 2, 17, 4, seed=1)

    def form(k: Tensor, v: Tensor) -> Tensor:
        return symmetric_attention(k, v).square().sum()

    with forced(path):
        mapped = torch.vmap(torch.func.grad(form, argnums=(0, 1)))(k, v)
        one_by_one = [torch.func.grad(form, argnums=(0, 1))(k[i], v[i]) for i in range(3)]
    for got, want in zip(mapped, zip(*one_by_one, strict=True), strict=True):
        assert relative(got, torch.stack(want).double()) <= tolerance(torch.float32)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_compiled_forward_and_backward_are_the_same(path: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    k, v, along = drawn(1, 2, 61, 16), drawn(1, 2, 61, 16, seed=1), drawn(1, 2, 61, 16, seed=2)
    with forced(path):
        torch.compiler.reset()
        compiled = torch.compile(symmetric_attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(k, v), symmetric_attention(k, v))
        got, want = gradients(compiled, k, v, along=along), gradients(symmetric_attention, k, v, along=along)
        mapped = torch.compile(torch.vmap(symmetric_attention), fullgraph=True, backend="eager")
        assert relative(mapped(k, v), symmetric_attention(k, v).double()) <= tolerance(torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_autocast_computes_in_single_precision(path: str) -> None:
    k, v = drawn(1, 2, 61, 16, dtype=torch.bfloat16), drawn(1, 2, 61, 16, seed=1, dtype=torch.bfloat16)
    with forced(path), torch.autocast("cpu", dtype=torch.bfloat16):
        got, mixed = symmetric_attention(k, v), symmetric_attention(k.float(), v.float())
    want = dense(k, v)
    assert got.dtype is torch.bfloat16
    assert mixed.dtype is torch.float32
    assert (got - want).abs().max() <= machine_epsilon(torch.bfloat16) * want.abs().max()
    assert (mixed - want).abs().max() <= tolerance(torch.float32)

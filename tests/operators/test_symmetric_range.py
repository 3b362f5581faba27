"""Symmetric attention for numbers of any size: as accurate as torch's kernel, and never silently zero."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.symmetric_kernel import symmetric
from tests.operators.paths import PATHS, forced
from tests.operators.test_symmetric import dense, gradients, normal, relative


def lengths(kind: str, n: int, seed: int) -> Tensor:
    at = normal(n, 1, seed=seed).sigmoid()
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
        directions = torch.nn.functional.normalize(normal(1, 2, n, d, seed=seed), dim=-1)
        k, v, along = (
            directions * lengths(kind, n, seed),
            normal(1, 2, n, d, seed=seed + 1),
            normal(1, 2, n, d, seed=seed + 2),
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
def test_only_heads_with_widely_spread_scores_are_computed_row_by_row(path: str) -> None:
    k, v = normal(2, 3, 67, 16), normal(2, 3, 67, 16, seed=1)
    k[1, 2] *= torch.linspace(0, 12, 67)[:, None]
    with forced(path):
        out, _, by_row = symmetric(k, v, None, 0.25)
    assert by_row.tolist() == [[False] * 3, [False, False, True]]
    assert (out - dense(k, v)).abs().max() <= tolerance(torch.float32, terms=256)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_rows_of_short_keys_are_exact_among_long_keys(path: str) -> None:
    """Keys on a line, so far apart that all exponentials would be the smallest one, weighted by the keys' lengths."""
    k = torch.tensor([0.3, 14.8, 14.9, 15.0, 15.1, 15.2]).reshape(1, 1, 6, 1)
    v = torch.eye(6)[None, None]
    with forced(path):
        out, _, by_row = symmetric(k, v, None, 1.0)
    want = dense(k, v, scale=1.0)
    assert want[0, 0, 0, 1:].min() > 0.15
    assert by_row.all()
    assert (out - want).abs().max() <= tolerance(torch.float32, terms=256)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_a_hidden_token_far_from_all_visible_ones_is_exact(path: str) -> None:
    k, v = normal(1, 2, 61, 16, seed=3), normal(1, 2, 61, 16, seed=4)
    visible = torch.arange(61)[None] < 50
    k[:, 1, 50:] *= 40  # no visible key is near these, and they do not see themselves
    with forced(path):
        out, _, by_row = symmetric(k, v, visible, 0.25)
        to_k, to_v = gradients(lambda k, v: symmetric(k, v, visible, 0.25)[0], k, v, along=normal(1, 2, 61, 16, seed=5))
    want = gradients(lambda k, v: dense(k, v, visible), k.double(), v.double(), along=normal(1, 2, 61, 16, seed=5))
    assert by_row.tolist() == [[False, True]]
    within = tolerance(torch.float32, terms=16 * 40 * 40)
    assert (out - dense(k, v, visible)).abs().max() <= within
    assert relative(to_k, want[0]) <= within
    assert relative(to_v, want[1]) <= within


def on_a_line(*bits: float) -> Tensor:
    """Return keys of one number, at scale 1, whose c has these bits, with the sign of the bits."""
    x = torch.tensor(bits)
    return (x.sign() * (2 * math.log(2) * x.abs()).sqrt()).reshape(1, 1, -1, 1)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize("bits", [37.0, 38.0, 60.0, 100.0])
def test_opposite_keys_have_no_weight_for_each_other(path: str, bits: float) -> None:
    """Their exponents are -4 bits, on both sides of the smallest exponential."""
    k = on_a_line(*(sign * (bits - 0.1 * i) for i in range(20) for sign in (1, -1)))
    v = normal(1, 1, 40, 3)
    with forced(path):
        out, _, by_row = symmetric(k, v, None, 1.0)
        back = gradients(lambda k, v: symmetric(k, v, None, 1.0)[0], k, v, along=normal(1, 1, 40, 3, seed=1))
    want = gradients(lambda k, v: dense(k, v, scale=1.0), k.double(), v.double(), along=normal(1, 1, 40, 3, seed=1))
    within = tolerance(torch.float32, terms=256)
    assert not by_row.any()
    assert (out - dense(k, v, scale=1.0)).abs().max() <= within
    assert all(relative(ours, theirs) <= within for ours, theirs in zip(back, want, strict=True))


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_a_hidden_token_is_exact_if_its_exponents_are_below_all_others(path: str) -> None:
    """They differ by 50 bits, and exponents added to the bits of a number without a floor would change places."""
    k, v = on_a_line(450, *[0.0] * 5, *[1.47] * 5), torch.eye(11)[None, None]
    visible = torch.arange(11)[None] > 0
    with forced(path):
        out, _, _ = symmetric(k, v, visible, 1.0)
    want = dense(k, v, visible, scale=1.0)
    assert want[0, 0, 0, 6:].min() > 0.19
    assert (out - want).abs().max() <= tolerance(torch.float32, terms=256)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize("size", [1e20, 1e30])
def test_values_and_gradients_of_any_size_are_exact(path: str, size: float) -> None:
    k, v, along = normal(1, 2, 37, 8), normal(1, 2, 37, 8, seed=1), normal(1, 2, 37, 8, seed=2)
    with forced(path):
        large, small = symmetric_attention(k, v * size), symmetric_attention(k, v / size)
        back = gradients(symmetric_attention, k, v, along=along / size)
        large_gradients = gradients(symmetric_attention, k, v / size, along=along * size)
    want = gradients(dense, k.double(), v.double(), along=along)
    assert relative(large / size, dense(k, v)) <= tolerance(torch.float32)
    assert relative(small * size, dense(k, v)) <= tolerance(torch.float32)
    for got, expected in zip(large_gradients, (want[0], want[1] * size), strict=True):
        assert relative(got, expected) <= 4 * tolerance(torch.float32)
    for got, expected in zip(back, want, strict=True):
        assert relative(got.double() * size, expected) <= 4 * tolerance(torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_non_finite_inputs_give_non_finite_outputs(path: str) -> None:
    with forced(path):
        for bad in (torch.nan, torch.inf):
            k, v = normal(1, 2, 37, 8), normal(1, 2, 37, 8, seed=1)
            k[0, 1, 5, 2] = bad
            out = symmetric_attention(k, v)
            assert out[0, 0].isfinite().all()
            assert not out[0, 1, 5].isfinite().all()
            k, v = normal(1, 2, 37, 8), normal(1, 2, 37, 8, seed=1)
            v[0, 1, 5, 2] = bad
            assert not symmetric_attention(k, v)[0, 1].isfinite().all()


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize("length", [1e-3, 1.0, 8.0])
def test_errors_do_not_grow_with_the_number_of_tokens(path: str, length: float) -> None:
    """Values with a nonzero mean reveal errors of the totals, which values around zero hide."""
    n, d = 1499, 8
    k = torch.nn.functional.normalize(normal(1, 2, n, d), dim=-1) * length
    v = normal(1, 2, n, d, seed=1) + 3
    with forced(path):
        ours = (symmetric_attention(k, v) - dense(k, v)).abs().max()
    assert ours <= 2 * (scaled_dot_product_attention(k, k, v) - dense(k, v)).abs().max()


@pytest.mark.parametrize("path", ["kernel", "tiles"])
@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-25, 1e-28])
def test_small_values_and_gradients_are_exact_with_widely_spread_scores(path: str, size: float) -> None:
    k = torch.nn.functional.normalize(normal(1, 2, 61, 16), dim=-1) * torch.linspace(0, 23.4, 61)[:, None]
    v, along = normal(1, 2, 61, 16, seed=1), normal(1, 2, 61, 16, seed=2)
    within = 8 * tolerance(torch.float32, terms=23 * 23)
    want = gradients(dense, k.double(), v.double(), along=along)
    with forced(path):
        assert size < 1 or not symmetric(k, v, None, 0.25)[-1].any()
        small = symmetric_attention(k, v * size)
        back = gradients(symmetric_attention, k, v, along=along * size)
    assert relative(small.double() / size, dense(k, v)) <= within
    for got, expected in zip(back, want, strict=True):
        assert relative(got.double() / size, expected) <= within


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("scale", "size"), [(1e37, 1e-19), (1e-38, 1e18), (1e25, 1e-13)])
def test_extreme_scales_are_exact(path: str, scale: float, size: float) -> None:
    k, v = normal(1, 2, 37, 8) * size, normal(1, 2, 37, 8, seed=1)
    with forced(path):
        got = symmetric_attention(k, v, scale=scale)
    assert (got - dense(k, v, scale=scale)).abs().max() <= tolerance(torch.float32)

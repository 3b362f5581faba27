"""Tokens with equal keys have bit-identical outputs, so that they stay equal in a pursuit."""

import math

import pytest
import torch
from torch import Tensor

from clearhead.kernels.build import LIBRARY, SOURCES
from clearhead.kernels.calls import attend
from clearhead.kernels.library import INSTRUCTIONS, Instructions, Kernel, load
from clearhead.operators import principal_attention_pursuit
from tests.noise import DRAWS, MULTIPLE, largest_difference, with_one_bit_noise
from tests.operators.paths import LIBRARY as OPERATORS
from tests.operators.paths import forced

TOKENS, WIDTH = 228, 16


@pytest.fixture(params=INSTRUCTIONS)
def variant(request: pytest.FixtureRequest, compiled: Kernel, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Return the kernel with each supported instruction set, also for calls by operators."""
    name: Instructions = request.param
    if not compiled.handle.clearhead_instructions() & INSTRUCTIONS[name]:
        pytest.skip(f"this processor or this build has no {name}")
    chosen = load(SOURCES / LIBRARY, wanted=name).kernel
    assert chosen is not None
    monkeypatch.setattr(OPERATORS, "kernel", lambda: chosen)
    return chosen


def _distinct(count: int, *, size: float, width: int = WIDTH, seed: int = 0) -> Tensor:
    return size * torch.randn(1, 1, count, width, generator=torch.Generator().manual_seed(seed))


def _repeats(count: int, *, seed: int = 0) -> Tensor:
    return torch.randint(count, (TOKENS,), generator=torch.Generator().manual_seed(seed + 100))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("distinct", [1, 2, 29, 113])
@pytest.mark.parametrize("size", [0.16, 0.64, 20.0])
def test_equal_keys_have_equal_outputs(variant: Kernel, size: float, distinct: int, threads: int) -> None:
    index = _repeats(distinct)
    k, v = _distinct(distinct, size=size)[:, :, index], _distinct(TOKENS, size=30.0, seed=1)
    torch.set_num_threads(threads)
    try:
        attended = attend(variant, k, v, visible=None, scale=0.25)
    finally:
        torch.set_num_threads(1)
    first = torch.tensor([int((index == i).nonzero()[0]) for i in index])
    assert torch.equal(attended.out, attended.out[:, :, first])
    assert torch.equal(attended.totals, attended.totals[:, :, first])
    others = index[:, None] != index
    if distinct > 2 and size < 20:
        assert (attended.out[0, 0, :, None] - attended.out[0, 0]).norm(dim=-1)[others].min() > 0


def test_zeros_of_either_sign_are_equal_and_nan_equals_nothing(variant: Kernel) -> None:
    k, v = _distinct(TOKENS, size=0.5), _distinct(TOKENS, size=1.0, seed=1)
    k[0, 0, 200] = k[0, 0, 3] = torch.tensor([0.0, *range(WIDTH - 1)]) / WIDTH
    k[0, 0, 200, 0] = -0.0
    out = attend(variant, k, v, visible=None, scale=0.25).out
    assert torch.equal(out[0, 0, 200], out[0, 0, 3])
    k[0, 0, [7, 150]] = torch.nan
    assert attend(variant, k, v, visible=None, scale=0.25).out.isnan().all()


def test_keys_of_equal_length_are_distinguished(variant: Kernel) -> None:
    k = torch.nn.functional.normalize(_distinct(TOKENS, size=1.0), dim=-1).sign() / 4
    k[0, 0, 0], k[0, 0, 1] = k[0, 0, 0].abs(), k[0, 0, 0].abs()
    v = _distinct(TOKENS, size=1.0, seed=1)
    out = attend(variant, k, v, visible=None, scale=4.0).out[0, 0]
    equal = (k[0, 0, :, None] == k[0, 0]).all(dim=-1)
    same = (out[:, None] == out).all(dim=-1)
    assert torch.equal(equal, same)


def _case(kind: str, *, width: int, size: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the distinct keys and the index of each token's key among them."""
    keys, index = _distinct(59, size=size, width=width, seed=seed), _repeats(59, seed=seed)
    if kind == "repeated":
        return keys, index
    noise = _distinct(TOKENS, size=3e-7 * size, width=width, seed=seed + 1)
    return keys[:, :, index] + noise, torch.arange(TOKENS)


def _pursued(
    distinct: Tensor, index: Tensor, v: Tensor, *, iterations: int, bound: float, noise: torch.Generator | None = None
) -> Tensor:
    """Pursue in double precision; with `noise`, change the last bit of each iterate, alike for equal keys."""
    if noise is not None:
        distinct, v = with_one_bit_noise(distinct, noise), with_one_bit_noise(v, noise)
    k, v = distinct.double()[:, :, index], v.double()
    first = torch.tensor([int((index == i).nonzero()[0]) for i in index])
    low_rank = dual = torch.zeros_like(k)
    for _ in range(iterations):
        rest = (k - low_rank + dual).clamp(-bound, bound)
        keys = rest + low_rank - 2 * dual
        attended = (keys @ keys.mT / math.sqrt(k.shape[-1])).softmax(dim=-1) @ v
        if noise is not None:
            attended = with_one_bit_noise(attended.float(), noise).double()[:, :, first]
        low_rank, dual = attended, rest + low_rank - attended
    return low_rank


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["repeated", "nearly repeated"])
@pytest.mark.parametrize(("width", "size"), [(8, 2.0), (16, 0.16), (64, 0.64)])
@pytest.mark.parametrize("iterations", [2, 4])
def test_pursuit_with_repeated_keys_has_single_precision_accuracy(
    variant: Kernel, kind: str, width: int, size: float, iterations: int, seed: int
) -> None:
    """Compare with double precision; allow a multiple of the error of rounded iterates or of torch's kernel.

    At 2 iterations that is up to 1e-3 of the largest value; tokens that diverge have an error of half of it. At 4
    iterations single precision cannot distinguish nearly equal keys in any order of computation.
    """
    (distinct, index), bound = _case(kind, width=width, size=size, seed=seed), 13 * size
    k, v = distinct[:, :, index], _distinct(TOKENS, size=30.0, width=width, seed=seed + 2)
    expected = _pursued(distinct, index, v, iterations=iterations, bound=bound)
    generator = torch.Generator().manual_seed(seed)
    noisy = [_pursued(distinct, index, v, iterations=iterations, bound=bound, noise=generator) for _ in range(DRAWS)]
    errors = {}
    for path in ("kernel", "torch"):
        with forced(path):
            got = principal_attention_pursuit(k, v, iterations=iterations, threshold=bound)
        errors[path] = largest_difference(got.double(), expected)
    close = MULTIPLE * max(errors["torch"], *(largest_difference(x, expected) for x in noisy))
    assert errors["kernel"] <= close

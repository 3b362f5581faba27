"""Sparse coding steps: references, proximal steps, the longest stable step, and errors."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators import (
    StepSizeWarning,
    ista_step,
    largest_step,
    overcomplete_step,
    warn_of_step,
)
from clearhead.operators.sparse_coding import slow_ista_step, slow_overcomplete_step
from clearhead.shapes import ShapeError

DTYPES = (torch.float64, torch.float32)
PRIMES = st.sampled_from([2, 3, 5, 7, 11, 13, 17, 19, 29])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-300)).item()


def objective(codes: Tensor, z: Tensor, dictionary: Tensor, penalty: float) -> float:
    """Return the sum over rows of penalty |a|_1 + |z - D a|^2 / 2."""
    return (penalty * codes.abs().sum() + (z - codes @ dictionary.mT).square().sum() / 2).item()


def both_ways(steps, leaves: list[Tensor], along: Tensor, **options: float) -> list[list[Tensor]]:
    """Compare outputs and gradients of two functions."""
    results = []
    for step in steps:
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        out = step(*own, **options)
        results.append([out.detach(), *torch.autograd.grad((out * along).sum(), own)])
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(st.lists(PRIMES, min_size=3, max_size=3, unique=True), st.integers(0, 2**31))
def test_the_step_and_its_reference_agree_forward_and_backward(dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    b, n, d = sizes
    leaves = [normal(b, n, d, seed=seed, dtype=dtype), normal(d, d, seed=seed + 1, dtype=dtype) / d**0.5]
    along = normal(b, n, d, seed=seed + 2, dtype=dtype)
    got, want = both_ways((ista_step, slow_ista_step), leaves, along, step=0.2, penalty=0.3)
    for x, y in zip(got, want, strict=True):
        assert relative(x, y) <= tolerance(dtype, terms=max(b * n, d))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(st.lists(PRIMES, min_size=4, max_size=4, unique=True), st.integers(0, 2**31))
def test_the_overcomplete_step_and_its_reference_agree(dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    b, n, d, m = sizes
    shapes = ((b, n, d), (d, m), (d, m))
    leaves = [normal(*shape, seed=seed + i, dtype=dtype) / shape[-1] ** 0.5 for i, shape in enumerate(shapes)]
    along = normal(b, n, d, seed=seed + 3, dtype=dtype)
    got, want = both_ways((overcomplete_step, slow_overcomplete_step), leaves, along, step=0.3, penalty=0.1)
    for x, y in zip(got, want, strict=True):
        assert relative(x, y) <= tolerance(dtype, terms=max(b * n, d, m))


@pytest.mark.parametrize("tokens", [13, 14])
def test_tokens_together_or_one_by_one_give_the_same(tokens: int) -> None:
    """With two or more tokens per dimension, the products with the dictionary are combined into one matrix."""
    z, dictionary = normal(tokens, 7), normal(7, 7, seed=1) / 7**0.5
    together = ista_step(z, dictionary)
    one_by_one = torch.cat([ista_step(z[i : i + 1], dictionary) for i in range(tokens)])
    assert relative(together, one_by_one) <= tolerance(torch.float64)
    assert relative(ista_step(z, dictionary.mT), one_by_one) > 0.01


@pytest.mark.parametrize("tokens", [5, 40])
def test_the_longest_stable_step_lowers_the_objective_and_a_longer_one_may_not(tokens: int) -> None:
    rises = 0
    for seed in range(20):
        z, dictionary = normal(tokens, 11, seed=seed).abs(), normal(11, 11, seed=seed + 50) / 11**0.5
        longest = largest_step(dictionary)
        before = objective(z, z, dictionary, 0.3)
        for step in (0.1 * longest, longest):
            after = ista_step(z, dictionary, step=step, penalty=0.3)
            assert objective(after, z, dictionary, 0.3) < before
        rises += objective(ista_step(z, dictionary, step=30 * longest, penalty=0.3), z, dictionary, 0.3) > before
    assert rises >= 10


def test_with_one_atom_for_each_axis_the_step_is_the_minimiser() -> None:
    """Soft thresholding; with the sign that chapter 7 prints it is worse than the tokens themselves."""
    z, one = normal(29, 7).abs(), torch.eye(7, dtype=torch.float64)
    got = ista_step(z, one, step=1.0, penalty=0.4)
    assert torch.equal(got, (z - 0.4).clamp_min(0))
    least = objective(got, z, one, 0.4)
    for other in (z, got + 0.01, (got - 0.01).clamp_min(0), 1.01 * got):
        assert objective(other, z, one, 0.4) > least
    printed = ista_step(z, one, step=1.0, penalty=-0.4)
    assert objective(printed, z, one, 0.4) > objective(z, z, one, 0.4)


def test_a_fixed_point_of_the_step_is_optimal() -> None:
    """Exactly the codes that the step leaves unchanged satisfy the optimality conditions."""
    one = torch.eye(5, dtype=torch.float64)
    assert torch.equal(ista_step(torch.zeros(3, 5, dtype=torch.float64), one), torch.zeros(3, 5))
    z, dictionary = normal(3, 5).abs(), torch.zeros(5, 5, dtype=torch.float64)
    assert torch.equal(ista_step(z, dictionary, penalty=0.0), z)
    assert not torch.equal(ista_step(z, dictionary, penalty=0.1), z)


def test_codes_are_nonnegative_and_a_larger_penalty_gives_sparser_ones() -> None:
    z, dictionary = normal(31, 11), normal(11, 11, seed=1) / 11**0.5
    counts = []
    for penalty in (0.0, 1.0, 3.0, 10.0):
        codes = ista_step(z, dictionary, penalty=penalty)
        assert codes.min() >= 0
        counts.append(int((codes > 0).sum()))
    assert counts[0] > counts[1] > counts[2] > counts[3]


def codes_of(z: Tensor, dictionary: Tensor, **options: float) -> Tensor:
    """Read the second codes with decoders that pass some of them at a time."""
    d, m = dictionary.shape
    parts = []
    for start in range(0, m, d):
        decoder = torch.zeros(d, m, dtype=z.dtype)
        decoder[: min(d, m - start), start : start + d] = torch.eye(min(d, m - start), dtype=z.dtype)
        parts.append(overcomplete_step(z, dictionary, decoder, **options)[..., : min(d, m - start)])
    return torch.cat(parts, dim=-1)


def test_two_steps_from_zero_lower_the_objective_twice() -> None:
    rises = 0
    for seed in range(10):
        z, dictionary = normal(13, 5, seed=seed), normal(5, 17, seed=seed + 50)
        longest = largest_step(dictionary)
        first = torch.relu(longest * (z @ dictionary) - longest * 0.2)
        second = codes_of(z, dictionary, step=longest, penalty=0.2)
        nothing, once, twice = (objective(a, z, dictionary, 0.2) for a in (0 * first, first, second))
        assert nothing > once > twice
        rises += objective(codes_of(z, dictionary, step=8 * longest, penalty=0.2), z, dictionary, 0.2) > nothing
    assert rises >= 5


def test_the_decoder_enters_once_and_linearly() -> None:
    z, dictionary, decoder = normal(3, 7, 5), normal(5, 11, seed=1), normal(5, 11, seed=2)
    want = codes_of(z, dictionary) @ decoder.mT
    assert relative(overcomplete_step(z, dictionary, decoder), want) <= tolerance(torch.float64)
    assert relative(overcomplete_step(z, decoder, dictionary), want) > 0.01


def test_the_longest_stable_step_follows_from_the_largest_singular_value() -> None:
    dictionary = torch.diag(torch.tensor([4.0, 1.0, -2.0]))
    assert largest_step(dictionary) == pytest.approx(1 / 16)
    assert largest_step(torch.zeros(3, 5)) == float("inf")
    warned = pytest.warns(StepSizeWarning, match=r"the step size 0.1 is above 1/\|D\|\^2 = 0.0625.*smaller step size")
    with warned:
        warn_of_step(dictionary, step=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_step(dictionary, step=0.06)


@pytest.mark.parametrize("step", [ista_step, slow_ista_step])
def test_invalid_operands_raise_an_error(step, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of these before the function can")
    for z, dictionary in ((normal(3, 5), normal(7, 7)), (normal(5), normal(5, 5)), (normal(3, 5), normal(5, 7))):
        with pytest.raises(ShapeError, match=r"expected z \(..., n, d\) and a dictionary \(d, d\); got \("):
            step(z, dictionary)
    with pytest.raises(ValueError, match=r"one floating dtype; got torch.float64, torch.float32"):
        step(normal(3, 5), normal(5, 5).float())


@pytest.mark.parametrize("step", [overcomplete_step, slow_overcomplete_step])
def test_dictionaries_that_do_not_fit_each_other(step, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses these before the function can")
    with pytest.raises(ShapeError, match=r"expected z .* \(d, atoms\)"):
        step(normal(3, 5), normal(7, 11), normal(7, 11))
    with pytest.raises(ShapeError, match=r"two dictionaries of the same shape; got \(5, 11\) and \(5, 13\)"):
        step(normal(3, 5), normal(5, 11), normal(5, 13))
    with pytest.raises(ValueError, match="one floating dtype"):
        step(normal(3, 5), normal(5, 11), normal(5, 11).float())


def test_no_tokens_give_an_empty_output() -> None:
    assert ista_step(normal(2, 0, 5), normal(5, 5)).shape == (2, 0, 5)
    assert overcomplete_step(normal(2, 0, 5), normal(5, 11), normal(5, 11)).shape == (2, 0, 5)


@pytest.mark.parametrize("tokens", [2, 37])  # the three products, and one product for many tokens
def test_an_overflow_is_not_cut_to_zero(tokens: int) -> None:
    z = torch.full((tokens, 3), 3e38)
    dictionary = torch.tensor([[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]])
    for out in (ista_step(z, dictionary, step=1.0), overcomplete_step(z, dictionary, dictionary, step=1.0)):
        assert not bool(out.isfinite().any())
    assert torch.equal(
        ista_step(-torch.ones_like(z), torch.eye(3)), torch.zeros_like(z)
    )  # the control: numbers below 0


def test_the_largest_step_needs_a_matrix_of_numbers(typechecked: bool) -> None:
    if not typechecked:  # annotations catch it first
        with pytest.raises(ShapeError, match=r"expected a dictionary \(d, atoms\); got \(3,\)"):
            largest_step(torch.ones(3))
    with pytest.raises(ValueError, match="expected finite dictionary entries; got NaN or infinity"):
        largest_step(torch.tensor([[1.0, torch.nan]]))
    assert largest_step(torch.ones(3, 0)) == torch.inf

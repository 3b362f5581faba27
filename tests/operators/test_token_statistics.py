"""Token statistics attention in its three forms: references, the rate that each lowers or bounds, and differences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators import subspace_step
from clearhead.operators.softmax import slow_softmax_attention
from clearhead.operators.token_statistics import (
    causal_token_statistics_attention,
    slow_causal_token_statistics_attention,
    slow_token_statistics_attention,
    slow_token_statistics_step,
    token_statistics_attention,
    token_statistics_step,
    variational_rate,
)
from clearhead.shapes import ShapeError

DTYPES = (torch.float64, torch.float32)
PRIMES = st.sampled_from([2, 3, 5, 7, 11, 13])
FOUR = st.lists(PRIMES, min_size=4, max_size=4, unique=True)
RELEASED = (token_statistics_attention, causal_token_statistics_attention)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def require_references(operators, leaves: list[Tensor], names: list[str], *, within: float, **options: float) -> None:
    """Compare outputs and gradients of two functions; the first leaf is positional, the others are keywords."""
    results = []
    for operator in operators:
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        out = operator(own[0], **dict(zip(names, own[1:], strict=True)), **options)
        along = normal(*out.shape, seed=99, dtype=out.dtype)
        results.append([out.detach(), *torch.autograd.grad((out * along).sum(), own)])
    size = max(float(x.norm()) for x in results[1][1:])
    for index, (got, want) in enumerate(zip(*results, strict=True)):
        scale = float(want.norm()) if index == 0 else size
        assert float((got - want).norm()) <= within * scale


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20)
@given(FOUR, st.integers(0, 2**31))
def test_the_step_and_its_reference_agree(dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    k, n, d, p = sizes
    leaves = [normal(3, n, d, seed=seed, dtype=dtype), normal(k, d, p, seed=seed + 1, dtype=dtype) / d**0.5]
    steps = (token_statistics_step, slow_token_statistics_step)
    within = 4 * tolerance(dtype, terms=k * n * d)
    require_references(steps, leaves, ["bases"], within=within, length=3.0, eps=0.7, temperature=0.8)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20)
@given(FOUR, st.integers(0, 2**31))
def test_the_vision_form_and_its_reference_agree(dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    b, h, n, p = sizes
    leaves = [normal(b, h, n, p, seed=seed, dtype=dtype), normal(h, seed=seed + 1, dtype=dtype)]
    references = (token_statistics_attention, slow_token_statistics_attention)
    require_references(references, leaves, ["sharpness"], within=4 * tolerance(dtype, terms=b * n * p))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20)
@given(FOUR, st.integers(0, 2**31))
def test_the_language_form_and_its_reference_agree(dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    b, h, n, p = sizes
    shapes = ((b, h, n, p), (h,), (h, n))
    leaves = [normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes)]
    references = (causal_token_statistics_attention, slow_causal_token_statistics_attention)
    require_references(references, leaves, ["sharpness", "bias"], within=4 * tolerance(dtype, terms=b * n * p))


def test_the_step_is_a_gradient_step_on_the_variational_rate() -> None:
    """This holds with fixed memberships, and not if they depend on the tokens."""
    z, bases = normal(2, 13, 7, seed=1), normal(3, 7, 5, seed=2)

    def memberships(z: Tensor) -> Tensor:
        return torch.softmax(torch.einsum("bnd,kdp->bknp", z, bases).square().sum(dim=-1) / 2, dim=-2)

    leaf = z.clone().requires_grad_()
    fixed, following = (variational_rate(leaf, bases, pi, eps=0.7).sum() for pi in (memberships(z), memberships(leaf)))
    (along,) = torch.autograd.grad(fixed, leaf)
    (other,) = torch.autograd.grad(following, leaf)
    moved = token_statistics_step(z, bases, length=0.3, eps=0.7) - z
    assert (moved + 0.3 * along).abs().max() <= 1e-12
    assert (moved + 0.3 * other).abs().max() > 1e-3
    given_pi = token_statistics_step(z, bases, length=0.3, eps=0.7, memberships=memberships(z)) - z
    assert torch.equal(given_pi, moved)


def test_a_short_step_lowers_the_variational_rate_and_the_opposite_raises_it() -> None:
    for seed in range(20):
        z, bases = normal(23, 6, seed=seed), torch.linalg.qr(normal(3, 6, 2, seed=seed + 50)).Q
        pi = torch.softmax(normal(3, 23, seed=seed + 100), dim=0)
        before = variational_rate(z, bases, pi)
        down, up = (token_statistics_step(z, bases, length=t, memberships=pi) for t in (1.0, -1.0))
        assert variational_rate(down, bases, pi) < before < variational_rate(up, bases, pi)


def test_the_variational_rate_bounds_the_rate_and_is_tight_at_principal_axes() -> None:
    z, d, n, eps = normal(13, 5), 5, 13, 0.7
    rate = torch.logdet(torch.eye(d) + d / (n * eps**2) * z.mT @ z) / 2
    everyone = torch.ones(1, n, dtype=torch.float64)
    axes = torch.linalg.eigh(z.mT @ z).eigenvectors
    assert abs(variational_rate(z, axes[None], everyone, eps=eps) - rate) <= 1e-12
    for seed in range(20):
        turned = torch.linalg.qr(normal(d, d, seed=seed + 1)).Q
        assert variational_rate(z, turned[None], everyone, eps=eps) > rate + 1e-3


def test_a_subspace_without_members_does_not_matter() -> None:
    z, bases = normal(7, 5), normal(2, 5, 3, seed=1)
    pi = torch.stack([torch.ones(7), torch.zeros(7)]).double()
    together = token_statistics_step(z, bases, length=1.0, memberships=pi)
    alone = token_statistics_step(z, bases[:1], length=1.0, memberships=pi[:1])
    assert relative(together, alone) <= tolerance(torch.float64)
    assert torch.equal(variational_rate(z, bases, pi), variational_rate(z, bases[:1], pi[:1]))


def test_the_released_forms_agree_for_one_head_at_the_last_token_only() -> None:
    """With one head all tokens are members, so the forms differ only in the number of tokens in each sum."""
    one, two = normal(2, 1, 11, 5), normal(2, 3, 11, 5)
    whole, causal = token_statistics_attention(one), causal_token_statistics_attention(one)
    assert relative(causal[..., -1, :], whole[..., -1, :]) <= tolerance(torch.float64)
    assert relative(causal[..., 4, :], whole[..., 4, :]) > 1e-2
    whole, causal = token_statistics_attention(two), causal_token_statistics_attention(two)
    assert relative(causal[..., -1, :], whole[..., -1, :]) > 1e-3


def test_neither_released_form_equals_the_papers_formula() -> None:
    z, bases = normal(13, 6, seed=1), torch.eye(6, dtype=torch.float64).reshape(3, 2, 6).mT
    w = torch.einsum("nd,kdp->knp", z, bases)
    moved = token_statistics_step(z, bases, length=13.0, eps=6**0.5) - z  # then d / eps^2 is one, and tau / n too
    for released in RELEASED:
        assert relative(torch.einsum("knp,kdp->nd", released(w), bases), moved) > 1e-2
    # With one subspace memberships are equal, and the vision form is the paper's.
    z, whole = normal(13, 6, seed=1), torch.eye(6, dtype=torch.float64)[None]
    moved = token_statistics_step(z, whole, length=13.0, eps=6**0.5) - z
    assert relative(token_statistics_attention(z[None])[0], moved) <= 1e-8  # what it adds to a sum of 13


def test_permuting_tokens_permutes_outputs_unless_causal() -> None:
    w, order = normal(2, 3, 11, 5), torch.randperm(11, generator=torch.Generator().manual_seed(0))
    whole, causal = ((f(w[..., order, :]), f(w)[..., order, :]) for f in RELEASED)
    assert relative(*whole) <= tolerance(torch.float64)
    assert relative(*causal) > 1e-2


def test_later_tokens_do_not_change_earlier_outputs() -> None:
    w, bias = normal(2, 3, 11, 5), normal(3, 11, seed=1)
    large = w.clone()
    large[..., 6:, :] = 1e3
    attend = causal_token_statistics_attention
    assert torch.equal(attend(w, bias=bias)[..., :6, :], attend(large, bias=bias)[..., :6, :])
    assert not torch.equal(token_statistics_attention(w)[..., :6, :], token_statistics_attention(large)[..., :6, :])
    leaf = w.clone().requires_grad_()
    (result,) = torch.autograd.grad(attend(leaf, bias=bias)[..., :6, :].square().sum(), leaf)
    assert not result[..., 6:, :].any()
    assert result[..., :6, :].any()


@pytest.mark.parametrize("attend", RELEASED)
def test_hidden_tokens_do_not_matter(attend) -> None:
    w, seen = normal(2, 3, 11, 5), torch.rand(2, 11, generator=torch.Generator().manual_seed(1)) < 0.6
    got = attend(w, key_mask=seen)
    for i in range(2):
        assert relative(got[i][:, seen[i]], attend(w[i][:, seen[i]])) <= tolerance(torch.float64)
        assert not got[i][:, ~seen[i]].any()
        assert relative(attend(w)[i][:, seen[i]], attend(w[i][:, seen[i]])) > 1e-3


class Largest(TorchDispatchMode):
    """Record the size of the largest tensor that is created inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            self.numbers = max(self.numbers, x.numel() if isinstance(x, Tensor) else 0)
        return out


@pytest.mark.parametrize("attend", RELEASED)
def test_no_tensor_is_larger_than_the_tokens(attend, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("annotations are not what it is about")
    w = normal(1, 3, 211, 5)
    with Largest() as largest:
        attend(w)
    assert largest.numbers <= w.numel()
    with Largest() as pairs:
        slow_softmax_attention(w, w, w)
        _ = w @ w.mT
    assert pairs.numbers > 10 * w.numel()


@pytest.mark.parametrize("attend", RELEASED)
def test_half_precision_is_summed_in_single(attend) -> None:
    for dtype, size in ((torch.bfloat16, 1), (torch.float16, 300)):  # whose squares half precision does not hold
        w = size * normal(1, 3, 611, 5).to(dtype)
        got, want = attend(w), attend(w.double())
        assert got.dtype is dtype
        assert relative(got, want) <= machine_epsilon(dtype)


@pytest.mark.parametrize("attend", RELEASED)
def test_empty_and_zero_inputs_are_accepted(attend) -> None:
    assert attend(normal(2, 3, 0, 5)).shape == (2, 3, 0, 5)
    leaf = torch.zeros(2, 3, 7, 5, requires_grad=True)
    attend(leaf).sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("attend", RELEASED)
def test_invalid_operands_raise_an_error(attend, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses these before the operator can")
    w = normal(2, 3, 7, 5)
    wrong = ({"sharpness": normal(2)}, {"key_mask": torch.ones(2, 5).bool()})
    for options in wrong:
        with pytest.raises(ShapeError, match=r"expected w \(..., h, n, p\).*got w \(2, 3, 7, 5\), "):
            attend(w, **options)
    with pytest.raises(ShapeError, match="expected w"):
        attend(w[0, 0])
    with pytest.raises(ValueError, match="boolean key_mask"):
        attend(w, key_mask=torch.ones(2, 7))
    with pytest.raises(ValueError, match="expected floating w"):
        attend(w.long())


def test_invalid_eps_and_temperatures_raise_an_error() -> None:
    z, bases = torch.ones(5, 3), torch.ones(2, 3, 1)
    for step in (token_statistics_step, subspace_step):
        with pytest.raises(ValueError, match="eps > 0"):
            step(z, bases, length=0.1, eps=-1.0)
    with pytest.raises(ValueError, match="eps > 0"):
        variational_rate(z, bases, torch.full((2, 5), 0.5), eps=0.0)
    with pytest.raises(ValueError, match="temperature above zero"):
        token_statistics_step(z, bases, length=0.1, temperature=0.0)


@pytest.mark.parametrize("wrong", [lambda pi: pi[:, :1], lambda pi: pi.double(), lambda pi: pi[..., :1]])
def test_memberships_that_do_not_fit(wrong, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("annotations catch these first")
    z, bases = torch.ones(2, 5, 4), torch.ones(3, 4, 2)
    pi = torch.full((2, 3, 5), 1 / 3)
    assert torch.isfinite(variational_rate(z, bases, pi)).all()
    for call in (
        lambda pi: variational_rate(z, bases, pi),
        lambda pi: token_statistics_step(z, bases, length=0.1, memberships=pi),
    ):
        with pytest.raises(
            ShapeError, match=r"expected memberships \(..., k, n\) = \(2, 3, 5\) of dtype torch.float32"
        ):
            call(wrong(pi))

"""Symmetric attention: the contract for each method of computing it, its range, errors and symmetry."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators.softmax import slow_softmax_attention
from clearhead.operators.symmetric import key_mask_of, slow_symmetric_attention, symmetric_attention
from clearhead.operators.symmetric_kernel import symmetric
from clearhead.private_names import DispatchMode
from clearhead.shapes import ShapeError, check_attention_operands
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from clearhead.testing.operators import VALUE_WIDTH
from tests.operators.contract import run_check
from tests.operators.paths import PATHS, forced


def with_queries(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The operator as the contract calls operators: only the number of queries matters."""
    check_attention_operands(q, k, v, mask=mask)
    if q.shape[-2] != k.shape[-2]:
        raise ShapeError(f"expected n = m; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    return attention(k, v, mask=mask)


def subject(**options) -> OperatorSubject:
    return OperatorSubject(
        operator=functools.partial(with_queries, functools.partial(symmetric_attention, **options)),
        reference=functools.partial(with_queries, functools.partial(slow_symmetric_attention, **options)),
        square=True,
        terms=2 * VALUE_WIDTH,  # of the gradient for k: each T_ij adds A_i.B_j and A_j.B_i
    )


@pytest.mark.parametrize("check", OPERATOR_CHECKS)
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("path", PATHS)
def test_contract(path: str, scale: float | None, check: str, typechecked: bool) -> None:
    with forced(path):
        run_check(check, subject(scale=scale), typechecked=typechecked)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dense(k: Tensor, v: Tensor, seen: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Compute symmetric attention in double precision from the matrix of all scores."""
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
def test_random_sizes_agree_with_the_dense_computation(path: str, padded: bool, size: tuple[int, ...]) -> None:
    b, h, n, d, e, seed = size
    k, v, along = normal(b, h, n, d, seed=seed), normal(b, h, n, e, seed=seed + 1), normal(b, h, n, e, seed=seed + 2)
    visible = normal(b, n, seed=seed + 3) > 0 if padded else None
    mask = None if visible is None else visible[:, None, None]
    within = tolerance(torch.float32, terms=max(n, d, e))
    with forced(path):
        got = symmetric_attention(k, v, mask=mask)
        to_k, to_v = gradients(lambda k, v: symmetric_attention(k, v, mask=mask), k, v, along=along)
    want = dense(k, v, visible)
    want_k, want_v = gradients(lambda k, v: dense(k, v, visible), k.double(), v.double(), along=along)
    assert (got.double() - want).abs().max() <= within * v.abs().max()
    # The gradient of a saturated row is rounding error of numbers of this size.
    noise = within * max(1.0, (along.norm() * v.abs().max() * k.abs().max()).item())
    assert (to_k.double() - want_k).norm() <= within * want_k.norm() + noise
    assert (to_v.double() - want_v).norm() <= within * want_v.norm()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_several_threads_give_the_result_of_one(threads: int, heads: int) -> None:
    k, v, along = normal(1, heads, 691, 23), normal(1, heads, 691, 29, seed=1), normal(1, heads, 691, 29, seed=2)
    visible = normal(1, 691, seed=3) > -1
    attention = functools.partial(symmetric_attention, mask=visible[:, None, None])
    with forced("kernel"):
        alone = [attention(k, v), *gradients(attention, k, v, along=along)]
        torch.set_num_threads(threads)
        try:
            assert not symmetric(k, v, visible, 23**-0.5)[
                -1
            ].any()  # otherwise errors of threads would be hidden by the row-by-row computation
            together = [attention(k, v), *gradients(attention, k, v, along=along)]
            again = [attention(k, v), *gradients(attention, k, v, along=along)]
        finally:
            torch.set_num_threads(1)
    for one, many, repeated in zip(alone, together, again, strict=True):
        assert relative(many, one.double()) <= tolerance(torch.float32)
        assert torch.equal(many, repeated)


@pytest.mark.parametrize("path", ["kernel", "tiles", "torch"])
def test_unnormalised_weights_are_symmetric(path: str) -> None:
    """Weights times their row's total are a symmetric matrix; those of attention with other queries are not."""
    n = 53
    k = normal(n, 7, seed=4)
    with forced(path):
        weights = symmetric_attention(k[None, None], torch.eye(n)[None, None])[0, 0].double()
    totals = ((k.double() @ k.double().mT) / math.sqrt(7)).exp().sum(dim=-1, keepdim=True)
    kernel = weights * totals
    within = tolerance(torch.float32, terms=n)
    assert (kernel - kernel.mT).abs().max() <= within * kernel.abs().max()
    other = slow_softmax_attention(normal(n, 7, seed=5), k, torch.eye(n)).double() * totals
    assert (other - other.mT).abs().max() > 100 * within * other.abs().max()


@pytest.mark.parametrize("path", PATHS)
def test_shifting_all_keys_only_reweights_the_values(path: str) -> None:
    """A shift keeps |k_i - k_j|, so it only multiplies column j by exp(scale k_j . shift)."""
    k, shift = normal(1, 1, 43, 5, seed=6), normal(5, seed=7)
    v = normal(1, 1, 43, 3, seed=8)
    tilt = (k @ shift / math.sqrt(5)).exp().unsqueeze(-1)
    with forced(path):
        moved = symmetric_attention(k + shift, v)
        weighted, total = symmetric_attention(k, v * tilt), symmetric_attention(k, tilt.expand_as(v))
    assert (moved - weighted / total).abs().max() <= tolerance(torch.float32, terms=256)
    assert (moved - symmetric_attention(k, v)).abs().max() > 0.01


def test_padding_masks_are_distinguished_from_other_masks() -> None:
    k = normal(2, 3, 5, 7)
    tokens = torch.tensor([[True, True, False, True, True], [True, False, True, True, True]])
    assert torch.equal(key_mask_of(tokens[:, None, None], k), tokens)
    assert torch.equal(key_mask_of(tokens[:, None, None].expand(2, 1, 1, 5), k), tokens)
    assert torch.equal(key_mask_of(tokens[0], k), tokens[:1].expand(2, 5))
    assert torch.equal(key_mask_of(torch.tensor(True), k), torch.ones(2, 5, dtype=torch.bool))
    assert key_mask_of(tokens[:, None, None].expand(2, 3, 1, 5), k) is None  # by head
    assert key_mask_of(torch.ones(5, 5, dtype=torch.bool), k) is None  # by query
    assert torch.equal(key_mask_of(tokens[:, None], k[:, 0]), tokens)
    assert torch.equal(key_mask_of(tokens[0], k[0, 0]), tokens[:1])
    assert torch.equal(key_mask_of(tokens[:1, None, None], k[:1].expand(4, 3, 5, 7)), tokens[:1].expand(4, 5))


@pytest.mark.parametrize("path", PATHS)
def test_more_leading_axes(path: str) -> None:
    k, v = normal(2, 3, 2, 17, 5), normal(2, 3, 2, 17, 4, seed=1)
    mask = normal(2, 3, 1, 1, 17, seed=2) > 0
    with forced(path):
        got = symmetric_attention(k, v, mask=mask)
    assert (got - slow_symmetric_attention(k, v, mask=mask)).abs().max() <= tolerance(torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_a_negative_scale_is_supported(path: str) -> None:
    k, v = normal(1, 2, 17, 5), normal(1, 2, 17, 4, seed=1)
    with forced(path):
        got, zero = symmetric_attention(5 * k, v, scale=-0.5), symmetric_attention(k, v, scale=0.0)
        # The exponent of this pair would be +230 bits, beyond what a float holds, and its bits those of a small number.
        opposite = torch.tensor([-8.93, 8.93]).reshape(1, 1, 2, 1)
        swapped = symmetric_attention(opposite, opposite, scale=-1.0)
    assert torch.equal(swapped, opposite.flip(-2))
    assert (got - dense(5 * k, v, scale=-0.5)).abs().max() <= tolerance(torch.float32, terms=25 * 25)
    assert (zero - v.mean(dim=-2, keepdim=True)).abs().max() <= tolerance(torch.float32)


def test_outputs_require_gradients_only_if_an_input_does() -> None:
    k, v = normal(1, 2, 37, 8), normal(1, 2, 37, 8, seed=1)
    with forced("kernel"):
        assert not symmetric_attention(k, v).requires_grad
        assert symmetric_attention(k.requires_grad_(), v).requires_grad


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_torch_accepts_the_library_operator(path: str) -> None:
    """Schema, fake kernel and autograd registration, by torch's own checks."""
    k, v = normal(2, 2, 13, 5).requires_grad_(), normal(2, 2, 13, 4, seed=1).requires_grad_()
    visible = normal(2, 13, seed=2) > 0
    with forced(path):
        for arguments in (
            (k, v, None, 0.3),
            (k, v, visible, 0.3),
            *([(k, v, visible, 0.3, True)] * (path == "kernel")),
        ):
            checks = ("test_schema", "test_faketensor", "test_autograd_registration")
            torch.library.opcheck(symmetric, arguments, test_utils=checks)


@pytest.mark.parametrize("path", PATHS)
def test_torch_func_transforms_agree(path: str) -> None:
    k, v = normal(3, 2, 17, 5), normal(3, 2, 17, 4, seed=1)

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
    k, v, along = normal(1, 2, 61, 16), normal(1, 2, 61, 16, seed=1), normal(1, 2, 61, 16, seed=2)
    with forced(path):
        torch.compiler.reset()
        compiled = torch.compile(symmetric_attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(k, v), symmetric_attention(k, v))
        got, want = gradients(compiled, k, v, along=along), gradients(symmetric_attention, k, v, along=along)
        mapped = torch.compile(torch.vmap(symmetric_attention), fullgraph=True, backend="eager")
        assert relative(mapped(k, v), symmetric_attention(k, v).double()) <= tolerance(torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_autocast_computes_in_single_precision(path: str) -> None:
    k, v = normal(1, 2, 61, 16, dtype=torch.bfloat16), normal(1, 2, 61, 16, seed=1, dtype=torch.bfloat16)
    with forced(path), torch.autocast("cpu", dtype=torch.bfloat16):
        got, mixed = symmetric_attention(k, v), symmetric_attention(k.float(), v.float())
    want = dense(k, v)
    assert got.dtype is torch.bfloat16
    assert mixed.dtype is torch.float32
    assert (got - want).abs().max() <= machine_epsilon(torch.bfloat16) * want.abs().max()
    assert (mixed - want).abs().max() <= tolerance(torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_compiled_for_changing_sizes(path: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    with forced(path):
        torch.compiler.reset()
        compiled = torch.compile(symmetric_attention, fullgraph=True, dynamic=True, backend="eager")
        for n in (37, 41, 53):
            k, v = normal(1, 2, n, 8), normal(1, 2, n, 8, seed=1)
            assert relative(compiled(k, v), symmetric_attention(k, v).double()) <= tolerance(torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_forward_mode_differentiation_is_never_silently_zero(path: str) -> None:
    k, v, along = normal(1, 2, 17, 5), normal(1, 2, 17, 4, seed=1), normal(1, 2, 17, 5, seed=2)
    with forced(path), torch.autograd.forward_ad.dual_level():
        try:
            out = symmetric_attention(torch.autograd.forward_ad.make_dual(k, along), v)
        except NotImplementedError:  # torch's own kernel refuses some
            return
        tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
    assert tangent is not None
    assert tangent.abs().max() > 0.01


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens_and_a_mask(path: str) -> None:
    with forced(path):
        for mask in (torch.ones(2, 1, 1, 0, dtype=torch.bool), torch.ones(0, 0, dtype=torch.bool)):
            assert symmetric_attention(normal(2, 3, 0, 5), normal(2, 3, 0, 4), mask=mask).shape == (2, 3, 0, 4)
        nobody = torch.ones(0, 1, 1, 7, dtype=torch.bool)
        assert symmetric_attention(normal(0, 3, 7, 5), normal(0, 3, 7, 4), mask=nobody).shape == (0, 3, 7, 4)


@pytest.mark.parametrize("path", ["kernel", "tiles"])
def test_the_library_operator_refuses_invalid_operands(path: str) -> None:
    k, v = normal(2, 3, 17, 5), normal(2, 3, 17, 4, seed=1)
    visible = torch.ones(2, 17, dtype=torch.bool)
    wrong = [
        (k, v[:, :, :10], None),
        (k, v.double(), None),
        (k[0], v[0], None),
        (k, v, visible[:1]),
        (k, v, visible.float()),
    ]
    with forced(path):
        for operands in wrong:
            with pytest.raises(ValueError, match=r"expected k .* got k "):
                symmetric(*operands, 0.3)


def test_a_tensor_as_scale_is_refused(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses it before the operator can")
    with pytest.raises(ValueError, match="expected a number as scale; got a tensor"):
        symmetric_attention(normal(1, 5, 3), normal(1, 5, 3), scale=torch.tensor(0.3))


class Recorded(DispatchMode):
    """Records the operators that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operators.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("masked", [False, True])
def test_a_call_that_nobody_records_has_the_same_bits(masked: bool) -> None:
    k, v = normal(2, 3, 97, 13, seed=1), normal(2, 3, 97, 7, seed=2)
    mask = torch.arange(97) < 71 if masked else None
    with forced("kernel"):
        alone = symmetric_attention(k, v, mask=mask)
        with Recorded() as recorded:
            seen = symmetric_attention(k, v, mask=mask)
        with_gradient = symmetric_attention(k.clone().requires_grad_(), v, mask=mask)
    assert any("clearhead.symmetric_attention" in name for name in recorded.operators)
    assert torch.equal(alone, seen)
    assert torch.equal(alone, with_gradient.detach())
    assert with_gradient.requires_grad
    assert not alone.requires_grad


def test_a_gradient_that_nobody_records_has_the_same_bits() -> None:
    k, v, along = (normal(2, 3, 97, 13, seed=seed) for seed in range(3))
    leaf = k.clone().requires_grad_()
    with forced("kernel"):
        out = symmetric_attention(leaf, v)
    (alone,) = torch.autograd.grad(out, leaf, along, retain_graph=True)
    with Recorded() as recorded:
        (seen,) = torch.autograd.grad(out, leaf, along, retain_graph=True)
    (batched,) = torch.autograd.grad(out, leaf, torch.stack([along, -along]), is_grads_batched=True, retain_graph=True)
    mapped = torch.vmap(lambda x: torch.autograd.grad(out, leaf, x, retain_graph=True)[0])(along[None])
    assert any("clearhead.symmetric_attention_backward" in name for name in recorded.operators)
    assert torch.equal(alone, seen)
    assert torch.equal(batched, torch.stack([alone, -alone]))
    assert torch.equal(mapped, alone[None])
    (again,) = torch.autograd.grad(out, leaf, along, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(again.sum(), leaf)


def test_tensors_without_numbers_are_not_given_to_the_kernel() -> None:
    with forced("kernel"), FakeTensorMode() as mode:
        k = mode.from_tensor(normal(2, 3, 97, 13))
        out = symmetric_attention(k, k)
    assert out.shape == k.shape
    with forced("kernel"):  # outside of its mode
        assert symmetric_attention(k, k).shape == k.shape

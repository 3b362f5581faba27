"""Principal attention pursuit: the published algorithm, its first iteration, and the compiled kernel."""

import functools
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.kernels.library import status
from clearhead.numerics.precision import tolerance
from clearhead.operators.pursuit import principal_attention_pursuit, slow_principal_attention_pursuit
from clearhead.operators.pursuit_kernel import pursuit
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import ShapeError
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from clearhead.testing.operators import VALUE_WIDTH, WIDTH
from tests.operators.contract import run_check
from tests.operators.paths import PATHS, forced
from tests.operators.test_symmetric import gradients, normal, relative, with_queries


def widened(attention, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The operator as the contract calls it: keys are repeated to the width of the values."""
    if k.shape[-1] < v.shape[-1]:
        k = torch.cat([k, k[..., : VALUE_WIDTH - WIDTH]], dim=-1)
    return attention(k, v, mask=mask)


def subject(**options) -> OperatorSubject:
    fast, slow = (
        functools.partial(with_queries, functools.partial(widened, functools.partial(attention, **options)))
        for attention in (principal_attention_pursuit, slow_principal_attention_pursuit)
    )
    # Later iterations multiply the rounding errors of earlier ones.
    return OperatorSubject(operator=fast, reference=slow, square=True, terms=256 * WIDTH)


VARIANTS = {
    "as published": subject(iterations=3, threshold=0.7),
    "as ADMM has it": subject(iterations=2, threshold=0.7, dual_sign=1, scale=0.4),
}
NOT_APPLICABLE = {"hidden_keys": "its large entries would be clamped"}
"""Checks that do not apply, with the reason; a separate test follows below."""


@pytest.mark.parametrize("check", [name for name in OPERATOR_CHECKS if name not in NOT_APPLICABLE])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("path", PATHS)
def test_contract(path: str, variant: str, check: str, typechecked: bool) -> None:
    with forced(path):
        run_check(check, VARIANTS[variant], typechecked=typechecked)


@pytest.mark.parametrize("path", PATHS)
def test_one_iteration_is_symmetric_attention_on_clamped_keys(path: str) -> None:
    k, v = normal(2, 3, 61, 8), normal(2, 3, 61, 8, seed=1)
    with forced(path):
        for threshold in (0.0, 0.3, 1.0, float("inf")):
            clamped = symmetric_attention(k.clamp(-threshold, threshold), v)
            for sign in (-1, 1):
                once = principal_attention_pursuit(k, v, iterations=1, threshold=threshold, dual_sign=sign)
                assert torch.equal(once, clamped)
            twice = principal_attention_pursuit(k, v, iterations=2, threshold=threshold)
            assert threshold == 0 or relative(twice, clamped.double()) > 0.01


@pytest.mark.parametrize("path", PATHS)
def test_threshold_limits(path: str) -> None:
    """At zero the first iterate is the mean of the values; at infinity nothing is clamped, and q = k -+ dual."""
    k, v = normal(1, 2, 37, 8), normal(1, 2, 37, 8, seed=1)
    with forced(path):
        first = principal_attention_pursuit(k, v, iterations=1, threshold=0.0)
        assert relative(first, v.double().mean(dim=-2, keepdim=True).expand_as(v)) <= tolerance(torch.float32)
        unclamped = symmetric_attention(k, v)
        for sign in (-1, 1):
            got = principal_attention_pursuit(k, v, iterations=2, threshold=float("inf"), dual_sign=sign)
            want = symmetric_attention(k + sign * (k - unclamped), v)
            assert relative(got, want.double()) <= tolerance(torch.float32)


sizes = st.tuples(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 197),
    st.integers(1, 37),
    st.integers(1, 3),
    st.integers(0, 2**31),
)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("padded", [False, True])
@settings(max_examples=30)
@given(sizes)
def test_the_kernel_agrees_with_torch(sign: int, padded: bool, size: tuple[int, ...]) -> None:
    b, h, n, d, iterations, seed = size
    k, v, along = (normal(b, h, n, d, seed=seed + i) for i in range(3))
    visible = (normal(b, n, seed=seed + 3) > 0)[:, None, None] if padded else None
    threshold = 0.5 + normal(b, h, seed=seed + 4).abs()
    options = {"iterations": iterations, "dual_sign": sign, "mask": visible}

    def attention(which, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return which(k, v, threshold=t, **options)

    fast, slow = (functools.partial(attention, x) for x in (principal_attention_pursuit, _torch_path))
    with forced("kernel"):
        got, back = fast(k, v, threshold), gradients(fast, k, v, threshold, along=along)
        saved = fast(k.clone().requires_grad_(), v, threshold).detach()
    wide = [x.double() for x in (k, v, threshold)]
    want, want_back = slow(*wide), gradients(slow, *wide, along=along)
    # An entry may be clamped in one precision only, and every iteration multiplies the difference.
    within = tolerance(torch.float32, terms=max(n, d)) * 8**iterations
    assert relative(got, want) <= within
    assert torch.equal(got, saved)
    scale = max(x.norm().item() for x in want_back[:2])
    for x, y in zip(back, want_back, strict=True):
        assert (x.double() - y).norm() <= 8 * within * max(scale, y.norm().item()) + within


def _torch_path(k: Tensor, v: Tensor, **options) -> Tensor:
    with forced("torch"):
        return principal_attention_pursuit(k, v, **options)


@pytest.mark.parametrize("threads", [2, 3])
def test_several_threads_give_the_result_of_one(threads: int) -> None:
    k, v, along = (normal(1, 5, 691, 16, seed=i) for i in range(3))

    def attention(k: Tensor, v: Tensor) -> Tensor:
        return principal_attention_pursuit(k, v, iterations=2, threshold=1.5)

    with forced("kernel"):
        alone = [attention(k, v), *gradients(attention, k, v, along=along)]
        torch.set_num_threads(threads)
        try:
            together = [attention(k, v), *gradients(attention, k, v, along=along)]
            again = [attention(k, v), *gradients(attention, k, v, along=along)]
        finally:
            torch.set_num_threads(1)
    for one, many, repeated in zip(alone, together, again, strict=True):
        assert relative(many, one.double()) <= 16 * tolerance(torch.float32)
        assert torch.equal(many, repeated)


def test_a_head_with_widely_spread_scores_in_a_later_iteration_is_computed_row_by_row() -> None:
    """Every iterate must be in range: here keys are equal, and widely spread values become the next keys."""
    k, v, along = normal(1, 2, 41, 8) * 0.1, normal(1, 2, 41, 8, seed=1), normal(1, 2, 41, 8, seed=2)
    k[:, 1, 0] = 30
    v[:, 1] *= 40
    t = torch.tensor([[1.0, 1.0]])
    attention = functools.partial(_with_threshold, iterations=3)
    with forced("kernel"):
        by_row = pursuit(k, v, t[..., None].expand(1, 2, 41), None, 3, 2.0, 8**-0.5, False, True)[-1]
        got, back = attention(k, v, t), gradients(attention, k, v, t, along=along)
    wide = [x.double() for x in (k, v, t)]
    want, want_back = attention(*wide), gradients(attention, *wide, along=along)
    assert by_row.tolist() == [[[False, False]], [[False, True]], [[False, True]]]
    assert relative(got, want) <= 64 * tolerance(torch.float32)
    # Rows are saturated: their gradient is a difference of nearly equal numbers, and so is its rounding error.
    noise = tolerance(torch.float32) * (along.norm() * v.abs().max()).item()
    for x, y in zip(back, want_back, strict=True):
        assert (x.double() - y).norm() <= 64 * (tolerance(torch.float32) * y.norm() + noise)


def _with_threshold(k: Tensor, v: Tensor, t: Tensor, *, iterations: int) -> Tensor:
    return principal_attention_pursuit(k, v, iterations=iterations, threshold=t)


@pytest.mark.parametrize("path", ["kernel", "torch"])
def test_hidden_tokens_have_no_influence_and_the_threshold_has_a_gradient(path: str) -> None:
    k, v = normal(2, 3, 23, 8), normal(2, 3, 23, 8, seed=1)
    mask = (torch.arange(23) < 19)[None, None, None].expand(2, 1, 1, 23)
    other_k, other_v = k.clone(), v.clone()
    other_k[..., 19:, :] += 1
    other_v[..., 19:, :] -= 2
    t = torch.full((2, 3), 0.8).requires_grad_()
    with forced(path):
        first = principal_attention_pursuit(k, v, iterations=3, threshold=t, mask=mask)[..., :19, :]
        second = principal_attention_pursuit(other_k, other_v, iterations=3, threshold=t, mask=mask)[..., :19, :]
        unmasked = principal_attention_pursuit(k, v, iterations=3, threshold=t)[..., :19, :]
        (to_t,) = torch.autograd.grad(first.square().sum(), t)
        moved = [
            principal_attention_pursuit(k, v, iterations=3, threshold=0.8 + h, mask=mask)[..., :19, :].double().square()
            for h in (1e-3, -1e-3)
        ]
    assert torch.equal(first, second)
    assert relative(unmasked.detach(), first.detach().double()) > 0.01
    difference = (moved[0] - moved[1]).sum(dim=(-2, -1)) / 2e-3
    assert relative(to_t, difference) <= 0.02  # kinks of the clamp lie within the step


@pytest.mark.parametrize("path", ["kernel"])
def test_gradients_are_right_if_the_forward_pass_saved_nothing(path: str) -> None:
    """Iterates that were not saved are computed again."""
    k, v, along = (normal(1, 2, 31, 8, seed=i) for i in range(3))
    t = torch.full((1, 2, 31), 0.8)
    with forced(path):
        saved, unkept = (
            gradients(lambda k, v, keep=keep: pursuit(k, v, t, None, 3, 2.0, 0.3, False, keep)[0], k, v, along=along)
            for keep in (True, False)
        )
    assert all(torch.equal(x, y) for x, y in zip(saved, unkept, strict=True))


def test_torch_accepts_the_library_operator() -> None:
    k, v = normal(2, 2, 13, 5).requires_grad_(), normal(2, 2, 13, 5, seed=1).requires_grad_()
    t, visible = torch.full((2, 2, 13), 0.8).requires_grad_(), normal(2, 13, seed=2) > 0
    with forced("kernel"):
        for mask, causal, keep in ((None, False, True), (visible, True, True), (None, True, False)):
            checks = ("test_schema", "test_faketensor", "test_autograd_registration")
            torch.library.opcheck(pursuit, (k, v, t, mask, 3, 2.0, 0.3, causal, keep), test_utils=checks)


def test_compiled_forward_and_backward_are_the_same(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch.compile is tested in the session without the import hook")
    k, v, along = (normal(1, 2, 61, 16, seed=i) for i in range(3))
    attention = functools.partial(principal_attention_pursuit, iterations=3, threshold=0.9)
    with forced("kernel"):
        torch.compiler.reset()
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(k, v), attention(k, v))
        got, want = gradients(compiled, k, v, along=along), gradients(attention, k, v, along=along)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_wrong_options_raise_a_clear_error(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of what follows before the operator can")
    k, v = normal(2, 3, 5, 7), normal(2, 3, 5, 7, seed=1)
    attention = functools.partial(principal_attention_pursuit, k, v)
    with pytest.raises(ValueError, match="iterations, one or more; got 0"):
        attention(iterations=0, threshold=1.0)
    with pytest.raises(ValueError, match=r"whole number of iterations.*got 1\.5"):
        attention(iterations=1.5, threshold=1.0)
    with pytest.raises(ValueError, match=r"thresholds on the device of k, cpu; got .* on meta"):
        attention(iterations=1, threshold=torch.ones(2, 3, device="meta"))
    with pytest.raises(ValueError, match=r"floating thresholds .* got torch.int64"):
        attention(iterations=1, threshold=torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="threshold of zero or more; got -1"):
        attention(iterations=1, threshold=-1.0)
    with pytest.raises(ValueError, match="threshold of zero or more; got nan"):
        attention(iterations=1, threshold=float("nan"))
    with pytest.raises(ValueError, match="dual sign of -1"):
        attention(iterations=1, threshold=1.0, dual_sign=0)
    with pytest.raises(ShapeError, match=r"broadcast to \(2, 3\).*got threshold \(4,\)"):
        attention(iterations=1, threshold=torch.ones(4))
    with pytest.raises(ShapeError, match="one width"):
        principal_attention_pursuit(k, v[..., 1:], iterations=1, threshold=1.0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("odd", [float("nan"), -0.5])
def test_unusual_thresholds_act_like_clamp(path: str, odd: float) -> None:
    k, v, t = normal(1, 2, 17, 8), normal(1, 2, 17, 8, seed=1), torch.tensor([[0.7, odd]])
    with forced(path):
        out = principal_attention_pursuit(k, v, iterations=2, threshold=t)
    want = slow_principal_attention_pursuit(k[:, :1], v[:, :1], iterations=2, threshold=0.7)
    assert relative(out[:, :1], want.double()) <= 64 * tolerance(torch.float32)
    if odd < 0:  # all keys become the threshold itself, so the first iterate is the mean of the values
        first = principal_attention_pursuit(k, v, iterations=1, threshold=t)[:, 1]
        assert relative(first, v[:, 1].double().mean(dim=-2, keepdim=True).expand_as(first)) <= tolerance(torch.float32)
    else:
        assert out[:, 1].isnan().all()


def test_a_zero_threshold_has_the_gradient_of_clamp() -> None:
    k, v, along = (normal(1, 2, 17, 8, seed=i) for i in range(3))
    t = torch.zeros(1, 2)
    attention = functools.partial(_with_threshold, iterations=2)
    want = gradients(attention, k.double(), v.double(), t.double(), along=along)
    with forced("kernel"):
        got = gradients(attention, k, v, t, along=along)
    assert relative(got[-1], want[-1]) <= 256 * tolerance(torch.float32)


def test_the_kernel_is_used_for_pursuits_of_several_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if status().kernel is None:
        pytest.skip(f"no compiled kernel: {status().reason}")
    taken: list[int] = []
    module = importlib.import_module("clearhead.operators.pursuit")  # by its name the package has the function

    def noted(*operands) -> tuple[Tensor, ...]:
        taken.append(operands[4])
        return pursuit(*operands)

    monkeypatch.setattr(module, "pursuit_in_kernel", noted)
    k, v = normal(1, 4, 127, 13), normal(1, 4, 127, 13, seed=1)
    for iterations in (1, 2, 3):
        principal_attention_pursuit(k, v, iterations=iterations, threshold=0.7)
    principal_attention_pursuit(k[..., :17, :], v[..., :17, :], iterations=3, threshold=0.7)
    assert taken == [2, 3]

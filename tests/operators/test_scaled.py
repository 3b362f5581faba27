"""Scaled attention: the contract for each kind of S, causality of S, and resizing S to other lengths."""

import dataclasses
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.scaled import (
    AlphaAsymmetric,
    AlphaSymmetric,
    SMatrix,
    resize_matrix,
    scaled_attention,
    slow_scaled_attention,
)
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import ShapeError, check_attention_operands
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from clearhead.testing.operator_checks import MASK_CHECKS
from clearhead.testing.operators import HEADS, KEYS, QUERIES
from tests.operators.contract import run_check
from tests.operators.paths import PATHS, forced


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def within_one_sequence(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The operator as a layer calls it, n = m; other numbers of queries are tested separately."""
    check_attention_operands(q, k, v, mask=mask)
    if q.shape[-2] != k.shape[-2]:
        raise ShapeError(f"expected n = m; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    return attention(q, k, v, mask=mask)


def subject(s, *, square: bool, **options) -> OperatorSubject:
    fast, slow = (functools.partial(f, s=s, **options) for f in (scaled_attention, slow_scaled_attention))
    if square:
        fast, slow = (functools.partial(within_one_sequence, f) for f in (fast, slow))
    # Two nested sums: errors add up.
    return OperatorSubject(
        operator=fast, reference=slow, square=square, terms=4 * KEYS, leading=options.pop("leading", (0, 1, 2))
    )


ALPHA = torch.tensor(0.7, dtype=torch.float64)
FORMS = {
    "matrix": lambda m: SMatrix(normal(m, m) / m, resize="line"),
    "symmetric": lambda m: AlphaSymmetric(ALPHA),
    "asymmetric": lambda m: AlphaAsymmetric(ALPHA),
    "negative alpha": lambda m: AlphaSymmetric(-1.3),
}
BY_HEAD = {
    "matrices": lambda m: SMatrix(normal(HEADS, m, m) / m),
    "symmetric": lambda m: AlphaSymmetric(normal(HEADS)),
    "asymmetric": lambda m: AlphaAsymmetric(normal(HEADS)),
}
ONE_LENGTH = {"leading_axes", "single_token"}
"""Checks that do not apply to an S for three heads or for one length, because they use other sizes."""


@pytest.mark.parametrize("check", OPERATOR_CHECKS)
@pytest.mark.parametrize("form", ["matrix", "symmetric", "asymmetric"])
def test_contract(form: str, check: str, typechecked: bool) -> None:
    run_check(check, subject(FORMS[form](QUERIES), square=True, scale=0.6), typechecked=typechecked)


@pytest.mark.parametrize("check", sorted(OPERATOR_CHECKS.keys() - MASK_CHECKS.keys() | {"padding_mask", "hidden_keys"}))
@pytest.mark.parametrize("form", ["matrix", "symmetric"])
def test_contract_with_other_numbers_of_queries(form: str, check: str, typechecked: bool) -> None:
    run_check(
        check, dataclasses.replace(subject(FORMS[form](KEYS), square=False), masks=False), typechecked=typechecked
    )


@pytest.mark.parametrize("check", [name for name in OPERATOR_CHECKS if name not in ONE_LENGTH | {"gradients"}])
@pytest.mark.parametrize("form", BY_HEAD)
def test_contract_with_one_s_per_head(form: str, check: str, typechecked: bool) -> None:
    run_check(check, subject(BY_HEAD[form](QUERIES), square=True), typechecked=typechecked)


@pytest.mark.parametrize("path", PATHS)
def test_output_is_attention_over_the_residual_of_symmetric_attention(path: str) -> None:
    """Compare with explicit matrices; the output is far from softmax attention."""
    q, k, v = (normal(2, 3, 61, 16, seed=i, dtype=torch.float32) for i in range(3))
    alpha = torch.tensor([0.5, -0.3, 1.0])
    with forced(path):
        got = scaled_attention(q, k, v, s=AlphaSymmetric(alpha))
    rows, among = ((x.double() @ k.double().mT / 4).softmax(dim=-1) for x in (q, k))
    want = rows @ (v.double() - alpha.double()[:, None, None] * (among @ v.double()))
    within = tolerance(torch.float32) * v.abs().max()
    assert (got.double() - want).abs().max() <= within
    assert (softmax_attention(q, k, v).double() - want).abs().max() > 1000 * within


def test_row_i_of_the_matrix_weights_the_tokens_that_i_subtracts() -> None:
    """With one entry, at row 1 and column 4, only the value of token 1 changes: that of token 4 is subtracted."""
    q, k, v = (normal(2, 3, 5, 11, seed=i) for i in range(3))
    matrix, other = torch.zeros(5, 5).double(), v.clone()
    matrix[1, 4] = 1
    other[..., 1, :] -= v[..., 4, :]
    want = softmax_attention(q, k, other)
    for of in (matrix, matrix.expand(3, 5, 5)):
        got = scaled_attention(q, k, v, s=SMatrix(of))
        assert (got - want).abs().max() <= tolerance(torch.float64) * want.abs().max()
    assert (scaled_attention(q, k, v, s=SMatrix(matrix.mT)) - want).abs().max() > 0.01


@pytest.mark.parametrize("form", FORMS)
def test_zero_s_equals_softmax_attention_bit_for_bit(form: str) -> None:
    q, k, v = (normal(2, 3, 7, 11, seed=i, dtype=torch.float32) for i in range(3))
    zero = {"matrix": SMatrix(torch.zeros(7, 7)), "asymmetric": AlphaAsymmetric(0.0)}.get(form, AlphaSymmetric(0.0))
    past = torch.ones(7, 7, dtype=torch.bool).tril()
    for mask in (None, past):
        plain = softmax_attention(q, k, v, mask=mask)
        assert torch.equal(scaled_attention(q, k, v, s=zero, mask=mask), plain)
        assert not torch.equal(scaled_attention(q, k, v, s=FORMS[form](7), mask=mask), plain)


@pytest.mark.parametrize("form", [*FORMS, *(f"{name}, by head" for name in BY_HEAD)])
@pytest.mark.parametrize("batched", [False, True])
def test_later_tokens_do_not_change_earlier_outputs(form: str, batched: bool) -> None:
    """Outputs and gradients do not change at all; without the mask all of them do."""
    name, _, by_head = form.partition(", ")
    s = (BY_HEAD if by_head else FORMS)[name](QUERIES)
    q, k, v = (normal(2, HEADS, QUERIES, 11, seed=i).requires_grad_() for i in range(3))
    past = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
    past = past.expand(2, HEADS, -1, -1) if batched else past
    for at in range(QUERIES - 1):
        later = torch.arange(QUERIES)[:, None] > at
        others = [x.detach().masked_fill(later, 2.0**20) for x in (q, k, v)]
        for mask, leaks in ((past, False), (None, True)):
            out = scaled_attention(q, k, v, s=s, mask=mask)[..., : at + 1, :]
            moved = scaled_attention(*others, s=s, mask=mask)[..., : at + 1, :]
            grads = torch.autograd.grad(out.square().sum(), (q, k, v))
            assert torch.equal(out, moved) is not leaks
            assert any(bool((x * later).any()) for x in grads) is leaks


@pytest.mark.parametrize("form", ["matrix", "symmetric", "asymmetric"])
def test_control_a_causal_mask_on_attention_alone_leaks(form: str) -> None:
    """The control of the test above: with an unmasked S the last token changes earlier outputs."""
    q, k, v = (normal(2, HEADS, QUERIES, 11, seed=i) for i in range(3))
    past, last = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril(), torch.arange(QUERIES)[:, None] == QUERIES - 1
    less = {
        "matrix": lambda v: FORMS["matrix"](QUERIES).matrix @ v,
        "symmetric": lambda v: ALPHA * softmax_attention(k, k, v),
        "asymmetric": lambda v: ALPHA * softmax_attention(q, k, v),
    }[form]
    other = v.masked_fill(last, 3.0)
    first, second = (softmax_attention(q, k, x - less(x), mask=past)[..., :-1, :] for x in (v, other))
    assert (first - second).abs().max() > 0.01


@pytest.mark.parametrize("form", FORMS)
def test_padded_tokens_do_not_matter(form: str) -> None:
    q, k, v = (normal(2, 3, 7, 11, seed=i) for i in range(3))
    there = torch.arange(7) < 5
    s = FORMS[form](7)
    short = SMatrix(s.matrix[:5, :5]) if isinstance(s, SMatrix) else s
    want = scaled_attention(q[..., :5, :], k[..., :5, :], v[..., :5, :], s=short)
    for mask in (there, there.expand(7, 7), there.expand(2, 1, 7, 7)):
        got = scaled_attention(q, k, v, s=s, mask=mask)[..., :5, :]
        assert (got - want).abs().max() <= tolerance(torch.float64) * want.abs().max()
    assert (scaled_attention(q, k, v, s=s)[..., :5, :] - want).abs().max() > 0.01


def test_s_has_a_gradient() -> None:
    q, k, v = (normal(2, 3, 5, 11, seed=i) for i in range(3))
    for kind, value in (
        (SMatrix, normal(3, 5, 5, seed=3)),
        (functools.partial(SMatrix, resize="line"), normal(7, 7, seed=3)),
        (AlphaSymmetric, normal(3, seed=3)),
        (AlphaAsymmetric, normal(1, seed=3)),
    ):
        attend = lambda x, kind=kind: scaled_attention(q, k, v, s=kind(x))  # noqa: E731
        assert torch.autograd.gradcheck(attend, (value.requires_grad_(),))


@settings(max_examples=40)
@given(st.integers(1, 23), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2**31))
def test_a_matrix_resized_to_a_multiple_keeps_its_row_sums(before: int, times: int, apart: int, seed: int) -> None:
    matrix = normal(3, before + apart, before + apart, seed=seed)
    got = resize_matrix(matrix, times * before + apart, num_prefix_tokens=apart)
    sums, slack = matrix.sum(dim=-1), tolerance(torch.float64) * matrix.abs().sum(dim=-1).max()
    new = got.sum(dim=-1)
    assert ((new[:, :apart] - sums[:, :apart]).abs() <= slack).all()
    assert torch.equal(got[:, :apart, :apart], matrix[:, :apart, :apart])
    assert (new[:, apart:].amax(dim=-1) <= sums[:, apart:].amax(dim=-1) + slack).all()
    assert (new[:, apart:].amin(dim=-1) >= sums[:, apart:].amin(dim=-1) - slack).all()
    assert (new[:, apart:].mean(dim=-1) - sums[:, apart:].mean(dim=-1)).abs().max() <= slack


@settings(max_examples=40)
@given(st.integers(1, 23), st.integers(1, 23))
def test_the_resized_mean_is_the_mean(before: int, after: int) -> None:
    got = resize_matrix(torch.full((before, before), 1 / before, dtype=torch.float64), after)
    assert got.shape == (after, after)
    assert (got - 1 / after).abs().max() <= tolerance(torch.float64) / after


def test_only_floating_matrices_are_resized(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("annotations catch these first")
    for dtype in (torch.long, torch.complex64):
        with pytest.raises(ValueError, match="expected a matrix of a floating dtype; got torch"):
            resize_matrix(torch.eye(3).to(dtype), 5)


def test_resizing_up_and_down_known_numbers() -> None:
    """Two tokens become four at the middles of half cells, and four become two again by pairs."""
    up = resize_matrix(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 4)
    rows = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]])
    assert torch.allclose(up, rows @ (rows / 2).mT)
    matrix = normal(6, 6)
    assert resize_matrix(matrix, 6) is matrix
    fewer = torch.stack([resize_matrix(torch.diag(one), 5) for one in torch.eye(23)])
    assert (fewer.abs().amax(dim=(-2, -1)) > 0).all()  # every one of 23 tokens is within some of 5
    left_right = normal(10, 10)
    assert torch.allclose(resize_matrix(left_right.flip(0, 1), 7), resize_matrix(left_right, 7).flip(0, 1))
    assert not torch.allclose(resize_matrix(left_right.flip(0), 7), resize_matrix(left_right, 7))


def test_a_grid_is_resized_along_both_of_its_sides() -> None:
    """A matrix that depends only on grid columns still does so if resized as a grid, and not if resized as a line."""
    side, new = 3, 5
    by_column = torch.kron(torch.full((side, side), 1 / side, dtype=torch.float64), normal(side, side))
    got = resize_matrix(by_column, new * new, layout="grid").unflatten(0, (new, new)).unflatten(-1, (new, new))
    want = resize_matrix(normal(side, side), new) / new
    assert (got - want[None, :, None, :]).abs().max() <= tolerance(torch.float64)
    line = resize_matrix(by_column, new * new).unflatten(0, (new, new))
    assert (line - line[:1]).abs().max() > 1e-3
    with_class = resize_matrix(normal(10, 10), 26, layout="grid", num_prefix_tokens=1)
    assert with_class.shape == (26, 26)
    with pytest.raises(ValueError, match=r"a square number of tokens.*got 10"):
        resize_matrix(normal(10, 10), 25, layout="grid")


def test_other_lengths_raise_or_are_resized() -> None:
    q, k, v = (normal(2, 3, 7, 11, seed=i) for i in range(3))
    matrix = normal(3, 5, 5, seed=3)
    with pytest.raises(ShapeError, match=r"S is for 5 tokens and there are 7.*resize"):
        scaled_attention(q, k, v, s=SMatrix(matrix))
    got = scaled_attention(q, k, v, s=SMatrix(matrix, resize="line", num_prefix_tokens=1))
    assert torch.equal(got, scaled_attention(q, k, v, s=SMatrix(resize_matrix(matrix, 7, num_prefix_tokens=1))))
    assert not torch.equal(got, scaled_attention(q, k, v, s=SMatrix(resize_matrix(matrix, 7))))


def test_invalid_operands_raise_an_error(typechecked: bool) -> None:
    q, k, v = normal(2, 3, 5, 11), normal(2, 3, 7, 11, seed=1), normal(2, 3, 7, 13, seed=2)
    by_query, by_key = torch.ones(5, 7, dtype=torch.bool), torch.ones(2, 1, 1, 7, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"n = m, or a mask \(..., 1, m\).*q \(2, 3, 5, 11\).*mask \(5, 7\)"):
        scaled_attention(q, k, v, s=AlphaSymmetric(0.5), mask=by_query)
    assert scaled_attention(q, k, v, s=AlphaSymmetric(0.5), mask=by_key).shape == (2, 3, 5, 13)
    with pytest.raises(ShapeError, match="a query for every key"):
        scaled_attention(q, k, v, s=AlphaAsymmetric(0.5))
    for alpha in (torch.ones(2), torch.ones(3, 2)):
        with pytest.raises(ShapeError, match=r"one for each head, \(3,\); got alpha"):
            scaled_attention(q, k, v, s=AlphaSymmetric(alpha))
    with pytest.raises(ShapeError, match=r"expected S \(m, m\), or \(h, m, m\) for heads; got S \(2, 7, 7\)"):
        scaled_attention(q, k, v, s=SMatrix(torch.zeros(2, 7, 7)))
    with pytest.raises(ValueError, match="fewer prefix tokens than tokens, 5 before and 3 after; got 3"):
        resize_matrix(normal(5, 5), 3, num_prefix_tokens=3)
    if typechecked:
        pytest.skip("the import hook refuses the rest before the operator can")
    with pytest.raises(ValueError, match="expected s as SMatrix, AlphaSymmetric or AlphaAsymmetric; got float"):
        scaled_attention(q, k, v, s=0.5)
    with pytest.raises(ValueError, match="floating alpha on cpu"):
        scaled_attention(q, k, v, s=AlphaSymmetric(torch.ones(3, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"floating matrix on cpu.*on meta"):
        scaled_attention(q, k, v, s=SMatrix(torch.zeros(7, 7, device="meta")))
    with pytest.raises(ShapeError, match=r"expected a matrix \(..., n, n\); got \(5, 7\)"):
        resize_matrix(normal(5, 7), 3)
    with pytest.raises(ValueError, match='layout "line" or "grid"; got \'circle\''):
        resize_matrix(normal(5, 5), 3, layout="circle")

"""`attention_svm`: accepted and refused operands, results and edge cases, for every norm."""

import numpy as np
import pytest
import torch

from clearhead.shapes import ShapeError
from clearhead.theories.max_margin import MarginWarning, MaxMargin, Norm, Status, attention_svm
from clearhead.theories.max_margin.svm.solving import TOLERANCE
from tests.theories.max_margin.problems import (
    Problem,
    attained_margin,
    feasible_problem,
    linear_problem,
    margin_bound,
    matrix_norm,
)

norms = pytest.mark.parametrize("norm", list(Norm))


def solved(problem: Problem, norm: Norm, **options: object) -> MaxMargin:
    return attention_svm(problem.x, problem.z, problem.selected, norm=norm, **options)  # type: ignore[arg-type]


def is_trivial(found: MaxMargin) -> bool:
    assert found.W is not None
    return (
        found.status is Status.TRIVIAL
        and not found.W.any()
        and found.margin.low == found.margin.high == np.inf
        and found.gap == found.objective == 0
        and not found.support.any()
    )


@norms
def test_one_token_is_trivial(norm: Norm) -> None:
    assert is_trivial(solved(feasible_problem(3, 1, 5, 2), norm))


@norms
@pytest.mark.parametrize("shape", [(0, 5, 3), (7, 0, 3)], ids=["no sequences", "no tokens"])
def test_no_sequences_or_no_tokens_are_trivial(norm: Norm, shape: tuple[int, int, int]) -> None:
    x, z = torch.zeros(shape), torch.zeros(shape[0], 2)
    assert is_trivial(attention_svm(x, z, torch.zeros(shape[0], dtype=torch.int64), norm=norm))


@norms
def test_hidden_tokens_only_are_trivial(norm: Norm) -> None:
    problem = feasible_problem(3, 5, 7, 2)
    assert is_trivial(solved(problem, norm, mask=torch.zeros(3, 5, dtype=torch.bool)))
    only_selected = torch.nn.functional.one_hot(problem.selected, 5).bool()
    assert is_trivial(solved(problem, norm, mask=only_selected))


@norms
def test_a_copy_of_the_selected_token_is_named(norm: Norm) -> None:
    problem = feasible_problem(3, 5, 7, 2)
    x, other = problem.x.clone(), int(problem.selected[1] + 2) % 5
    x[1, other] = x[1, problem.selected[1]]
    result = solved(Problem(x, problem.z, problem.selected), norm)
    assert result.status is Status.INFEASIBLE
    assert result.conflict is not None
    assert result.conflict.tokens == ((1, other),)
    assert (
        f"token {other} of sequence 1 is a copy of the selected token {int(problem.selected[1])}"
        == result.conflict.reason
    )


@norms
def test_a_zero_query_is_named(norm: Norm) -> None:
    problem = feasible_problem(3, 5, 7, 2)
    z = problem.z.clone()
    z[2] = 0
    result = solved(Problem(problem.x, z, problem.selected), norm)
    assert result.status is Status.INFEASIBLE
    assert result.conflict is not None
    assert result.conflict.reason == "the query of sequence 2 is zero"
    assert {sequence for sequence, _ in result.conflict.tokens} == {2}
    assert len(result.conflict.tokens) == 4


@norms
def test_copies_of_other_tokens_change_nothing(norm: Norm) -> None:
    problem = feasible_problem(5, 7, 11, 3)
    once = solved(problem, norm)
    others = torch.stack([problem.x[i, [t for t in range(7) if t != s]] for i, s in enumerate(problem.selected)])
    twice = solved(Problem(torch.cat([problem.x, others], dim=1), problem.z, problem.selected), norm)
    assert twice.status is Status.SOLVED
    assert twice.objective == pytest.approx(once.objective, rel=2 * TOLERANCE[norm])
    if norm is Norm.FROBENIUS:
        assert once.W is not None
        torch.testing.assert_close(twice.W, once.W, rtol=0, atol=1e-9 * float(once.W.norm()))


@norms
def test_a_near_copy_is_solved_with_a_warning(norm: Norm) -> None:
    problem = linear_problem(5, 7, 11)
    x, other = problem.x.clone(), int(problem.selected[3] + 1) % 7
    x[3, other] = x[3, problem.selected[3]] + 1e-9 * torch.randn(11, generator=torch.Generator().manual_seed(0))
    near = Problem(x, problem.z, problem.selected)
    with pytest.warns(MarginWarning, match=f"token {other} of sequence 3 nearly equals the selected token"):
        result = solved(near, norm)
    assert result.status is Status.SOLVED
    assert result.W is not None
    assert result.gap < 1e-6
    assert 0 < result.margin.low < 1e-7
    assert result.margin.low == pytest.approx(attained_margin(near, result.W, norm), rel=1e-6)


@norms
def test_no_warning_without_a_near_copy(norm: Norm, recwarn: pytest.WarningsRecorder) -> None:
    """The control of the test above."""
    assert solved(linear_problem(5, 7, 11), norm).remarks == ()
    assert not [warning for warning in recwarn if issubclass(warning.category, MarginWarning)]


@norms
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scaling_the_data_scales_the_objective_inversely(norm: Norm, scale: float) -> None:
    problem = linear_problem(5, 7, 11)
    plain = solved(problem, norm)
    for scaled in (
        solved(Problem(scale * problem.x, problem.z, problem.selected), norm),
        solved(Problem(problem.x, scale * problem.z, problem.selected), norm),
    ):
        assert scaled.status is Status.SOLVED
        assert scaled.objective * scale == pytest.approx(plain.objective, rel=2 * TOLERANCE[norm])
        assert torch.equal(scaled.support, plain.support)


@norms
def test_sequences_of_very_different_scales(norm: Norm) -> None:
    problem = linear_problem(5, 7, 11)
    sizes = 10.0 ** torch.tensor([2, 0, -2, 1, -1], dtype=torch.float64)
    uneven = Problem(problem.x * sizes[:, None, None], problem.z, problem.selected)
    result = solved(uneven, norm)
    assert result.status is Status.SOLVED
    assert result.W is not None
    assert result.margin.low == pytest.approx(attained_margin(uneven, result.W, norm), rel=1e-9)
    assert result.margin.high == pytest.approx(margin_bound(uneven, result.multipliers, norm), rel=1e-9)


@norms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_solved_in_float64(norm: Norm, dtype: torch.dtype) -> None:
    problem = feasible_problem(5, 7, 11, 3)
    rounded = Problem(problem.x.to(dtype), problem.z.to(dtype), problem.selected)
    result, same = (
        solved(rounded, norm),
        solved(Problem(rounded.x.double(), rounded.z.double(), rounded.selected), norm),
    )
    assert result.W is not None
    assert result.W.dtype is torch.float64
    assert torch.equal(result.W, same.W)


@norms
def test_hidden_tokens_do_not_matter(norm: Norm) -> None:
    """The solution is that of the visible tokens, whatever the contents of the padding."""
    problem = feasible_problem(5, 7, 11, 3)
    padding = torch.full((5, 2, 11), torch.nan, dtype=torch.float64)
    padded = Problem(torch.cat([problem.x, padding], dim=1), problem.z, problem.selected)
    mask = torch.arange(9).expand(5, 9) < 7
    result, plain = solved(padded, norm, mask=mask), solved(problem, norm)
    assert torch.equal(result.W, plain.W)
    assert torch.equal(result.support[:, :7], plain.support)
    assert not result.multipliers[:, 7:].any()
    visible = padded.x.nan_to_num(nan=0.0)
    assert solved(Problem(visible, problem.z, problem.selected), norm).objective != plain.objective  # the control


@norms
def test_a_causal_mask_shows_every_query_the_tokens_up_to_it(norm: Norm) -> None:
    """Each position of a text is a sequence: its query is the token there, its tokens are those up to it."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    W = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    scores = (text @ W @ text.T).T.masked_fill(~mask, -torch.inf)
    selected = scores.argmax(dim=1)
    result = attention_svm(text.expand(7, 7, 5), text, selected, mask=mask, norm=norm)
    assert result.status is Status.SOLVED
    assert result.W is not None
    trained = (text @ result.W @ text.T).T
    of_selected = trained.gather(1, selected[:, None])
    hidden_or_selected = ~mask | torch.nn.functional.one_hot(selected, 7).bool()
    assert float((of_selected - trained)[~hidden_or_selected].min()) == pytest.approx(1, abs=1e-9)
    assert not result.multipliers[hidden_or_selected].any()


@norms
def test_one_query_for_all_sequences_is_the_prompt_problem(norm: Norm) -> None:
    """The objective is that of the prompt problem divided by the query's dual norm."""
    x = feasible_problem(5, 7, 11, 1).x
    selected = (x @ torch.linspace(-1, 2, 11, dtype=torch.float64)).argmax(dim=1)
    query = torch.tensor([0.0, 3.0, -4.0], dtype=torch.float64)
    result = attention_svm(x, query.expand(5, 3), selected, norm=norm)
    prompt = attention_svm(x, None, selected, norm=norm)
    assert result.status is prompt.status is Status.SOLVED
    assert prompt.W is not None
    assert prompt.W.shape == (11, 1)
    dual_length = {Norm.FROBENIUS: 5.0, Norm.NUCLEAR: 5.0, Norm.MAX_ENTRY: 7.0}[norm]
    assert result.objective * dual_length == pytest.approx(prompt.objective, rel=3 * TOLERANCE[norm])


@norms
def test_fields_of_the_result(norm: Norm) -> None:
    problem = feasible_problem(5, 7, 11, 3)
    result = solved(problem, norm)
    assert result.norm is norm
    assert result.W is not None
    assert result.W.shape == (11, 3)
    assert result.multipliers.shape == result.support.shape == (5, 7)
    assert not result.support[torch.arange(5), problem.selected].any()
    assert result.objective == pytest.approx(matrix_norm(result.W, norm), rel=1e-9)
    assert result.multipliers[~result.support].abs().max() < 1e-6 * result.multipliers.max()
    by_name = attention_svm(problem.x, problem.z, problem.selected, norm=str(norm))
    assert torch.equal(by_name.W, result.W)


def test_a_larger_tolerance_gives_a_larger_gap() -> None:
    problem = linear_problem(5, 7, 11)
    rough = solved(problem, Norm.NUCLEAR, tolerance=1e-2)
    assert rough.status is Status.SOLVED
    assert 1e-6 < rough.gap <= 1e-2


def test_operands_may_require_gradients_and_the_result_does_not() -> None:
    problem = feasible_problem(5, 7, 11, 3)
    result = attention_svm(problem.x.requires_grad_(), problem.z, problem.selected)
    assert result.W is not None
    assert not result.W.requires_grad


@pytest.mark.parametrize("name", ["x", "z"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_entries_that_are_not_finite_are_refused(name: str, value: float) -> None:
    problem = feasible_problem(3, 5, 7, 2)
    operands = {"x": problem.x.clone(), "z": problem.z.clone()}
    operands[name].view(-1)[3] = value
    with pytest.raises(ValueError, match=f"{name} has entries that are not finite"):
        attention_svm(operands["x"], operands["z"], problem.selected)


@pytest.mark.parametrize("selected", [[0, 5, 1], [0, -1, 1]])
def test_selected_tokens_out_of_range_or_hidden_are_refused(selected: list[int]) -> None:
    problem = feasible_problem(3, 5, 7, 2)
    with pytest.raises(ValueError, match="out of range or hidden by the mask"):
        attention_svm(problem.x, problem.z, torch.tensor(selected))
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, problem.selected[1]] = False
    with pytest.raises(ValueError, match="out of range or hidden by the mask"):
        attention_svm(problem.x, problem.z, problem.selected, mask=mask)


def test_other_dtypes_are_refused(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the type checker refuses these first")
    problem = feasible_problem(3, 5, 7, 2)
    with pytest.raises(ValueError, match=r"expected x of a floating dtype; got torch\.int64"):
        attention_svm(problem.x.long(), problem.z, problem.selected)
    with pytest.raises(ValueError, match=r"expected selected of an integer dtype; got torch\.float64"):
        attention_svm(problem.x, problem.z, problem.selected.double())
    with pytest.raises(ValueError, match="not a valid Norm"):
        attention_svm(problem.x, problem.z, problem.selected, norm="spectral")


def test_shapes_that_do_not_fit_are_refused(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the type checker refuses these first")
    problem = feasible_problem(3, 5, 7, 2)
    mask = torch.ones(3, 4, dtype=torch.bool)
    wrong = [
        (problem.x[0], problem.z, problem.selected, None),
        (problem.x, problem.z[:2], problem.selected, None),
        (problem.x, problem.z[:, 0], problem.selected, None),
        (problem.x, problem.z, problem.selected[:2], None),
        (problem.x, problem.z, problem.selected, mask),
    ]
    for x, z, selected, wrong_mask in wrong:
        with pytest.raises(
            ShapeError, match=r"expected x \(n, t, d\), z \(n, e\), selected \(n\), mask \(n, t\); got x"
        ):
            attention_svm(x, z, selected, mask=wrong_mask)

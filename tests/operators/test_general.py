"""General attention: the contract for each similarity, its reference, its kernel, and bad input."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    embedded_gaussian,
    gaussian_distance,
    general_attention,
    slow_general_attention,
)
from clearhead.shapes import ShapeError
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject, require_close
from clearhead.testing.operators import WIDTH
from tests.operators.contract import run_check
from tests.operators.similarities import COUNTED, EXPONENTIAL, SIMILARITIES, VALUES, WEIGHT, random_operands, rotate


def subject(similarity: Similarity, **options) -> OperatorSubject:
    return OperatorSubject(
        operator=functools.partial(general_attention, similarity=similarity, **options),
        reference=functools.partial(slow_general_attention, similarity=similarity, **options),
    )


VARIANTS = {name: subject(similarity) for name, similarity in SIMILARITIES.items()} | {
    "embedded gaussian, values too": subject(EXPONENTIAL["embedded gaussian"], value=torch.sin),
    "embedded dot product, values too": subject(dot_product(rotate, torch.tanh), value=torch.sin),
}


# Outputs divided by the count are not means of the values: for scores beyond the range of float16 the exact output is
# beyond it as well, so `half_range`, which requires a finite one, does not apply.
UNBOUNDED = {*COUNTED, "embedded dot product, values too"}
CONTRACT = [
    (variant, check)
    for variant in VARIANTS
    for check in OPERATOR_CHECKS
    if check != "half_range" or variant not in UNBOUNDED
]


@pytest.mark.parametrize(("variant", "check"), CONTRACT)
def test_contract(variant: str, check: str, typechecked: bool) -> None:
    run_check(check, VARIANTS[variant], typechecked=typechecked)


def test_outputs_divided_by_the_count_can_overflow_half_precision() -> None:
    q, k, v = (torch.full((1, 2), 2.0**9, dtype=torch.float16) for _ in range(3))
    assert general_attention(q, k, v, similarity=dot_product()).isinf().all()
    assert general_attention(q.float(), k.float(), v.float(), similarity=dot_product()).eq(2.0**28).all()


@st.composite
def calls(draw):
    """Draw operands of random sizes, including n != m, with linear or other maps, with or without mask and bias."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    b, n, m = draw(st.integers(0, 3)), draw(st.integers(1, 5)), draw(st.integers(0, 7))
    p, d, width, c = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 7)), draw(st.integers(1, 5))
    to_width = normal(p, width), normal(d, width)
    theta, phi = (lambda x: x @ to_width[0]), (lambda x: torch.tanh(x @ to_width[1]))
    similarity = draw(
        st.sampled_from(
            [
                embedded_gaussian(theta, phi, scale=0.6),
                dot_product(theta, phi),
                concatenation(normal(2 * width), theta, phi),
                gaussian_distance(bandwidth=1.7, theta=theta, phi=phi),
            ]
        )
    )
    options = {"similarity": similarity, "value": VALUES[draw(st.sampled_from(sorted(VALUES)))]}
    if draw(st.booleans()):
        mask = torch.rand(b, n, m, generator=generator) < draw(st.sampled_from([0.2, 0.7]))
        options["mask"] = draw(st.sampled_from([mask, mask[:, :1], mask.any(dim=0)]))
    if draw(st.booleans()):
        options["bias"] = draw(st.sampled_from([normal(b, n, m), normal(n, m), normal(m)]))
    return (normal(b, n, p), normal(b, m, d), normal(b, m, c)), options


@settings(max_examples=80)
@given(calls())
def test_outputs_and_gradients_match_the_reference(call) -> None:
    operands, options = call
    results = []
    for attention in (general_attention, slow_general_attention):
        leaves = [x.clone().requires_grad_() for x in operands]
        bias = {"bias": options["bias"].clone().requires_grad_()} if "bias" in options else {}
        out = attention(*leaves, **options | bias)
        wanted = [*leaves, *bias.values()]
        form = out.sin().sum() + sum(
            0 * x.sum() for x in wanted
        )  # without keys the reference's output depends on nothing
        grads = torch.autograd.grad(form, wanted)
        results.append((out, *grads))
    size = max([1.0, *(float(x.detach().abs().max()) for x in results[1] if x.numel())])
    for got, want in zip(*results, strict=True):
        require_close(got, want, within=tolerance(torch.float64), size=size, what=str(tuple(want.shape)))


@pytest.mark.parametrize("name", EXPONENTIAL)
def test_exponential_similarities_use_the_fused_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def calls_of(similarity: Similarity) -> int:
        calls = []
        plain = torch.nn.functional.scaled_dot_product_attention
        with monkeypatch.context() as patch:
            patch.setattr(
                "clearhead.operators.softmax.scaled_dot_product_attention",
                lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs),
            )
            general_attention(*random_operands(), similarity=similarity)
        return len(calls)

    assert calls_of(EXPONENTIAL[name]) == 1
    assert calls_of(dot_product()) == 0


@pytest.mark.parametrize("name", SIMILARITIES)
def test_a_row_without_keys_is_zero(name: str) -> None:
    q, k, v = random_operands()
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    mask[3] = False
    out = general_attention(q, k, v, similarity=SIMILARITIES[name], mask=mask)
    assert (out[..., 3, :] == 0).all()
    assert (out[..., :3, :] != 0).all()
    assert (general_attention(q, k[..., :0, :], v[..., :0, :], similarity=SIMILARITIES[name]) == 0).all()


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_numbers_are_propagated(name: str, bad: float) -> None:
    clean = random_operands()
    attend = functools.partial(general_attention, similarity=SIMILARITIES[name])
    assert attend(*clean).isfinite().all()
    for index, rows in enumerate(([3], range(5), range(5))):
        operands = [x.clone() for x in clean]
        operands[index][..., 3, :] = bad
        spoilt = ~attend(*operands).isfinite().all(dim=-1)
        # tanh maps infinity to a finite number, and exp(-inf) is a weight of zero.
        tamed = bad == math.inf and index < 2 and name in ("embedded gaussian", "laplacian")
        assert tamed or spoilt[..., list(rows)].all()
        assert spoilt.sum() <= len(rows) * 6


def wide(x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, torch.ones(17, WIDTH, dtype=x.dtype))


REFUSED = {
    "another b": (lambda q, k, v: (q, k[1:], v[1:]), {}, ShapeError, "equal leading shape"),
    "another m": (lambda q, k, v: (q, k, v[..., 1:, :]), {}, ShapeError, r"got q \(2, 3, 5, 11\).*v \(2, 3, 6, 13\)"),
    "one axis": (lambda q, k, v: (q[0, 0, 0], k, v), {}, ShapeError, r"got q \(11,\)"),
    "another d": (lambda q, k, v: (q, k[..., 1:], v), {}, ShapeError, r"one width.*theta\(q\) \(2, 3, 5, 11\)"),
    "another width after the maps": (
        lambda q, k, v: (q, k, v),
        {"similarity": embedded_gaussian(wide, None)},
        ShapeError,
        r"theta\(q\) \(2, 3, 5, 17\), phi\(k\) \(2, 3, 7, 11\) from q \(2, 3, 5, 11\)",
    ),
    "integers that a map makes floating": (
        lambda q, k, v: (q.long(), k.long(), v.long()),
        {"similarity": EXPONENTIAL["embedded gaussian"], "value": torch.sin},
        ValueError,
        "one floating dtype; got q .*int64",
    ),
    "mixed dtypes": (lambda q, k, v: (q, k.float(), v), {}, ValueError, "float64.*float32"),
    "a weight too short": (
        lambda q, k, v: (q, k, v),
        {"similarity": concatenation(WEIGHT[1:])},
        ShapeError,
        r"expected a weight \(22,\).*got weight \(21,\)",
    ),
    "a mask too short": (
        lambda q, k, v: (q, k, v),
        {"mask": torch.ones(5, 3, dtype=torch.bool)},
        ShapeError,
        r"mask \(5, 3\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_raises_an_error(case: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses most of these before the operator can")
    change, options, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        general_attention(*change(*random_operands()), **options)
    general_attention(*random_operands())


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_a_bandwidth_is_above_zero(bandwidth: float) -> None:
    with pytest.raises(ValueError, match=f"expected a bandwidth above zero; got {bandwidth}"):
        gaussian_distance(bandwidth=bandwidth)

"""NaN, infinity and overflow reach the output: no operator returns zeros or other numbers for them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators import (
    PRESETS,
    AlphaAsymmetric,
    AlphaSymmetric,
    clamped_key_attention,
    general_attention,
    kernel_pca,
    kernel_pca_attention,
    kernel_pca_spectrum,
    rpc_attention,
    scaled_attention,
    softmax_attention,
    symmetric_attention,
)
from clearhead.operators.general import dot_product, gaussian_distance
from clearhead.operators.kernel_pca_solvers import Solver
from clearhead.operators.named import RPC, ClampedKeys, Softmax, Symmetric
from clearhead.operators.softmax import slow_softmax_attention
from tests.operators.paths import PATHS, forced

Attention = Callable[..., Tensor]

BY_QUERY: dict[str, Attention] = {
    "softmax": softmax_attention,
    "softmax, capped": lambda q, k, v, *, mask: softmax_attention(q, k, v, mask=mask, softcap=5.0),
    "softmax, sinks": lambda q, k, v, *, mask: softmax_attention(q, k, v, mask=mask, sinks=torch.zeros(q.shape[-3])),
    "softmax, bias": lambda q, k, v, *, mask: softmax_attention(q, k, v, mask=mask, bias=torch.ones(q.shape[-2], 1)),
    "softmax, finer bias": lambda q, k, v, *, mask: softmax_attention(
        q, k, v, mask=mask, bias=torch.ones(q.shape[-2], 1, dtype=torch.float64)
    ),
    "general": general_attention,
    "general, distance": lambda q, k, v, *, mask: general_attention(
        q, k, v, mask=mask, similarity=gaussian_distance(bandwidth=1.0)
    ),
    "general, dot product": lambda q, k, v, *, mask: general_attention(q, k, v, mask=mask, similarity=dot_product()),
    "scaled": lambda q, k, v, *, mask: scaled_attention(q, k, v, s=AlphaAsymmetric(torch.tensor(0.5)), mask=mask),
    "scaled by keys": lambda q, k, v, *, mask: scaled_attention(
        q, k, v, s=AlphaSymmetric(torch.tensor(0.5)), mask=mask
    ),
    "clamped keys": lambda q, k, v, *, mask: clamped_key_attention(q, k, v, mask=mask),
    "RPC": lambda q, k, v, *, mask: rpc_attention(q, k, v, mask=mask),
    "RPC with dropout": lambda q, k, v, *, mask: rpc_attention(q, k, v, mask=mask, dropout=0.1),
    "swapped softmax": Softmax(),
    "swapped RPC": RPC(queries="given"),
    "swapped clamped keys": ClampedKeys(queries="given"),
}
# Later steps of these attend with the output of earlier ones, so NaN spreads over the head.
SPREADS = {"scaled", "RPC", "RPC with dropout", "swapped RPC"}
BY_KEY: dict[str, Attention] = {
    "symmetric": lambda q, k, v, *, mask: symmetric_attention(k, v, mask=mask),
    "clamped keys": lambda q, k, v, *, mask: clamped_key_attention(None, k, v, mask=mask),
    "RPC": lambda q, k, v, *, mask: rpc_attention(None, k, v, mask=mask),
    "RPC, paper": lambda q, k, v, *, mask: rpc_attention(None, k, v, mask=mask, pursuit=PRESETS["paper"]),
    "RPC, ADMM": lambda q, k, v, *, mask: rpc_attention(None, k, v, mask=mask, pursuit=PRESETS["admm"]),
    "RPC with dropout": lambda q, k, v, *, mask: rpc_attention(None, k, v, mask=mask, dropout=0.1),
    "swapped symmetric": Symmetric(),
    "swapped RPC": RPC(),
    "swapped clamped keys": ClampedKeys(),
}
SIZES = [1, 5, 17, 131]
MASKS: dict[str, Callable[[int], Tensor | None]] = {
    "none": lambda n: None,
    "causal": lambda n: torch.ones(n, n, dtype=torch.bool).tril(),
    "padding": lambda n: torch.arange(n) <= n // 2,
}


def _operands(n: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    q, k, v = torch.randn(3, 2, 2, n, 8, generator=generator).to(dtype).unbind()
    return q, k, v


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("operator", BY_QUERY)
def test_nan_in_a_query_gives_nan_in_its_row(operator: str, mask: str, n: int) -> None:
    q, k, v = _operands(n)
    q[0, 1, n // 2, 3] = torch.nan
    out = BY_QUERY[operator](q, k, v, mask=MASKS[mask](n))
    assert out[0, 1, n // 2].isnan().all()
    out[0, 1, slice(None) if operator in SPREADS else n // 2] = 0
    assert not out.isnan().any()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("operator", BY_QUERY)
def test_nan_in_a_key_gives_nan_in_every_row_that_sees_it(operator: str, mask: str, n: int) -> None:
    q, k, v = _operands(n)
    k[0, 1, n // 2, 3] = torch.nan
    shown = MASKS[mask](n)
    out = BY_QUERY[operator](q, k, v, mask=shown)
    sees = torch.ones(n, dtype=torch.bool) if shown is None else shown.expand(n, n)[:, n // 2]
    assert out[0, 1][sees].isnan().all()
    out[0, 1] = 0
    assert not out.isnan().any()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("operator", BY_KEY)
def test_nan_in_a_key_used_as_query_gives_nan_in_every_row_that_sees_it(
    operator: str, path: str, mask: str, n: int
) -> None:
    q, k, v = _operands(n)
    k[0, 1, n // 2, 3] = torch.nan
    shown = MASKS[mask](n)
    with forced(path):
        out = BY_KEY[operator](q, k, v, mask=shown)
    sees = torch.ones(n, dtype=torch.bool) if shown is None else shown.expand(n, n)[:, n // 2]
    assert out[0, 1][sees].isnan().all()
    out[0, 1] = 0
    assert not out.isnan().any()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("operator", BY_KEY)
def test_nan_in_a_value_gives_nan_in_the_output(operator: str, path: str, n: int) -> None:
    q, k, v = _operands(n)
    v[0, 1, n // 2, 3] = torch.nan
    with forced(path):
        out = BY_KEY[operator](q, k, v, mask=None)
    assert out[0, 1, :, 3].isnan().all()
    assert not out[1].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["q", "k", "every k"])
def test_the_fused_kernel_gives_nan_where_softmax_does(
    where: str, bad: float, mask: str, n: int, dtype: torch.dtype
) -> None:
    q, k, v = _operands(n, dtype=dtype)
    changed = q if where == "q" else k
    changed[0, 1, slice(None) if where == "every k" else n // 2, 3] = bad
    shown = MASKS[mask](n)
    expected = slow_softmax_attention(q.double(), k.double(), v.double(), mask=shown)
    assert expected[0, 1].isnan().any() or math.isinf(bad)
    assert softmax_attention(q, k, v, mask=shown)[expected.isnan()].isnan().all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_that_overflow_give_nan(sign: int, n: int) -> None:
    q, k, v = (x.abs() for x in _operands(n))
    q, k = 1e25 * q, sign * 1e25 * k
    assert softmax_attention(q, k, v).isnan().all()
    assert softmax_attention(q, k, v, bias=torch.zeros(1, 1, dtype=torch.float64)).isnan().all()
    assert softmax_attention(1e-14 * q, k, v, scale=1e-20).isfinite().all()
    assert softmax_attention(q, k, v, scale=1e-40).isnan().all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bias_that_is_not_finite_gives_nan(bad: float, n: int) -> None:
    q, k, v = _operands(n)
    bias = torch.zeros(n, n)
    bias[n // 2] = bad
    out = softmax_attention(q, k, v, bias=bias)
    assert out[..., n // 2, :].isnan().all()
    assert out.isnan().any(dim=-1).sum() == 4
    bias[n // 2] = -torch.inf  # hides every key
    assert not softmax_attention(q, k, v, bias=bias).isnan().any()


@pytest.mark.parametrize("transform", ["compile", "vmap", "grad"])
def test_nan_is_propagated_in_compiled_and_mapped_calls(transform: str, typechecked: bool) -> None:
    if typechecked and transform == "compile":
        pytest.skip("torch cannot compile the checks of annotations")
    q, k, v = _operands(5)
    q[0, 1, 2, 3] = torch.nan
    if transform == "compile":
        torch._dynamo.reset()
        out = torch.compile(softmax_attention, backend="eager", fullgraph=True)(q, k, v)
    elif transform == "vmap":
        out = torch.vmap(softmax_attention)(q, k, v)
    else:
        out = -torch.func.grad(lambda v: softmax_attention(q, k, v)[0, 1, 2].sum())(v)
        assert out[0, 1].isnan().any()
        return
    assert out[0, 1, 2].isnan().all()
    assert out.isnan().any(dim=-1).sum() == 1


def test_rows_without_keys_are_zero_for_any_query() -> None:
    q, k, v = _operands(5)
    q[0, 1, 2, 3] = torch.nan
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    assert not softmax_attention(q, k, v, mask=mask).isnan().any()


@pytest.mark.parametrize("n", [1, 5, 67])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["keys", "values"])
@pytest.mark.parametrize("operator", [*BY_QUERY, *BY_KEY])
def test_rows_without_keys_are_zero_whatever_is_hidden(operator: str, where: str, bad: float, n: int) -> None:
    """The same in all operators: nothing is weighted, so there is nothing that could be NaN."""
    q, k, v = _operands(n)
    (k if where == "keys" else v)[0, 0, n // 2, 0] = bad
    hidden = torch.zeros(n, n, dtype=torch.bool)
    attend = BY_QUERY.get(operator, BY_KEY.get(operator))
    assert attend is not None
    assert (attend(q, k, v, mask=hidden) == 0).all()
    padding = torch.zeros(2, 1, 1, n, dtype=torch.bool)
    padding[1] = True  # the other input sees all
    out = attend(q, k, v, mask=padding)
    assert (out[0] == 0).all()
    assert out[1].isfinite().all()


def test_large_numbers_with_finite_scores_give_finite_outputs() -> None:
    q, k, v = _operands(17)
    expected = softmax_attention(q, k, v)
    out = softmax_attention(1e15 * q, 1e15 * k, v, scale=math.sqrt(1 / 8) * 1e-30)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("solver", ["dense", "partial"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_kernel_pca_refuses_keys_that_are_not_finite(bad: float, solver: Solver) -> None:
    q, k, _ = _operands(17)
    k[0, 1, 5, 3] = bad
    for call in (
        lambda: kernel_pca(k, axes=2, solver=solver),
        lambda: kernel_pca_spectrum(k),
        lambda: kernel_pca_attention(q, k, axes=2),
    ):
        with pytest.raises(InputError, match="finite keys"):
            call()
    hidden = torch.arange(17) != 5
    assert kernel_pca(k, axes=2, mask=hidden, solver=solver).energy.isfinite().all()


def test_kernel_pca_without_keys_or_with_all_keys_hidden() -> None:
    q, k, _ = _operands(5)
    for result in (kernel_pca(k[..., :0, :], axes=2), kernel_pca(k, axes=2, mask=torch.zeros(5, dtype=torch.bool))):
        assert result.energy.tolist() == [[[0, 0]] * 2] * 2
        assert not result.rank.any()
        assert result.values.isfinite().all()
    assert not kernel_pca_attention(q, k[..., :0, :], axes=2).any()
    assert not kernel_pca_attention(q, k, axes=2, mask=torch.zeros(5, dtype=torch.bool)).any()
    assert kernel_pca_spectrum(k[..., :0, :]).energy.shape == (2, 2, 0)


def test_kernel_pca_of_keys_that_overflow_finds_no_axis() -> None:
    """Scores of 1e74 have no digit left for differences of keys, so no axis is distinguished from rounding."""
    _, k, _ = _operands(17)
    result = kernel_pca(1e37 * k, axes=2)
    assert not result.rank.any()
    assert result.values.isfinite().all()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("n", [5, 131])
def test_infinite_keys_are_not_clamped_to_zero(preset: str, n: int) -> None:
    """Their mean is infinite: mu is zero, and lambda mu would clamp every key of the head to zero."""
    _, k, v = _operands(n)
    k[0, 1, 2, 3] = torch.inf
    for out in (
        rpc_attention(None, k, v, pursuit=PRESETS[preset]),
        clamped_key_attention(None, k, v, bound=PRESETS[preset].bound),
    ):
        assert out[0, 1].isnan().all()
        assert out[1].isfinite().all()

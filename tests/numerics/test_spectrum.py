import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.numerics.spectrum import captured_fraction, centred, features_from_log_kernel, orthonormal_basis

EXACT = tolerance(torch.float64)
seeds = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_kernel_of(vectors: Tensor) -> Tensor:
    return vectors @ vectors.mT


def log_errors(log_kernel: Tensor) -> Tensor:
    """Return the distance of the features' inner products from the kernel, relative to the product of both lengths."""
    features = features_from_log_kernel(log_kernel)
    got = features.direction @ features.direction.mT
    want = (log_kernel - features.log_norm[..., :, None] - features.log_norm[..., None, :]).exp()
    return (got - want).abs()


@settings(max_examples=30)
@given(seeds, st.integers(1, 11), st.integers(1, 7))
def test_features_reproduce_the_kernel(seed: int, n: int, d: int) -> None:
    log_kernel = log_kernel_of(normal(seed, 2, n, d))
    features = features_from_log_kernel(log_kernel)
    rows = features.direction * features.log_norm.exp()[..., None]
    kernel = log_kernel.exp()
    size = kernel.diagonal(dim1=-2, dim2=-1).sqrt()
    error = (rows @ rows.mT - kernel).abs() / (size[..., :, None] * size[..., None, :])
    assert error.max() <= EXACT * n


@pytest.mark.parametrize("size", [-800.0, 800.0])
def test_features_are_exact_beyond_the_range_of_exp(size: float) -> None:
    log_kernel = size + log_kernel_of(normal(3, 7, 5))
    assert not ((log_kernel.exp() > 0) & log_kernel.exp().isfinite()).any()
    features = features_from_log_kernel(log_kernel)
    assert features.direction.isfinite().all()
    assert (2 * features.log_norm - log_kernel.diagonal()).abs().max() <= EXACT * abs(size)
    assert log_errors(log_kernel).max() <= EXACT * abs(size)


def test_features_are_exact_for_log_kernels_from_minus_to_plus_800() -> None:
    vectors = torch.tensor([[28.3, 0.0, 0.1], [-28.3, 0.0, 0.2], [0.0, 0.3, 0.0], [0.0, 9.0, 9.0], [0.1, -28.0, 0.0]])
    log_kernel = log_kernel_of(vectors.double())
    assert log_kernel.min() < -800
    assert log_kernel.max() > 800
    assert log_errors(log_kernel).max() <= EXACT * 800


@pytest.mark.parametrize("noise", [0.0, 1e-15, 1e-12, 1e-9])
@pytest.mark.parametrize("size", [1.0, 100.0, 800.0])
def test_equal_and_nearly_equal_vectors_are_accepted(size: float, noise: float) -> None:
    """Logarithms of size s are rounded by eps s, so the correlations of equal vectors are indefinite by that amount.

    Vectors that differ by less than rounding count as equal, with an error of their difference.
    """
    for seed in range(7):
        distinct = normal(seed, 7, 13)
        vectors = distinct[torch.arange(31) % 7] * (size / distinct.square().sum(dim=-1).max()).sqrt()
        log_kernel = log_kernel_of(vectors * (1 + noise * normal(seed + 1, 31, 13)))
        assert log_errors(log_kernel).max() <= (31 * EXACT + noise) * max(size, 1)


@pytest.mark.parametrize("tokens", [17, 64, 211])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_low_rank_kernels_of_narrow_vectors(width: int, tokens: int) -> None:
    """Pivots beyond the rank are rounding errors; using one of them would spoil all later pivots."""
    for seed in range(5):
        for size in (0.1, 1.0, 3.0):
            log_kernel = log_kernel_of(size * normal(seed, tokens, width))
            features = features_from_log_kernel(log_kernel)
            # A row that counts as zero contributes an error of at most the root of its remainder, 4 eps (n + |s|).
            left = 4 * EXACT / 64 * (tokens + float(log_kernel.abs().max()))
            assert log_errors(log_kernel).max() <= 2 * left**0.5
            rows = features.direction.gather(-2, features.pivots.unsqueeze(-1).expand_as(features.direction))
            assert torch.equal(rows, rows.tril())


def test_a_singular_kernel_does_not_change_others_of_its_batch() -> None:
    vectors = 10 * normal(3, 5, 11, 7)
    vectors[2] = vectors[2, 0] * (1 + 1e-12 * normal(5, 11, 7))
    log_kernel = log_kernel_of(vectors)
    together = features_from_log_kernel(log_kernel).direction
    for i in range(5):
        assert torch.equal(together[i], features_from_log_kernel(log_kernel[i]).direction)


def test_a_kernel_that_is_not_positive_is_refused() -> None:
    log_kernel = log_kernel_of(normal(3, 3, 5, 2))
    features_from_log_kernel(log_kernel)
    log_kernel[1, 0, 1] = log_kernel[1, 1, 0] = log_kernel[1].diagonal().max() + 1
    with pytest.raises(ValueError, match="expected a positive semi-definite kernel"):
        features_from_log_kernel(log_kernel)


def projector(basis: Tensor) -> Tensor:
    return basis @ basis.mT


def projector_of(columns: Tensor, rank: int) -> Tensor:
    """Return the projector on the column space, computed from the leading eigenvectors of the rows' Gram matrix."""
    vectors = torch.linalg.eigh(columns @ columns.mT).eigenvectors[..., columns.shape[-2] - rank :]
    return projector(vectors)


def deficient(columns: Tensor, kind: str) -> tuple[Tensor, int]:
    """Return the columns, changed so that their rank is lower, and that rank."""
    r, e = columns.shape[-2:]
    changed = columns.clone()
    match kind:
        case "none":
            return changed, min(r, e)
        case "zero column":
            changed[..., 1] = 0
            return changed, min(r, e - 1)
        case "zero column first":
            changed[..., 0] = 0
            return changed, min(r, e - 1)
        case "equal columns":
            changed[..., 2] = changed[..., 0]
            return changed, min(r, e - 1)
        case "a mix of others":
            changed[..., e - 1] = 2 * changed[..., 0] - 3 * changed[..., 1]
            return changed, min(r, e - 1)
        case "rank one":
            return changed[..., :1] * torch.linspace(1, 2, e, dtype=torch.float64), 1
    raise AssertionError(kind)


KINDS = ["none", "zero column", "zero column first", "equal columns", "a mix of others", "rank one"]


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("shape", [(11, 5), (5, 5), (5, 7)], ids=["tall", "square", "wide"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_basis_spans_exactly_the_columns(kind: str, shape: tuple[int, int], leading: tuple[int, ...]) -> None:
    columns, rank = deficient(normal(7, *leading, *shape), kind)
    basis = orthonormal_basis(columns)
    assert basis.shape == columns.shape
    gram = basis.mT @ basis
    assert (gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1).round())).abs().max() <= EXACT
    assert (gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1) - rank).abs().max() <= EXACT
    assert (projector(basis) - projector_of(columns, rank)).abs().max() <= math.sqrt(machine_epsilon(torch.float64))


def test_control_qr_alone_adds_a_direction() -> None:
    columns, rank = deficient(normal(7, 11, 5), "equal columns")
    invented = torch.linalg.qr(columns).Q
    assert (projector(invented) - projector_of(columns, rank)).abs().max() > 0.01


def test_zero_columns_have_a_zero_basis() -> None:
    assert (orthonormal_basis(torch.zeros(2, 7, 3)) == 0).all()


def test_only_rank_deficient_items_lose_a_column() -> None:
    columns = normal(7, 3, 11, 5)
    columns[1], _ = deficient(columns[1], "equal columns")
    ranks = orthonormal_basis(columns).square().sum(dim=(-2, -1))
    assert (ranks - torch.tensor([5.0, 4.0, 5.0])).abs().max() <= EXACT


def test_column_sizes_do_not_matter() -> None:
    columns = normal(7, 11, 5)
    sizes = torch.tensor([1.0, 1e-20, 1e200, 1e-200, 1e8], dtype=torch.float64)
    difference = projector(orthonormal_basis(columns * sizes)) - projector(orthonormal_basis(columns))
    assert difference.abs().max() <= EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_very_different_sizes_are_accurate(kind: str) -> None:
    """Return the projector on the span of diag(size) C by its definition, in 400-digit arithmetic."""
    columns, rank = deficient(normal(7, 11, 5), kind)
    log_size = torch.linspace(150, -150, 11, dtype=torch.float64)
    others = {"zero column": [0, 2, 3, 4], "zero column first": [1, 2, 3, 4], "equal columns": [0, 1, 3, 4]}
    independent = columns[:, others.get(kind, list(range(rank)))]
    with mpmath.workdps(400):
        scaled = mpmath.diag([mpmath.exp(x) for x in log_size.tolist()]) * mpmath.matrix(independent.tolist())
        exact = scaled * (scaled.T * scaled) ** -1 * scaled.T
        want = torch.tensor([[float(exact[i, j]) for j in range(11)] for i in range(11)], dtype=torch.float64)
    got = projector(orthonormal_basis(columns, log_size))
    # Entries between small and large rows fall to e^-300, and each has a small relative error.
    assert ((got - want) / want)[rank:, :rank].abs().max() <= 1e-9
    assert (got - want).abs().max() <= EXACT


def test_equal_vectors_share_their_coordinates() -> None:
    vectors = normal(3, 7, 5)
    vectors[4] = vectors[1]
    direction = features_from_log_kernel(log_kernel_of(vectors)).direction
    assert [bool(column.any()) for column in direction.T] == [True] * 6 + [False]
    assert (direction[4] - direction[1]).abs().max() <= EXACT


def leading_directions(rows: Tensor, count: int) -> Tensor:
    return torch.linalg.svd(rows, full_matrices=False).Vh.mT[..., :count]


@settings(max_examples=30)
@given(seeds, st.sampled_from([(11, 7), (7, 11)]), st.integers(1, 5))
def test_leading_directions_capture_the_largest_variance(seed: int, shape: tuple[int, int], count: int) -> None:
    rows = centred(normal(seed, 2, *shape))
    best = leading_directions(rows, count)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=torch.float64)[:count]
    rotation = torch.linalg.qr(normal(seed + 1, count, count)).Q
    mix = normal(seed + 2, count, count)
    for copy in (best, best * signs, best.flip(-1), best @ rotation, 1e-9 * best @ mix):
        assert (captured_fraction(rows, orthonormal_basis(copy)) - 1).abs().max() <= EXACT * torch.linalg.cond(
            mix
        ).item()


@settings(max_examples=30)
@given(seeds, st.integers(1, 5))
def test_other_directions_capture_less(seed: int, count: int) -> None:
    rows = centred(normal(seed, 2, 11, 7))
    drawn = normal(seed + 1, 7, count)
    value = captured_fraction(rows, orthonormal_basis(drawn))
    assert (value < 1 - EXACT).all()
    assert (value > 0).all()
    mix = normal(seed + 2, count, count)
    mixed = captured_fraction(rows, orthonormal_basis(drawn @ mix))
    assert (mixed - value).abs().max() <= EXACT * torch.linalg.cond(mix).item() * torch.linalg.cond(drawn).item()
    last = leading_directions(rows, 7)[..., 7 - count :]
    assert (captured_fraction(rows, last) <= value + EXACT).all()


def test_a_common_factor_of_rows_does_not_matter_and_single_factors_do() -> None:
    rows, basis = centred(normal(3, 11, 7)), orthonormal_basis(normal(5, 7, 3))
    value = captured_fraction(rows, basis)
    assert (captured_fraction(1e-6 * rows, basis) - value).abs() <= EXACT
    louder = rows * torch.tensor([100.0] + 10 * [1.0])[:, None]
    assert (captured_fraction(louder, basis) - value).abs() > 0.01


def test_many_bases_are_measured_on_the_same_rows() -> None:
    rows, bases = centred(normal(3, 2, 11, 7)), orthonormal_basis(normal(5, 5, 2, 7, 3))
    together = captured_fraction(rows, bases)
    assert together.shape == (5, 2)
    for i in range(5):
        for j in range(2):
            assert (together[i, j] - captured_fraction(rows[j], bases[i, j])).abs() <= EXACT
    assert (together[0] - together[1]).abs().max() > 0.01


def test_zero_rows_have_no_captured_fraction() -> None:
    rows = torch.stack([torch.zeros(5, 7, dtype=torch.float64), normal(3, 5, 7)])
    value = captured_fraction(rows, orthonormal_basis(normal(5, 7, 3)))
    assert value.isnan().tolist() == [True, False]


def test_centred_rows_sum_to_zero() -> None:
    rows = 7 + normal(3, 2, 11, 5)
    assert centred(rows).sum(dim=-2).abs().max() <= EXACT * 7
    assert (centred(rows) - centred(rows + normal(5, 2, 1, 5))).abs().max() <= EXACT * 7
    assert rows.sum(dim=-2).abs().min() > 1


def captured_variance(keys: Tensor, values: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return the share of the keys' variance on the values' axes, in the feature space of exp(x.y) / (g(x) g(y))."""
    keys, values = keys.to(dtype), values.to(dtype)
    log_kernel = log_kernel_of(keys)
    log_g = torch.logsumexp(log_kernel, dim=-1)
    features = features_from_log_kernel(log_kernel)
    axes = features.direction * (features.log_norm - features.log_norm.max()).exp()[:, None]
    log_length = features.log_norm - log_g
    rows = centred(features.direction * (log_length - log_length.max()).exp()[:, None])
    return captured_fraction(rows, orthonormal_basis(axes.mT @ values))


def captured_variance_in_many_digits(keys: Tensor, values: Tensor) -> tuple[float, float]:
    """Return it by its definition, tr[(W'KW)^-1 W'K H KW] over the largest eigenvalues of HKH, and the range of g."""
    with mpmath.workdps(60):
        k, v = mpmath.matrix(keys.tolist()), mpmath.matrix(values.tolist())
        n, e = v.rows, v.cols
        raw = (k * k.T).apply(mpmath.exp)
        g = [mpmath.fsum(raw[i, j] for j in range(n)) for i in range(n)]
        gram = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                gram[i, j] = raw[i, j] / (g[i] * g[j])
        w = mpmath.diag(g) * v
        centring = mpmath.eye(n) - mpmath.ones(n) / n
        middle = w.T * gram * centring * gram * w
        inner = (w.T * gram * w) ** -1 * middle
        held = mpmath.fsum(inner[i, i] for i in range(e))
        energy = sorted(mpmath.eigsy(centring * gram * centring, eigvals_only=True), reverse=True)
        return float(held / mpmath.fsum(energy[:e])), float(max(g) / min(g))


@pytest.mark.parametrize("seed", range(5))
def test_a_widely_spread_kernel_agrees_with_60_digit_arithmetic(seed: int) -> None:
    """In trained encoders g varies by up to 1e14 over the tokens of one input. Half of the digits must be correct."""
    keys = normal(seed, 7, 3)
    keys = keys / keys.norm(dim=-1, keepdim=True) * torch.linspace(0.3, 5.9, 7, dtype=torch.float64)[:, None]
    values = normal(seed + 100, 7, 2)
    want, spread = captured_variance_in_many_digits(keys, values)
    assert spread > 1e14
    half = math.sqrt(machine_epsilon(torch.float64))
    assert captured_variance(keys, values, dtype=torch.float64).item() == pytest.approx(want, rel=half)
    assert captured_variance(keys, values, dtype=torch.float32).item() != pytest.approx(want, rel=half)

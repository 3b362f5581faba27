"""Kernel PCA of keys: the eigenproblem, the values, the rank, masks, and warnings for flat spectra."""

import functools
import importlib
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import KernelPCA as Reference
from torch import Tensor

from clearhead.numerics.eigenpairs import krylov_eigenpairs
from clearhead.numerics.gram import centred_gram
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators.kernel_pca import (
    NAMES,
    ByExplained,
    ByRank,
    FlatSpectrumWarning,
    KernelPCA,
    kernel_pca,
    kernel_pca_spectrum,
)
from clearhead.operators.kernel_pca_solvers import Solver, choose_solver
from clearhead.shapes import ShapeError
from tests.numerics.test_partial import on_threads

EXACT = tolerance(torch.float64, terms=4096)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


def gram_of(k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return K_phi and g by their definition, for keys short enough not to overflow."""
    kernel = (scale * k @ k.mT).exp()
    g = kernel.sum(dim=-1)
    return kernel / g.unsqueeze(-1) / g.unsqueeze(-2), g


def centred_twice(gram: Tensor) -> Tensor:
    centring = torch.eye(gram.shape[-1], dtype=gram.dtype) - 1 / gram.shape[-1]
    return centring @ gram @ centring


drawn = st.tuples(st.integers(3, 29), st.integers(2, 13), st.integers(1, 7), st.integers(0, 2**31))


def allowed(found: KernelPCA) -> float:
    """Eigenvectors have an error of eps e_1 / gap, so close axes may differ by more than 1e-12."""
    energy = torch.cat([found.energy, found.energy.new_zeros(1)])
    gap = (energy[:-1] - energy[1:])[: int(found.rank)].min() / energy[0]
    return max(1e-12, 32 * machine_epsilon(torch.float64) / float(gap))


@given(drawn)
def test_the_axes_solve_the_eigenproblem_of_remark_1(sizes: tuple[int, int, int, int]) -> None:
    m, d, axes, seed = sizes
    k, scale = normal(m, d, seed=seed), d**-0.5
    result = kernel_pca(k, axes=axes)
    gram, g = gram_of(k, scale)
    a, energy = result.coefficients * (-result.log_scale / 2).exp(), result.energy * result.log_scale.exp()
    size = centred_twice(gram).abs().max() * a.abs().max() * m
    assert float((centred_twice(gram) @ a - energy * a).abs().max() / size) <= EXACT
    kept = int(result.rank)
    assert kept == min(axes, m - 1)
    of_axes = a.mT @ centred_twice(gram) @ a
    assert relative(of_axes[:kept, :kept], torch.eye(kept, dtype=torch.float64)) <= allowed(result)
    assert float(a.sum(dim=0).abs().max()) <= EXACT * float(a.abs().max()) * m
    assert relative(result.values, a / g.unsqueeze(-1)) <= EXACT
    assert relative(result.log_g, g.log()) <= EXACT
    assert (result.residual <= EXACT).all()
    assert (result.coefficients[:, kept:] == 0).all()


@pytest.mark.parametrize("wrong", ["uncentred", "index"])
def test_control_wrong_variants_differ(wrong: str) -> None:
    k = normal(23, 7)
    result = kernel_pca(k, axes=5)
    gram, g = gram_of(k, 7**-0.5)
    a = torch.linalg.eigh(gram).eigenvectors.flip(-1)[:, :5]
    if wrong == "uncentred":
        assert float(a.sum(dim=0).abs().max()) > 0.1
    else:
        a = result.coefficients * (-result.log_scale / 2).exp()
        assert relative(a / g[:, None] - (a / g[:, None]).mean(dim=0), result.values) > 1e-3


def test_both_normalisations_give_the_same_axes_up_to_length() -> None:
    k = normal(2, 23, 7)
    unit, eigenvector = (kernel_pca(k, axes=5, axis_norm=norm) for norm in ("unit", "eigenvector"))
    norm = eigenvector.coefficients.norm(dim=-2)
    assert relative(norm, torch.ones_like(norm)) <= EXACT
    assert relative(unit.coefficients.norm(dim=-2), unit.energy.rsqrt()) <= EXACT
    length = (unit.energy * unit.log_scale.exp()[:, None]).sqrt().unsqueeze(-2)
    assert relative(unit.values * length, eigenvector.values) <= EXACT
    assert relative(unit.key_mean * length.squeeze(-2), eigenvector.key_mean) <= EXACT


def test_energies_equal_those_of_scikit_learn() -> None:
    k = normal(37, 5)
    result = kernel_pca(k, axes=7, scale=0.4)
    gram, _ = gram_of(k, 0.4)
    reference = Reference(n_components=7, kernel="precomputed", eigen_solver="dense").fit(gram.numpy())
    energy = result.energy * result.log_scale.exp()
    assert relative(energy, torch.from_numpy(reference.eigenvalues_)) <= EXACT
    assert relative(result.explained * centred_twice(gram).trace(), energy) <= EXACT


@pytest.mark.parametrize("case", ["one key", "constant", "twice each", "more axes than keys"])
def test_axes_beyond_the_rank_are_zero(case: str) -> None:
    k = normal(2, 11, 5)
    keys, rank = {
        "one key": (k[:, :1], 0),
        "constant": (3 * k[:, :1].expand(-1, 11, -1), 0),
        "twice each": (k[:, :5].repeat(1, 2, 1), 4),
        "more axes than keys": (k, 10),
    }[case]
    result = kernel_pca(keys, axes=13)
    assert result.rank.tolist() == [rank, rank]
    for x in (result.coefficients, result.values, result.energy, result.explained, result.residual, result.key_mean):
        assert x.isfinite().all()
        assert x.shape[-1] == 13
        assert (x[..., rank:] == 0).all()
    assert (result.energy[..., :rank] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.01, 1.0, 6.0, 200.0])
def test_long_keys_do_not_overflow(dtype: torch.dtype, size: float) -> None:
    k = (size * normal(2, 47, 64)).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlatSpectrumWarning)
        for norm in ("unit", "eigenvector"):
            result = kernel_pca(k, axes=7, axis_norm=norm)
            for x in (
                result.coefficients,
                result.values,
                result.energy,
                result.log_g,
                result.log_scale,
                result.key_mean,
            ):
                assert x.dtype is torch.float64
                assert x.isfinite().all()
            assert (result.rank > 0).all()
            assert (result.residual <= EXACT).all()


def test_the_number_of_axes_can_depend_on_the_data() -> None:
    k = torch.stack([normal(11, 5), normal(11, 5)[:5].repeat(3, 1)[:11]])
    result = kernel_pca(k, axes=ByRank())
    assert result.rank.tolist() == [10, 4]
    assert result.values.shape == (2, 11, 10)
    assert relative(result.explained.sum(dim=-1), torch.ones(2, dtype=torch.float64)) <= EXACT
    assert (result.values[1, :, 4:] == 0).all()
    for share in (0.3, 0.7, 0.99):
        part = kernel_pca(k, axes=ByExplained(share))
        assert (part.explained.sum(dim=-1) >= share).all()
        for one, rank in zip(part.explained, part.rank, strict=True):
            assert float(one[: int(rank) - 1].sum()) < share
        assert part.values.shape[-1] == int(part.rank.max())
    assert kernel_pca(k, axes=ByExplained(1.0)).rank.tolist() == [10, 4]


def test_the_spectrum_holds_all_axes() -> None:
    k, mask = normal(2, 3, 11, 5), torch.arange(11) < 7
    for options in ({}, {"mask": mask}):
        spectrum, axes = kernel_pca_spectrum(k, **options), kernel_pca(k, axes=11, **options)
        assert relative(spectrum.energy, axes.energy) <= EXACT
        assert torch.equal(spectrum.rank, axes.rank)
        assert relative(spectrum.log_scale, axes.log_scale) <= EXACT
    assert kernel_pca_spectrum(k[..., :1, :]).energy.abs().max() == 0


def test_hidden_keys_do_not_matter() -> None:
    k, mask = normal(2, 11, 5), torch.arange(11) < torch.tensor([[7], [0]])
    large = k.masked_fill(~mask.unsqueeze(-1), torch.inf)
    result, short = kernel_pca(large, axes=5, mask=mask), kernel_pca(k[:1, :7], axes=5)
    assert result.rank.tolist() == [5, 0]
    assert relative(result.values[:1, :7], short.values) <= EXACT
    assert relative(result.key_mean[:1], short.key_mean) <= EXACT
    assert (result.values[0, 7:] == 0).all()
    assert (result.values[1] == 0).all()
    assert relative(kernel_pca(k[:1], axes=5).values[:, :7], short.values) > 1e-3


def test_inputs_of_a_batch_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    k = normal(2, 3, 11, 5)
    whole = kernel_pca(k, axes=3)
    for i in range(2):
        for j in range(3):
            assert relative(whole.values[i, j], kernel_pca(k[i, j], axes=3).values) <= EXACT
    monkeypatch.setattr(importlib.import_module("clearhead.operators.kernel_pca"), "CHUNK", 2 * 11 * 11)
    parts = kernel_pca(k, axes=3)
    assert relative(parts.values, whole.values) <= EXACT
    assert relative(kernel_pca(k, axes=ByExplained(0.8)).energy.sum(), whole.energy.sum()) > 1e-3


@settings(max_examples=25)
@given(st.integers(2, 17), st.integers(0, 2**31))
def test_signs_do_not_depend_on_the_order_of_the_keys(m: int, seed: int) -> None:
    k = normal(m, 5, seed=seed)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    result, moved = kernel_pca(k, axes=2), kernel_pca(k[order], axes=2)
    if m > 2:  # with two keys both entries have the same size, and the first is positive
        assert relative(moved.values, result.values[order]) <= allowed(result)
    largest = result.coefficients.gather(0, result.coefficients.abs().argmax(dim=0, keepdim=True))
    assert (largest[:, : int(result.rank)] > 0).all() or m == 2
    assert float(kernel_pca(normal(2, 5, seed=seed), axes=1).coefficients[0, 0]) > 0


def test_a_flat_spectrum_warns() -> None:
    simplex = 2 * torch.eye(7, dtype=torch.float64)
    with pytest.warns(FlatSpectrumWarning, match="up to 3 axes of one input have nearly equal eigenvalues"):
        result = kernel_pca(simplex, axes=3)
    assert not result.identified.any()
    assert result.rank.item() == 3
    with pytest.warns(
        FlatSpectrumWarning
    ):  # eigenvalues that differ by more than the residuals, but by too little to determine the axes
        kernel_pca(simplex * (1 + 1e-13 * torch.arange(7, dtype=torch.float64)), axes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FlatSpectrumWarning)
        assert kernel_pca(normal(11, 5), axes=3).identified.all()
        pair = torch.cat([simplex, 3 * torch.ones(1, 7, dtype=torch.float64)])
        assert kernel_pca(pair[:2], axes=1).identified.all()


def spread_keys(m: int, d: int = 23) -> Tensor:
    """Keys like those of trained models: few directions hold most of the variance."""
    return normal(m, d) * (3 / torch.arange(1, d + 1, dtype=torch.float64))


@pytest.mark.parametrize("solver", ["partial", "matrix_free"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_solver_finds_the_same_axes(solver: str, dtype: torch.dtype) -> None:
    k = spread_keys(307).to(dtype)
    mask = (torch.arange(307) % 7 > 0).expand(2, -1)
    both = torch.stack([k, k.flip(0)])
    want = kernel_pca(both, axes=5, mask=mask, solver="dense")
    result = kernel_pca(both, axes=5, mask=mask, solver=solver)
    assert result.converged.all()
    assert relative(result.energy * (result.log_scale - want.log_scale).exp()[:, None], want.energy) <= 1e-6
    assert relative(result.values, want.values) <= 1e-3
    assert relative(result.key_mean, want.key_mean) <= 1e-3
    assert relative(result.explained, want.explained) <= 1e-6
    assert relative(result.log_g, want.log_g) <= tolerance(dtype)
    assert (result.residual <= 1e-3).all()
    assert (result.values[:, ~mask[0]] == 0).all()
    short = kernel_pca(k, axes=5, mask=torch.arange(307) < 11, solver=solver)  # fewer keys than a block
    assert relative(short.values[:11], kernel_pca(k[:11], axes=5).values) <= EXACT


def test_the_solver_depends_on_the_sizes() -> None:
    def chosen(m: int, axes, **options) -> str:
        return choose_solver(None, m=m, axes=axes, **{"learn_axes": False, "device": torch.device("cpu")} | options)

    assert [chosen(m, 7) for m in (11, 197, 1999, 2003)] == ["dense", "partial", "partial", "matrix_free"]
    assert chosen(2003, 1009) == chosen(2003, ByRank()) == chosen(2003, 7, learn_axes=True) == "dense"
    assert chosen(2003, 509) == "partial"
    assert chosen(197, 7, device=torch.device("meta")) == "dense"
    with pytest.raises(ValueError, match=r'solver "dense" with axes=ByRank\(\), which needs all axes; got \'partial\''):
        kernel_pca(normal(7, 5), axes=ByRank(), solver="partial")
    with pytest.raises(ValueError, match=r"precision of torch\.float32 or torch\.float64; got torch\.float16"):
        kernel_pca(normal(7, 5), axes=2, precision=torch.float16)


def test_an_iteration_without_convergence_warns() -> None:
    k = normal(1031, 64)  # random keys in many dimensions: the energies of the first axes differ by a percent
    home = importlib.import_module("clearhead.operators.kernel_pca_solvers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "krylov_eigenpairs", functools.partial(krylov_eigenpairs, most_products=2))
        with pytest.warns(FlatSpectrumWarning, match="the iteration did not converge, relative residual .*e-0"):
            result = kernel_pca(k, axes=23, solver="matrix_free")
    assert not result.converged
    matrix = centred_gram(k, scale=1 / 8).matrix
    unit = result.coefficients / result.coefficients.norm(dim=0)
    actual = (matrix @ unit - unit * result.energy).norm(dim=0) / result.energy[0]
    assert relative(result.residual, actual) <= 1e-6
    assert float(actual.max()) > 1e-3
    assert not result.identified.all()


def test_values_have_gradients_only_if_axes_are_learned() -> None:
    k = normal(7, 5).requires_grad_()
    assert not kernel_pca(k, axes=3).values.requires_grad
    assert kernel_pca(k, axes=3, learn_axes=True).values.requires_grad

    def results(k: Tensor) -> tuple[Tensor, ...]:
        result = kernel_pca(k, axes=3, learn_axes=True)
        return result.values, result.energy * result.log_scale.exp(), result.explained, result.key_mean

    assert torch.autograd.gradcheck(results, (k,))


def test_learned_axes_of_equal_keys_have_finite_gradients() -> None:
    k = (2 * torch.eye(7, dtype=torch.float64)).requires_grad_()
    with pytest.warns(FlatSpectrumWarning):
        result = kernel_pca(k, axes=9, learn_axes=True)
    result.values.square().sum().backward()
    assert k.grad.isfinite().all()


def test_bad_input_raises_an_error(typechecked: bool) -> None:
    k = normal(7, 5)
    with pytest.raises(ValueError, match=r"a share of the variance above 0 and at most 1; got 1\.5"):
        ByExplained(1.5)
    with pytest.raises(ValueError, match="one axis or more; got 0"):
        kernel_pca(k, axes=0)
    with pytest.raises(ValueError, match=r"a scale above zero.*got -1\.0"):
        kernel_pca(k, axes=2, scale=-1.0)
    with pytest.raises(ShapeError, match=r"mask that broadcasts to \(\.\.\., m\) = \(7,\).*mask \(5,\)"):
        kernel_pca(k, axes=2, mask=torch.ones(5, dtype=torch.bool))
    if typechecked:
        pytest.skip("the import hook refuses what follows before the function can")
    with pytest.raises(ValueError, match=r'axis_norm "unit" or "eigenvector"; got \'both\''):
        kernel_pca(k, axes=2, axis_norm="both")
    with pytest.raises(ShapeError, match=r"k \(\.\.\., m, d\).*got k \(7,\)"):
        kernel_pca(k[:, 0], axes=2)
    with pytest.raises(ValueError, match=r"floating dtype; got torch\.int64"):
        kernel_pca(k.long(), axes=2)
    with pytest.raises(ValueError, match="boolean mask"):
        kernel_pca(k, axes=2, mask=torch.ones(7))


def test_results_are_bit_identical_for_any_number_of_threads() -> None:
    k = normal(7, 1, 89, 17)
    mask = torch.arange(89) < torch.arange(83, 90).reshape(7, 1, 1)
    alone, *others = (on_threads(count, lambda: kernel_pca(k, axes=5, mask=mask)) for count in (1, 2, 5))
    for other in others:
        for name in NAMES:
            assert torch.equal(getattr(other, name), getattr(alone, name)), name
    assert not torch.equal(alone.energy[0], alone.energy[1])


def test_all_axes_are_bit_identical_for_any_number_of_threads() -> None:
    k = normal(7, 1, 89, 17)
    one, many = (on_threads(count, lambda: kernel_pca(k, axes=ByRank())) for count in (1, 5))
    assert torch.equal(one.rank, many.rank)
    assert relative(many.energy, one.energy) <= EXACT
    assert relative(many.coefficients, one.coefficients) <= EXACT


@pytest.mark.parametrize("distinct", [1, 2, 5, 40])
def test_matrix_free_axes_of_repeated_keys_are_those_of_distinct_keys(distinct: int) -> None:
    few = torch.randn(distinct, 11, generator=torch.Generator().manual_seed(distinct))
    k = few.repeat(400 // distinct + 1, 1)[:401]
    result, dense = (kernel_pca(k, axes=7, solver=solver) for solver in ("matrix_free", "dense"))
    assert int(result.rank) == int(dense.rank) == min(distinct - 1, 7)
    assert torch.isfinite(result.values).all()
    assert torch.allclose(result.energy, dense.energy, rtol=1e-4, atol=1e-6 * float(dense.energy[0]) + 1e-30)


def test_small_axes_are_computed_in_double_precision() -> None:
    k = 3 * torch.randn(501, 64, generator=torch.Generator().manual_seed(0))
    single = kernel_pca(k, axes=16, solver="matrix_free", precision=torch.float32)
    chosen, dense = (kernel_pca(k, axes=16, solver=solver) for solver in ("matrix_free", "dense"))
    assert int(single.rank) < int(chosen.rank) == int(dense.rank)


@pytest.mark.parametrize("axes", [True, 2.0, "all"])
def test_an_invalid_number_of_axes_raises_an_error(axes: object, typechecked: bool) -> None:
    if typechecked and axes is not True:
        pytest.skip("the annotation refuses it first")
    with pytest.raises(ValueError, match="expected axes as a whole number"):
        kernel_pca(torch.randn(11, 3), axes=axes)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", [None, "dense", "partial", "matrix_free"])
def test_a_batch_without_inputs_has_no_axes(solver: Solver | None) -> None:
    pca = kernel_pca(torch.zeros(0, 7, 3), axes=2, solver=solver)
    assert pca.values.shape == (0, 7, 2)
    assert pca.energy.shape == pca.residual.shape == (0, 2)
    assert pca.rank.shape == pca.log_scale.shape == (0,)

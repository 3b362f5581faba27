"""Products with a Gram matrix that is never formed, compared with the explicit matrix."""

import pytest
import torch

from clearhead.numerics import gram
from clearhead.numerics.gram import centred_gram, tiled_gram
from clearhead.numerics.precision import tolerance
from tests.numerics.test_krylov import normal
from tests.numerics.test_partial import on_threads


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("tile", [2**20, 2**12])
def test_product_is_that_of_the_centred_gram_matrix(
    dtype: torch.dtype, size: float, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gram, "TILE", tile)
    k, x = (size * normal(139, 17)).to(dtype), normal(139, 5, seed=1).to(dtype)
    dense, tiled = centred_gram(k.double(), scale=0.25), tiled_gram(k, scale=0.25)
    # A score of size |s| has a rounding error of eps |s|, and so has its exponential.
    within = tolerance(dtype) * (1 + 0.25 * float(k.double().square().sum(dim=-1).max()))
    assert relative(tiled.product(x), dense.matrix @ x.double()) <= within
    for name in ("log_scale", "log_g", "column_mean", "trace"):
        assert relative(getattr(tiled.scales, name), getattr(dense.scales, name)) <= within
    assert relative(tiled.uncentred_product(x), dense.matrix @ x.double()) > within


def test_products_of_long_keys_are_finite() -> None:
    k = (40 * normal(139, 17)).float()
    tiled = tiled_gram(k, scale=0.25)
    assert tiled.product(normal(139, 5, seed=1).float()).isfinite().all()
    assert float(tiled.uncentred_product(torch.ones(139, 1)).max()) >= 1


def test_the_initial_guess_is_close_to_the_leading_eigenvectors() -> None:
    k = normal(139, 17) / torch.arange(1, 18)
    dense, tiled = centred_gram(k, scale=0.25), tiled_gram(k, scale=0.25)
    leading = torch.linalg.eigh(dense.matrix).eigenvectors[:, -3:]
    for landmarks, least in ((139, 0.999), (41, 0.9)):
        guess = torch.linalg.qr(tiled.guess(7, landmarks=landmarks)).Q
        assert float((guess.mT @ leading).norm(dim=0).min()) > least
    assert float((torch.linalg.qr(normal(139, 7)).Q.mT @ leading).norm(dim=0).max()) < 0.9
    assert tiled.guess(53, landmarks=41).shape == (139, 53)


@pytest.mark.parametrize("tile", [2**20, 2**12])
def test_results_are_bit_identical_for_any_number_of_threads(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "TILE", tile)
    k, x = normal(439, 17).float(), normal(439, 5, seed=1).float()

    def found() -> tuple[torch.Tensor, torch.Tensor]:
        gram = tiled_gram(k, scale=0.25)
        return gram.scales.log_g, gram.product(x)

    alone = on_threads(1, found)
    for count in (2, 5):
        for one, other in zip(alone, on_threads(count, found), strict=True):
            assert torch.equal(one, other)
    if tile == 2**12:  # control: another order of summation changes bits; the large tile holds all in one sum
        monkeypatch.setattr(gram, "SHARES", 1)
        assert not torch.equal(alone[1], on_threads(1, found)[1])

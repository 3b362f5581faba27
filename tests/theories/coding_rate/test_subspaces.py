import math

import numpy as np
import pytest
import torch

from clearhead.numerics.coding_rate import subspace_rates
from clearhead.numerics.precision import tolerance
from clearhead.theories.coding_rate.depth import density, gaussian_density, nonzero_fraction
from clearhead.theories.coding_rate.subspaces import (
    RandomMaps,
    Reflections,
    coherence,
    orthonormal_bases,
    orthonormality_error,
    random_bases,
    random_signs,
)
from tests.theories.coding_rate.synthetic_heads import normal

TOLERANCE = tolerance(torch.float64, terms=31 * 7)


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_bases_are_orthonormal_and_span_the_map(rank: int) -> None:
    maps = normal(3, 31, rank, seed=1) @ normal(3, rank, 7, seed=2)
    basis = orthonormal_bases(maps)
    assert basis.shape == (3, 31, 7)
    eye = basis.mT @ basis
    assert torch.allclose(eye, torch.diag_embed(eye.diagonal(dim1=-2, dim2=-1).round()), atol=TOLERANCE)
    assert eye.diagonal(dim1=-2, dim2=-1).sum(-1).round().tolist() == [rank] * 3
    size = max(float(maps.abs().max()), 1.0)
    assert float((basis @ (basis.mT @ maps) - maps).abs().max()) < TOLERANCE * size


@pytest.mark.parametrize("count", [11, 53])
def test_reflected_subspaces_have_the_same_rate_and_another_span(count: int) -> None:
    """With fewer tokens than dimensions and with more."""
    basis = random_bases(3, c=31, p=7, generator=torch.Generator().manual_seed(3))
    z, other = normal(count, 31, seed=4), normal(count, 31, seed=5)
    signs = random_signs(5, 32, generator=torch.Generator().manual_seed(6))
    flat = basis.movedim(0, 1).flatten(1)
    reflected = Reflections.of(z, signs).project(torch.eye(31, dtype=torch.float64), flat, flat)
    reflected = reflected.unflatten(-1, (3, 7)).movedim(-2, 1)
    assert reflected.shape == (5, 3, 31, 7)
    eye = torch.eye(7, dtype=torch.float64).expand(5, 3, 7, 7)
    assert torch.allclose(reflected.mT @ reflected, eye, atol=TOLERANCE)
    for draw in reflected:
        assert torch.allclose(subspace_rates(z, draw), subspace_rates(z, basis), rtol=TOLERANCE)
        assert not torch.allclose(subspace_rates(other, draw), subspace_rates(other, basis), rtol=1e-3)
        cosines = torch.linalg.svdvals(draw.mT @ basis)
        assert float(cosines.amin(dim=-1).max()) < 0.9


def test_a_wide_map_spans_everything() -> None:
    basis = orthonormal_bases(normal(2, 5, 11))
    assert torch.allclose(basis @ basis.mT, torch.eye(5, dtype=torch.float64), atol=TOLERANCE)


def test_orthonormality_error_of_known_maps() -> None:
    basis = random_bases(1, c=31, p=7, generator=torch.Generator().manual_seed(3))
    assert orthonormality_error(basis, scaled=False) < TOLERANCE
    assert orthonormality_error(3 * basis, scaled=True) < TOLERANCE
    assert orthonormality_error(3 * basis, scaled=False) == pytest.approx(8)
    collapsed = basis @ torch.diag(torch.tensor([2.0] + [0.0] * 6, dtype=torch.float64))
    assert orthonormality_error(collapsed, scaled=True) == pytest.approx(math.sqrt((36 + 6) / 7))
    assert math.isnan(orthonormality_error(torch.zeros(1, 31, 7, dtype=torch.float64), scaled=True)[0])


def test_coherence_of_known_subspaces() -> None:
    eye = torch.eye(13, dtype=torch.float64)
    tilted = math.cos(0.3) * eye[:, 1] + math.sin(0.3) * eye[:, 7]
    orthogonal, sharing = eye[:, 3:5], torch.stack([tilted, eye[:, 8]], dim=-1)
    overlap, cosine = coherence(torch.stack([eye[:, 1:3], orthogonal, sharing]))
    assert overlap == pytest.approx([math.cos(0.3) ** 2 / 4, 0, math.cos(0.3) ** 2 / 4], abs=TOLERANCE)
    assert cosine == pytest.approx([math.cos(0.3), 0, math.cos(0.3)], abs=TOLERANCE)
    assert all(math.isnan(undefined[0]) for undefined in coherence(orthogonal[None]))


def test_density_and_zeros_of_known_features() -> None:
    one_hot, equal = torch.eye(13), torch.sign(normal(7, 13))
    assert density(one_hot) == pytest.approx(1 / 13)
    assert density(equal) == pytest.approx(1.0)
    assert density(normal(997, 499)) == pytest.approx(gaussian_density(499), rel=0.01)
    assert density(normal(99991, 3)) == pytest.approx(gaussian_density(3), rel=0.01)
    assert gaussian_density(3) == pytest.approx((1 + 4 / math.pi) / 3)
    assert density(5 * one_hot + 0) == density(one_hot)
    assert density(torch.cat([one_hot, torch.zeros(2, 13)])) == density(one_hot)
    assert math.isnan(density(torch.zeros(2, 13)))
    assert nonzero_fraction(one_hot) == pytest.approx(1 / 13)
    assert nonzero_fraction(equal) == 1.0


@pytest.mark.parametrize("shape", [(31, 7), (5, 11)])
def test_random_maps_are_compared_at_the_size_of_the_models(shape: tuple[int, int]) -> None:
    maps = normal(2, 3, *shape, seed=7)
    maps = maps / torch.linalg.matrix_norm(maps)[..., None, None]
    small = maps.mT @ maps if shape[1] <= shape[0] else maps @ maps.mT
    nothing = np.zeros((2, 3))
    random = RandomMaps(
        squares=small.square().sum(dim=(-2, -1)).numpy(), width=min(shape), overlap=nothing, cosine=nothing
    )
    for size in (0.5, 11.0):
        expected = orthonormality_error(math.sqrt(size) * maps, scaled=False)
        assert random.orthonormality_error(np.full(3, size)) == pytest.approx(expected)
    assert random.orthonormality_error(np.full(3, float(min(shape)))) == pytest.approx(
        orthonormality_error(maps, scaled=True)
    )


def test_random_maps_are_drawn_by_seed_and_shape() -> None:
    first, again, other = (RandomMaps.draw((3, 31, 5), draws=4, seed=seed) for seed in (0, 0, 1))
    assert first.overlap.shape == first.cosine.shape == first.squares.shape == (4, 3)
    assert np.array_equal(first.cosine, again.cosine)
    assert not np.array_equal(first.cosine, other.cosine)
    assert first.overlap.mean() == pytest.approx(5 / 31, rel=0.1)

"""Distance from a kernel: zero without a bias or a cap, and measured with one."""

import numpy as np
import pytest
import torch

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import judge
from clearhead.theories.kernel_pca import CAPTURED, make_theory
from clearhead.theories.kernel_pca.measurement import KERNEL, distance_from_a_kernel
from tests.measured import Measured
from tests.theories.kernel_pca.drawing import SCALE, TOKENS, VALUES, WIDTH, call, normal

BATCH, HEADS = 5, 3


def test_zero_for_kernels_only() -> None:
    k = 2 * normal(HEADS, TOKENS, WIDTH, seed=0)
    scores = SCALE * k @ k.mT
    places = normal(HEADS, TOKENS, 2, seed=1)
    assert distance_from_a_kernel(scores).max() < 1e-12
    assert distance_from_a_kernel(scores + places @ places.mT).max() < 1e-12
    assert distance_from_a_kernel(0.1 * scores - 3 * places @ places.mT).min() > 1e-3
    assert distance_from_a_kernel(30 * scores).max() < 1e-12
    odd = normal(HEADS, TOKENS, TOKENS, seed=2)
    assert distance_from_a_kernel(0.1 * scores + 0.1 * (odd - odd.mT)).min() > 1e-3


def test_the_distance_is_to_the_nearest_kernel() -> None:
    entries = normal(7, 7, seed=0).square() + torch.eye(7, dtype=torch.float64)
    scaled = entries / entries.diagonal().sqrt() / entries.diagonal().sqrt()[:, None]
    energy, vectors = torch.linalg.eigh((scaled + scaled.T) / 2)
    nearest = vectors * energy.clamp_min(0) @ vectors.T
    expected = (scaled - nearest).norm() / scaled.norm()
    assert float(distance_from_a_kernel(entries.log())) == pytest.approx(float(expected))


def test_measured_only_with_a_bias_or_a_cap() -> None:
    k, v = normal(BATCH, HEADS, TOKENS, WIDTH, seed=0), normal(BATCH, HEADS, TOKENS, VALUES, seed=1)
    bias = normal(1, HEADS, TOKENS, TOKENS, seed=2)
    places = normal(1, HEADS, TOKENS, 2, seed=3)
    mask = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool)
    mask[..., 19:] = False
    for changed, verdict in (
        ({}, None),
        ({"bias": 3 * bias}, Verdict.NO_EVIDENCE),
        ({"bias": places @ places.mT}, Verdict.SUPPORTED),
        ({"bias": places @ places.mT, "mask": mask}, Verdict.SUPPORTED),
        ({"softcap": 0.5}, Verdict.PARTLY_SUPPORTED),
    ):
        measurement = Measured(make_theory(claims=[CAPTURED]))
        measurement.feed(call(v, k, **changed))
        result = judge(measurement.findings())
        kernels = [f for f in result if f.claim is KERNEL]
        others = {f.verdict for f in result if f.claim is not KERNEL}
        if verdict is None:
            assert not kernels
            assert Verdict.NOT_APPLICABLE not in others
        else:
            assert len(kernels) == HEADS
            assert others == {Verdict.NOT_APPLICABLE}
            assert np.isfinite([f.value for f in kernels]).all()
            assert {f.verdict for f in kernels} == {verdict}
            assert (max(f.value for f in kernels) < 1e-12) is (verdict is Verdict.SUPPORTED)


def test_not_in_cross_attention() -> None:
    k, v = normal(BATCH, HEADS, TOKENS, WIDTH, seed=0), normal(BATCH, HEADS, TOKENS, VALUES, seed=1)
    measurement = Measured(make_theory(claims=[CAPTURED]))
    q = normal(BATCH, HEADS, 7, WIDTH, seed=2)
    measurement.feed(call(v, k, q=q, out=v[:, :, :7], bias=normal(1, HEADS, 7, TOKENS, seed=3)))
    result = [f for f in measurement.findings() if f.claim is KERNEL]
    assert {f.reason for f in result} == {"in cross-attention the bias is not defined for pairs of keys"}

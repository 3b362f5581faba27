"""Theorem 1 of Teo and Nguyen 2024 over drawn keys and queries, and the rows of `clearhead verify`."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import KernelPCA

from clearhead.operators.softmax import softmax_attention
from clearhead.theories.catalogue import all_theorems, find_theories
from clearhead.theories.kernel_pca import theorem_values, theorems


def _drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(5, 31), st.integers(1, 17), st.integers(2, 13), st.integers(0, 2**31))
def test_attention_is_the_projection_that_scikit_learn_computes(m: int, n: int, d: int, seed: int) -> None:
    """scikit-learn centres queries too, which moves every projection by one constant per axis."""
    k, q, axes, scale = _drawn(m, d, seed=seed), _drawn(n, d, seed=seed + 1), 2, d**-0.5
    attended = softmax_attention(q, k, theorem_values(k, scale=scale, axes=axes), scale=scale)
    g_k, g_q = ((scale * x @ k.T).exp().sum(-1) for x in (k, q))
    gram = (scale * k @ k.T).exp() / g_k[:, None] / g_k
    oracle = KernelPCA(n_components=axes, kernel="precomputed", eigen_solver="dense").fit(gram.numpy())
    projected = torch.from_numpy(oracle.transform(((scale * q @ k.T).exp() / g_q[:, None] / g_k).numpy()))
    of_keys = softmax_attention(k, k, theorem_values(k, scale=scale, axes=axes), scale=scale)
    moved = attended - of_keys.mean(dim=0)
    flipped = moved * torch.sign((moved * projected).sum(0))
    assert torch.allclose(flipped, projected, rtol=1e-6, atol=1e-9 * float(projected.abs().max()) + 1e-15)


def test_duplicate_keys_have_fewer_axes_and_no_infinities() -> None:
    k = _drawn(5, 3, seed=0).repeat(2, 1)
    v = theorem_values(k, scale=0.5, axes=7)
    assert bool(v.isfinite().all())
    assert int((v.abs().amax(dim=0) > 0).sum()) == 4


@pytest.mark.parametrize("theorem", theorems(), ids=lambda theorem: theorem.id)
def test_every_row_holds_and_its_control_fails(theorem: object) -> None:
    assert theorem.holds
    assert theorem.residual <= 1e-12
    assert theorem.control_residual > 1e-3


def test_every_row_of_every_theory_has_an_identifier_of_its_own() -> None:
    rows = all_theorems()
    assert [row.id for row in rows if row.source == "kernel PCA"] == [f"K{number}" for number in range(1, 8)]
    assert len({row.id for row in rows} - {""}) == len(rows)


def test_a_row_can_fail() -> None:
    theorem = theorems()[0]
    assert not dataclasses.replace(theorem, residual=2 * theorem.tolerance).holds
    assert not dataclasses.replace(theorem, residual_single=2 * theorem.tolerance_single).holds
    assert not dataclasses.replace(theorem, control_residual=theorem.tolerance).holds
    assert not dataclasses.replace(theorem, residual=float("nan")).holds


def test_theories_are_found_by_name() -> None:
    assert [theory.name for theory in find_theories([])] == ["kernel-pca", "symmetry"]
    assert [theory.name for theory in find_theories(["kernel-pca", "kernel-pca"])] == ["kernel-pca"]
    assert [theory.name for theory in find_theories(["symmetry", "kernel-pca"])] == ["symmetry", "kernel-pca"]
    with pytest.raises(ValueError, match="no theory is called kernel; there is kernel-pca, symmetry"):
        find_theories(["kernel"])

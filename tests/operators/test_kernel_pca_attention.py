"""Kernel PCA of queries: theorem 1 against explicit features and scikit-learn, and the prefix form under masks."""

import dataclasses
import functools
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import KernelPCA as Reference
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.kernel_pca import ByExplained, ByRank, kernel_pca
from clearhead.operators.kernel_pca_attention import kernel_pca_attention, slow_kernel_pca_attention
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import check_attention_operands
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from tests.operators.contract import run_check
from tests.operators.test_kernel_pca import EXACT, allowed, centred_twice, gram_of, normal, relative

HOME = importlib.import_module("clearhead.operators.kernel_pca_attention")  # by its name the package has the function


def with_width(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The operator as the contract calls operators: of the values only the width counts."""
    check_attention_operands(q, k, v, mask=mask)
    return attention(q, k, axes=v.shape[-1], mask=mask)


def subject(fast: dict | None = None, **options) -> OperatorSubject:
    return OperatorSubject(
        operator=functools.partial(with_width, functools.partial(kernel_pca_attention, **(fast or {}), **options)),
        reference=functools.partial(with_width, functools.partial(slow_kernel_pca_attention, **options)),
        masks=False,  # compiling with a mask fails: the number of key sets of a mask depends on the data
        terms=64,  # eigenvectors carry rounding times e_1 / gap
    )


LEARNED = {"learn_axes": True}
VARIANTS = {
    "constant axes": subject(),
    "learned axes": subject(LEARNED),
    "options": subject(LEARNED, axis_norm="eigenvector", center_queries=True, scale=0.4),
}
NOT_APPLICABLE = {
    "depends_on_inputs": "it takes none",
    "vmap": "warnings and key sets depend on the data",
}
"""Checks that do not apply, with the reason."""
OF_GRADIENTS = {"reference_gradients", "gradients", "padding_mask", "causal_mask", "boolean_mask", "fully_masked_rows"}
"""Checks that constant axes cannot pass: their reference's axes are not constant. Their gradient is tested below."""


@pytest.mark.parametrize("check", [name for name in OPERATOR_CHECKS if name not in NOT_APPLICABLE])
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(variant: str, check: str, typechecked: bool) -> None:
    if variant == "constant axes" and check in OF_GRADIENTS:
        pytest.skip("constant axes have another gradient than the whole map")
    chosen = VARIANTS[variant]
    # Gradients carry e_1 / gap once more, and the heads drawn for other leading axes are closer to flat.
    loose = check in OF_GRADIENTS | {"leading_axes"}
    run_check(
        check, dataclasses.replace(chosen, terms=256 * chosen.terms) if loose else chosen, typechecked=typechecked
    )


sizes = st.tuples(
    st.integers(1, 13), st.integers(2, 29), st.integers(2, 11), st.integers(1, 5), st.booleans(), st.integers(0, 2**31)
)


@settings(max_examples=60)
@given(sizes)
def test_theorem_1_against_explicit_features(drawn) -> None:
    n, m, d, axes, centred, seed = drawn
    q, k = normal(n, d, seed=seed + 1), normal(m, d, seed=seed)
    got = kernel_pca_attention(q, k, axes=axes, center_queries=centred)
    want = slow_kernel_pca_attention(q, k, axes=axes, center_queries=centred)
    assert relative(got, want) <= allowed(kernel_pca(k, axes=axes))


@settings(max_examples=30)
@given(sizes)
def test_centred_projections_equal_those_of_scikit_learn(drawn) -> None:
    n, m, d, axes, _, seed = drawn
    q, k, scale, axes = normal(n, d, seed=seed + 1), normal(m, d, seed=seed), d**-0.5, min(axes, m - 1)
    gram, g = gram_of(k, scale)
    reference = Reference(n_components=axes, kernel="precomputed", eigen_solver="dense").fit(gram.numpy())
    kernel = (scale * q @ k.mT).exp()
    want = torch.from_numpy(reference.transform((kernel / kernel.sum(dim=-1, keepdim=True) / g).numpy()))
    got = kernel_pca_attention(q, k, axes=axes, center_queries=True)
    signs = torch.sign((got * want).sum(dim=0))
    assert relative(got * signs, want) <= 4 * allowed(kernel_pca(k, axes=axes))
    assert relative(kernel_pca_attention(q, k, axes=axes) * signs, want) > 1e-6


def test_the_centre_is_the_mean_over_the_keys() -> None:
    q, k = normal(5, 7, seed=1), normal(11, 7)
    of_keys = kernel_pca_attention(k, k, axes=3)
    moved = kernel_pca_attention(q, k, axes=3) - of_keys.mean(dim=0)
    assert relative(kernel_pca_attention(q, k, axes=3, center_queries=True), moved) <= EXACT
    assert relative(kernel_pca_attention(k, k, axes=3, center_queries=True).mean(dim=0) + 1, torch.ones(3)) <= EXACT


def test_keys_projected_on_unit_axes_have_the_energy_of_the_axis() -> None:
    k = normal(11, 7)
    result = kernel_pca(k, axes=3)
    projected = kernel_pca_attention(k, k, axes=3, center_queries=True)
    assert relative(projected.square().sum(dim=0), result.energy * result.log_scale.exp()) <= EXACT
    gram, _ = gram_of(k, 7**-0.5)
    assert relative(result.energy.sum() * result.log_scale.exp(), centred_twice(gram).trace()) > 1e-3


def test_causal_rows_are_kernel_pca_of_their_prefixes() -> None:
    q, k = normal(2, 7, 5, seed=1), normal(2, 7, 5)
    past = torch.ones(7, 7, dtype=torch.bool).tril()
    got = kernel_pca_attention(q, k, axes=3, mask=past)
    for i in range(7):
        want = kernel_pca_attention(q[:, i : i + 1], k[:, : i + 1], axes=3)
        assert float((got[:, i : i + 1] - want).abs().max()) <= EXACT * float(want.abs().max())
    whole = kernel_pca_attention(q, k, axes=3)
    assert relative(got[:, -1], whole[:, -1]) <= EXACT
    assert (got[:, 0] == 0).all()  # one key has no variance
    one_v = softmax_attention(q, k, kernel_pca(k, axes=3).values, mask=past)
    assert relative(one_v[:, -1], got[:, -1]) <= EXACT
    for i in range(1, 6):
        assert relative(one_v[:, i].abs(), got[:, i].abs()) > 1e-2


def test_rows_that_see_the_same_keys_share_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = normal(2, 3, 7, 5, seed=1), normal(2, 3, 11, 5)
    padding = (torch.arange(11) < torch.tensor([[9], [5]]))[:, None, None]
    segments = torch.cat([torch.arange(11) < 4, torch.arange(11) >= 4]).reshape(2, 11)[torch.arange(7) % 2]
    decomposed = []
    monkeypatch.setattr(
        HOME,
        "kernel_pca",
        lambda k, **options: decomposed.append(k.shape[:-2].numel()) or kernel_pca(k, **options),
    )
    narrow = kernel_pca_attention(q, k, axes=3, mask=padding)
    wide = kernel_pca_attention(q, k, axes=3, mask=padding.expand(2, 1, 7, 11))
    by_segment = kernel_pca_attention(q, k, axes=3, mask=segments)
    assert decomposed == [6, 6, 12]
    assert relative(wide, narrow) <= EXACT
    for start in (0, 1):
        keys = slice(None, 4) if start == 0 else slice(4, None)
        assert (
            relative(by_segment[..., start::2, :], kernel_pca_attention(q[..., start::2, :], k[..., keys, :], axes=3))
            <= EXACT
        )


def test_many_key_sets_are_computed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = normal(2, 3, 7, 5, seed=1), normal(2, 3, 7, 5)
    mask = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(2)) < 0.5
    whole = kernel_pca_attention(q, k, axes=3, mask=mask)
    monkeypatch.setattr(HOME, "CHUNK", 5 * 7 * 7)
    assert relative(kernel_pca_attention(q, k, axes=3, mask=mask), whole) <= EXACT


def test_constant_axes_have_the_gradient_of_softmax_attention_with_constant_values() -> None:
    q, k, weights = normal(2, 5, 7, seed=1).requires_grad_(), normal(2, 11, 7).requires_grad_(), normal(2, 5, 3, seed=2)
    constant, learned, slow, plain = (
        torch.autograd.grad((out * weights).sum(), (q, k))
        for out in (
            kernel_pca_attention(q, k, axes=3),
            kernel_pca_attention(q, k, axes=3, learn_axes=True),
            slow_kernel_pca_attention(q, k, axes=3),
            softmax_attention(q, k, kernel_pca(k, axes=3).values),
        )
    )
    assert relative(constant[0], slow[0]) <= EXACT
    assert relative(constant[1], plain[1]) <= EXACT
    assert relative(learned[1], slow[1]) <= EXACT
    assert relative(constant[1], slow[1]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_long_keys_give_finite_outputs_and_gradients(dtype: torch.dtype) -> None:
    q, k = (6 * normal(2, 13, 64, seed=1)).to(dtype), (6 * normal(2, 17, 64)).to(dtype)
    mask = torch.rand(2, 13, 17, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[0, 0] = False
    for options in ({}, {"mask": mask}, {"axis_norm": "eigenvector", "mask": mask}, {"center_queries": True}):
        out = kernel_pca_attention(q, k, axes=19, **options)
        assert out.dtype is dtype
        assert out.isfinite().all()
    assert (out[0, 0] != 0).any() or dtype is not torch.float32
    assert (kernel_pca_attention(q, k, axes=19, mask=mask)[0, 0] == 0).all()


def test_single_precision_operands_give_single_precision_accuracy() -> None:
    q, k = normal(5, 7, seed=1).float(), normal(31, 7).float()
    want = kernel_pca_attention(q.double(), k.double(), axes=5)
    assert relative(kernel_pca_attention(q, k, axes=5).double(), want) <= tolerance(torch.float32, terms=1)


def test_the_number_of_axes_can_follow_rank_or_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    k = torch.randn(5, 3, generator=generator, dtype=torch.float64).repeat(2, 1)
    q = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    whole = kernel_pca_attention(q, k, axes=ByRank())
    assert whole.shape == (7, 4)
    assert torch.allclose(whole, kernel_pca_attention(q, k, axes=4))
    some = kernel_pca_attention(q, k, axes=ByExplained(0.5), mask=torch.ones(10, dtype=torch.bool))
    assert 1 <= some.shape[-1] < 4
    with pytest.raises(ValueError, match="a number of axes, because queries may see different keys"):
        kernel_pca_attention(q, k, axes=ByRank(), mask=torch.ones(7, 10, dtype=torch.bool))

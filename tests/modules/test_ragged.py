"""Sets of different sizes in one batch have the same outputs as on their own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.modules import LearnedQueryAttention, MultiHeadAttention, PaddedSets, SelfAttention, pad_sets
from clearhead.shapes import ShapeError
from tests.modules.drawing import differ, normal, randomised, require_same

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=5)


def sets_of(sizes: list[int], seed: int = 0) -> list[Tensor]:
    return [normal(size, 11, seed=seed + index) for index, size in enumerate(sizes)]


@given(SIZES)
def test_padded_sets_hold_every_token_once_and_zeros_elsewhere(sizes: list[int]) -> None:
    sets = sets_of(sizes)
    padded = pad_sets(sets)
    assert isinstance(padded, PaddedSets)
    tokens, mask = padded
    assert tokens.shape == (len(sizes), max(sizes), 11)
    assert mask.shape == (len(sizes), max(sizes))
    assert mask.sum(dim=-1).tolist() == sizes
    for x, row, seen in zip(sets, tokens, mask, strict=True):
        assert torch.equal(row[seen], x)
        assert (row[~seen] == 0).all()


@settings(max_examples=30)
@given(SIZES)
def test_each_set_has_the_output_of_a_call_on_its_own(sizes: list[int]) -> None:
    sets = sets_of(sizes)
    tokens, mask = pad_sets(sets)
    for layer in (
        randomised(SelfAttention(11, bias=True)),
        randomised(MultiHeadAttention(11, num_heads=11, num_kv_heads=1)),
    ):
        for x, row, seen in zip(sets, layer(tokens, key_mask=mask), mask, strict=True):
            require_same(row[seen], layer(x), what=type(layer).__name__)
    pooling = randomised(LearnedQueryAttention(11, num_queries=3, bias=True))
    for x, row in zip(sets, pooling(tokens, key_mask=mask), strict=True):
        require_same(row, pooling(x), what="learned query", size=1.0)
    across = randomised(MultiHeadAttention(5, num_heads=2, head_dim=[2, 3], kdim=11, vdim=11))
    query = normal(len(sizes), 3, 5, seed=9)
    for x, one, row in zip(sets, query, across(query, tokens, key_mask=mask), strict=True):
        require_same(row, across(one, x), what="cross-attention")


def test_control_without_the_mask_padding_changes_the_output() -> None:
    sets = sets_of([2, 7])
    tokens, mask = pad_sets(sets)
    layer = randomised(SelfAttention(11))
    assert differ(layer(tokens)[0][mask[0]], layer(sets[0]))


def test_gradients_reach_every_set() -> None:
    sets = [x.requires_grad_() for x in sets_of([2, 7, 3])]
    tokens, mask = pad_sets(sets)
    layer = randomised(LearnedQueryAttention(11, num_queries=3))
    got = torch.autograd.grad(layer(tokens, key_mask=mask).sin().sum(), sets)
    want = torch.autograd.grad(sum(layer(x).sin().sum() for x in sets), sets)
    for x, y in zip(got, want, strict=True):
        require_same(x, y)


WRONG = {
    "none": ([], ShapeError, "one set or more, each .*; got no sets"),
    "another width": ([normal(2, 11), normal(3, 7)], ShapeError, r"with the same d; got \(2, 11\), \(3, 7\)"),
    "three axes": ([normal(1, 2, 11)], ShapeError, r"each \(n_i, d\), with the same d; got \(1, 2, 11\)"),
    "mixed dtypes": ([normal(2, 11), normal(3, 11).float()], ValueError, "got torch.float64 on cpu, torch.float32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_sets_of_different_width_or_dtype_raise_an_error(case: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of these before the function can")
    sets, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        pad_sets(sets)

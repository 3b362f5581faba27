"""Errors of multi-head attention."""

import pytest
import torch

from clearhead.modules import MultiHeadAttention
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, normal, randomised


@pytest.fixture
def layer() -> MultiHeadAttention:
    return randomised(MultiHeadAttention(11, num_heads=3, kdim=5, vdim=7, head_dim=[2, 3, 2]))


WRONG_SIZES = {
    "no head": ({"num_heads": 0}, "sizes of one or more; got embed_dim 11, num_heads 0"),
    "no output": ({"num_heads": 1, "out_dim": 0}, "out_dim 0"),
    "heads that do not divide": ({"num_heads": 3}, "head_dim, or num_heads that divides embed_dim; got 3 and 11"),
    "too few widths": ({"num_heads": 3, "head_dim": [2, 3]}, r"head_dim of one or more for each of 3 .*got \[2, 3\]"),
    "a width of zero": ({"num_heads": 2, "head_dim": 2, "value_dim": [2, 0]}, r"value_dim.*got \[2, 0\]"),
    "key heads that do not divide": (
        {"num_heads": 4, "head_dim": 2, "num_kv_heads": 3},
        "divides num_heads; got 3 and 4",
    ),
    "shared keys of two widths": (
        {"num_heads": 4, "head_dim": [2, 3, 2, 2], "num_kv_heads": 2},
        r"equal widths in the 2 heads that share.*got head_dim \(2, 3, 2, 2\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_SIZES)
def test_impossible_sizes_raise_an_error(case: str) -> None:
    options, message = WRONG_SIZES[case]
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(11, **options)


WRONG_INPUTS = {
    "another query width": ({"query": (2, 3, 5)}, ShapeError, r"query \(\.\.\., tokens, 11\), key .* 5\).*got query"),
    "another value width": ({"value": (2, 7, 5)}, ShapeError, r"got query \(2, 3, 11\), key .*, value \(2, 7, 5\)"),
    "another batch": ({"key": (3, 7, 5)}, ShapeError, "with the same leading shape"),
    "one axis": ({"query": (11,)}, ShapeError, r"got query \(11,\)"),
    "another m": (
        {"value": (2, 5, 7)},
        ShapeError,
        r"key and value with the same number of tokens; got .*value \(2, 5, 7\)",
    ),
    "a mask of another size": ({"mask": (3, 5)}, ShapeError, r"mask to broadcast to \(2, 3, 3, 7\); got mask \(3, 5\)"),
    "a mask of more axes": ({"mask": (1, 2, 3, 3, 7)}, ShapeError, r"got mask \(1, 2, 3, 3, 7\)"),
    "a bias of another size": (
        {"attn_bias": (3, 5)},
        ShapeError,
        r"attn_bias to broadcast to \(2, 3, 3, 7\); got attn_bias",
    ),
    "a key mask of the wrong size": ({"key_mask": (2, 3)}, ShapeError, r"key_mask \(2, 7\).*got key_mask \(2, 3\)"),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_inputs_of_wrong_shape_raise_an_error(case: str, layer: MultiHeadAttention, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses most of these before the module can")
    changed, kind, message = WRONG_INPUTS[case]
    shapes = {"query": (2, 3, 11), "key": (2, 7, 5), "value": (2, 7, 7)} | changed
    inputs = {name: boolean(*shape) if "mask" in name else normal(*shape) for name, shape in shapes.items()}
    with pytest.raises(kind, match=message):
        layer(**inputs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"query": normal(2, 3, 11).long()}, "dtype of the parameters, query torch.float64.*; got query torch.int64"),
        ({"key": normal(2, 7, 5, dtype=torch.float32)}, "got query torch.float64, key torch.float32"),
        ({"mask": normal(3, 7)}, "a boolean mask, True where a query may attend; got torch.float64"),
        ({"key_mask": normal(2, 7)}, "a boolean key_mask"),
        ({"attn_bias": boolean(3, 7)}, "a floating attn_bias, which is added to the scores; got torch.bool"),
    ],
)
def test_inputs_of_wrong_dtype_raise_an_error(
    wrong: dict, message: str, layer: MultiHeadAttention, typechecked: bool
) -> None:
    if typechecked:
        pytest.skip("the import hook refuses most of these before the module can")
    inputs = {"query": normal(2, 3, 11), "key": normal(2, 7, 5), "value": normal(2, 7, 7)}
    with pytest.raises(ValueError, match=message):
        layer(**inputs | wrong)

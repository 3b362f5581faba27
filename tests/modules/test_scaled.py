"""Scaled attention as a layer: softmax attention at first, learning S, its size, and saving it."""

import json

import pytest
import torch
from torch import nn

from clearhead.modules import MultiHeadAttention, ScaledAttention
from clearhead.operators import LearnedScaling, Scaled
from clearhead.operators.named import operator_from_dict, operator_to_dict
from clearhead.operators.scaled import AlphaAsymmetric, AlphaSymmetric, SMatrix, slow_scaled_attention
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same

FORMS = {
    "matrix": {"form": "matrix", "num_tokens": 7},
    "symmetric": {"form": "symmetric"},
    "asymmetric": {"form": "asymmetric"},
    "symmetric, by head": {"form": "symmetric", "per_head": True},
}
MASKS = ({}, {"causal": True}, {"key_mask": boolean(2, 7)}, {"mask": boolean(2, 3, 7, 7)})


@pytest.mark.parametrize("form", FORMS)
def test_with_zero_s_the_output_equals_multi_head_attention_bit_for_bit(form: str) -> None:
    layer, other = ScaledAttention(12, num_heads=3, **FORMS[form]), MultiHeadAttention(12, num_heads=3)
    missing, unexpected = layer.load_state_dict(other.state_dict(), strict=False)
    assert (missing, unexpected) == (["operator.s"], [])
    assert not layer.operator.s.any()
    x = normal(2, 7, 12, dtype=torch.float32)
    for options in MASKS:
        assert torch.equal(layer(x, **options), other(x, **options))
    nn.init.constant_(layer.operator.s, 0.1)
    for options in MASKS:
        assert differ(layer(x, **options), other(x, **options))


@pytest.mark.parametrize("form", FORMS)
def test_each_head_has_its_own_maps_and_s(form: str) -> None:
    layer = randomised(ScaledAttention(11, num_heads=3, head_dim=5, value_dim=2, out_dim=13, **FORMS[form]))
    x = normal(2, 7, 11)
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    for options in MASKS:
        heads = []
        for i in range(3):
            s = layer.operator.s[i if len(layer.operator.s) > 1 else 0]
            kind = {"matrix": SMatrix, "asymmetric": AlphaAsymmetric}.get(form, AlphaSymmetric)
            mask = torch.ones(2, 7, 7, dtype=torch.bool)
            mask = mask.tril() if "causal" in options else mask
            mask = options["key_mask"][:, None].expand_as(mask) if "key_mask" in options else mask
            mask = options["mask"][:, i] if "mask" in options else mask
            width, wide = slice(5 * i, 5 * i + 5), slice(2 * i, 2 * i + 2)
            heads.append(slow_scaled_attention(q[..., width], k[..., width], v[..., wide], s=kind(s), mask=mask))
        require_same(layer(x, **options), layer.out(torch.cat(heads, dim=-1)))


@pytest.mark.parametrize("form", FORMS)
def test_training_changes_s_and_lowers_the_loss(form: str) -> None:
    torch.manual_seed(0)
    layer, x = ScaledAttention(12, num_heads=3, **FORMS[form]), normal(5, 7, 12).float()
    wanted = normal(5, 7, 12, seed=1)
    optimiser = torch.optim.SGD([layer.operator.s], lr=0.05)
    losses = []
    for _ in range(4):
        loss = (layer(x) - wanted.float()).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert layer.operator.s.abs().min() > 0
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_s_has_the_published_number_of_parameters() -> None:
    """12 layers of DeiT-tiny, 3 heads, 197 tokens; one alpha for each layer; and no weight decay for vectors."""
    with torch.device("meta"):
        layers = {form: [ScaledAttention(192, num_heads=3, **options) for _ in range(12)] for form, options in {
            "matrix": {"form": "matrix", "num_tokens": 197}, "alpha": {"form": "symmetric"},
            "by head": {"form": "asymmetric", "per_head": True}}.items()}  # fmt: skip
    counts = {form: sum(layer.operator.s.numel() for layer in made) for form, made in layers.items()}
    assert counts == {"matrix": 1_397_124, "alpha": 12, "by head": 36}
    assert {form: made[0].operator.s.ndim for form, made in layers.items()} == {"matrix": 3, "alpha": 1, "by head": 1}


def test_a_matrix_of_another_length_raises_or_is_resized() -> None:
    x = normal(2, 10, 12)
    with pytest.raises(ShapeError, match="S is for 7 tokens and there are 10"):
        randomised(ScaledAttention(12, num_heads=3, form="matrix", num_tokens=7))(x)
    kept = randomised(ScaledAttention(12, num_heads=3, form="matrix", num_tokens=5, resize="grid", num_prefix_tokens=1))
    line = randomised(ScaledAttention(12, num_heads=3, form="matrix", num_tokens=5, resize="line"))
    assert kept(x).shape == (2, 10, 12)
    assert differ(kept(x), line(x))


@pytest.mark.parametrize("form", FORMS)
def test_the_kind_of_s_is_saved_and_rebuilt(form: str) -> None:
    settings = Scaled(num_heads=3, **FORMS[form])
    stored = json.loads(json.dumps(operator_to_dict(settings)))
    assert stored["operator"] == "scaled"
    assert operator_from_dict(stored) == settings
    assert settings.square
    assert settings.needs_past_queries is (form == "asymmetric")
    first, second = settings.build(), settings.build()
    assert isinstance(first, LearnedScaling)
    assert first.s is not second.s
    assert not first.s.any()
    q, k, v = (normal(2, 3, 7, 5, seed=i) for i in range(3))
    nn.init.constant_(first.double().s, 0.3)
    assert differ(first(q, k, v, mask=boolean(2, 1, 1, 7), scale=0.4), second.double()(q, k, v, scale=0.4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "diagonal"}, "\"asymmetric\"; got 'diagonal'"),
        ({"form": "matrix", "num_heads": 3}, "expected num_tokens, and per_head=False"),
        ({"form": "matrix", "num_tokens": 7}, "expected num_heads, since each head has its own S"),
        ({"form": "matrix", "num_tokens": 7, "num_heads": 3, "per_head": True}, "and per_head=False"),
        ({"form": "matrix", "num_tokens": 0, "num_heads": 3}, "num_tokens and num_heads of one or more"),
        ({"form": "matrix", "num_tokens": "7", "num_heads": 3}, "num_tokens and num_heads of one or more"),
        ({"form": "matrix", "num_tokens": 7, "num_heads": 3, "resize": "circle"}, 'resize as None, "line" or "grid"'),
        ({"form": "symmetric", "num_tokens": 7}, "only with form="),
        ({"form": "symmetric", "per_head": True}, "expected num_heads"),
        ({"form": "symmetric", "per_head": "no"}, "per_head as True or False; got 'no'"),
        ({"form": "matrix", "num_tokens": True, "num_heads": 3}, "num_tokens and num_heads of one or more"),
    ],
)
def test_invalid_settings_raise_an_error(options: dict, words: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of these before the settings can")
    with pytest.raises(ValueError, match=words):
        Scaled(**options)
    with pytest.raises(ValueError, match=words):
        operator_from_dict({"operator": "scaled", **options})


def test_invalid_widths_raise_an_error() -> None:
    with pytest.raises(ValueError, match="num_heads that divides embed_dim; got 5 and 12"):
        ScaledAttention(12, num_heads=5, form="symmetric")
    with pytest.raises(ValueError, match="sizes of one or more"):
        ScaledAttention(12, num_heads=3, head_dim=0, form="symmetric")

"""The layer, heads and inputs of a call, and the errors if they are ambiguous."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clearhead._capture import capture
from clearhead.audit import fidelity
from clearhead.audit.fidelity import FidelityError, check_fidelity, replaced
from clearhead.audit.record import Fidelity
from clearhead.heads import Heads
from clearhead.interfaces import AttentionNotSeenError
from tests.interfaces.zoo import FAMILIES, with_large_weights

BATCH, TOKENS, WIDTH, HEADS = 3, 11, 24, 4


def _x(batch: int = BATCH, tokens: int = TOKENS) -> Tensor:
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(batch + tokens))


class Fused(nn.Module):
    """A module that calls torch's fused attention with q, k, v in the layout `lay`."""

    def __init__(self, lay: Any = lambda x: x, heads: int = HEADS, **options: Any) -> None:
        super().__init__()
        self.num_heads, self.lay, self.options = heads, lay, options

    def forward(self, x: Tensor) -> Tensor:
        q = self.lay(x)
        return functional.scaled_dot_product_attention(q, q.flip(-1), q, **self.options)


class Chain(nn.Module):
    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self.layers.items():
            if name != "long" or x.shape[1] > 8:
                x = x + layer(x)
        return x


def test_layer_numbers_do_not_depend_on_which_layers_run() -> None:
    model = Chain(first=Fused(heads=1), long=Fused(heads=1), last=Fused(heads=1))
    with capture(model) as captured:
        model(_x(tokens=5))
        model(_x(tokens=11))
        model(_x(tokens=5))
    numbered = [(heads.layer, heads.name.split(".")[-1]) for heads in captured.heads]
    assert numbered == [(0, "first"), (1, "last"), (0, "first"), (2, "long"), (1, "last"), (0, "first"), (1, "last")]
    assert [layer.name for layer in captured.layers] == ["layers.first", "layers.last", "layers.long"]


def test_several_calls_of_one_module_have_different_numbers() -> None:
    shared = Fused(heads=1)
    model = nn.Sequential(shared, shared)
    with capture(model) as captured:
        model(_x())
        model(_x())
    assert [heads.layer for heads in captured.heads] == [0, 1, 0, 1]
    assert [layer.name for layer in captured.layers] == ["0", "0, call 2"]


def test_a_changing_number_of_heads_raises_an_error() -> None:
    model = Fused(lambda x: x.reshape(2, -1, TOKENS, WIDTH // 4))
    with capture(model):
        model(_x(2))
        with pytest.raises(AttentionNotSeenError, match="had 4 heads and now has 8"):
            model(_x(4))


def _windows_first(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], 2, HEADS, -1, 6)


def _heads_first(x: Tensor) -> Tensor:
    return _windows_first(x).transpose(1, 2)


@pytest.mark.parametrize("lay", [_windows_first, _heads_first])
def test_with_five_axes_the_heads_are_found_by_the_modules_head_count(lay: Any) -> None:
    model = Fused(lay)
    with capture(model) as captured:
        model(_x(tokens=12))
    heads = captured.heads[0]
    assert tuple(heads.q.shape) == (BATCH * 2, HEADS, 6, 6)
    assert heads.windows == 2
    assert torch.equal(heads.q[1, 3], _heads_first(_x(tokens=12))[0, 3, 1])
    with replaced(model, lambda heads: heads.out * torch.arange(1, HEADS + 1).view(-1, 1, 1)):
        scaled = model(_x(tokens=12))
    factor = (scaled / model(_x(tokens=12))).movedim(lay(_x(tokens=12)).shape.index(HEADS, 1), 0)
    assert torch.allclose(factor.flatten(1).mean(dim=1), torch.arange(1.0, HEADS + 1))


def test_ambiguous_five_axes_raise_an_error() -> None:
    with pytest.raises(AttentionNotSeenError, match="does not say which axis holds its heads"):
        check_fidelity(model := Fused(_windows_first, heads=7), lambda: model(_x(tokens=12)))


def test_a_batch_divisible_by_the_number_of_heads_stays_a_batch() -> None:
    model = Fused()
    with capture(model) as captured:
        model(_x(8))
    assert tuple(captured.heads[0].q.shape) == (8, 1, TOKENS, WIDTH)


def test_models_with_different_numbers_of_texts_and_images() -> None:
    family = FAMILIES["clip"]
    inputs = family.inputs()
    inputs["input_ids"], inputs["attention_mask"] = inputs["input_ids"][:1], inputs["attention_mask"][:1]
    model = family.make()
    with torch.no_grad(), capture(model) as captured:
        model(**inputs)
    assert {(heads.q.shape[0], heads.windows) for heads in captured.heads} == {(1, 1), (BATCH, 1)}


class XCA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(v @ (q.mT @ k).softmax(-1))


class AttentionLayer(XCA):
    pass


@pytest.mark.parametrize("hidden", [XCA, AttentionLayer])
def test_attention_under_other_names_is_reported_even_if_other_layers_are_captured(hidden: type[nn.Module]) -> None:
    model = nn.Sequential(Fused(heads=1), hidden())
    message = rf"1 attention modules ran unseen, 1 \({hidden.__name__}\)"
    with pytest.raises(AttentionNotSeenError, match=message), torch.no_grad(), capture(model):
        model(_x())


def test_a_subclass_of_torchs_encoder_layer_is_captured_on_its_fused_path() -> None:
    class Named(nn.TransformerEncoderLayer):
        def forward(self, src: Tensor, **options: Any) -> Tensor:
            return super().forward(src, **options)

    model = with_large_weights(nn.Sequential(Fused(heads=1), Named(WIDTH, HEADS, 29, batch_first=True))).eval()
    with torch.no_grad():
        result = check_fidelity(model, lambda: model(_x()))
    assert [layer.name for layer in result.layers] == ["0", "1.self_attn"]


def test_a_second_computation_for_gradients_is_not_a_layer() -> None:
    class Checkpointed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers.values():
                x = x + checkpoint(layer, x, use_reentrant=False)
            return x

    model = Checkpointed(first=Fused(heads=1), last=Fused(heads=1))
    with capture(model) as captured:
        model(_x().requires_grad_()).sum().backward()
    assert [heads.layer for heads in captured.heads] == [0, 1]


def test_calls_outside_forward_are_reported() -> None:
    family = FAMILIES["clip"]
    model, inputs = family.make(), family.inputs()
    message = r"attention ran outside CLIPModel\.forward, in vision_model.*capture the part that you call"
    with pytest.raises(AttentionNotSeenError, match=message), torch.no_grad(), capture(model):
        model.get_image_features(inputs["pixel_values"])


def _masked(value: float) -> Tensor:
    added = torch.zeros(BATCH, 1, 1, TOKENS)
    added[1, ..., 7:] = value
    return added


@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -10000.0])
def test_large_negative_numbers_hide_keys(value: float) -> None:
    model = Fused(lambda x: x.unsqueeze(1), attn_mask=_masked(value))
    with torch.no_grad():
        check_fidelity(model, lambda: model(_x()))
        with capture(model) as captured:
            model(_x())
    assert captured.heads[0].bias is None
    assert torch.equal(captured.heads[0].mask, _masked(value) == 0)


def test_smaller_negative_numbers_are_a_bias() -> None:
    model = Fused(lambda x: x.unsqueeze(1), attn_mask=_masked(-100.0))
    with capture(model) as captured:
        model(_x())
    assert captured.heads[0].mask is None
    assert torch.equal(captured.heads[0].bias, _masked(-100.0))


def test_masks_that_are_not_tensors_raise_an_error() -> None:
    from clearhead.interfaces.call import split_mask

    with pytest.raises(AttentionNotSeenError, match="a mask of type object cannot be read; choose sdpa or eager"):
        split_mask(object())


def test_keys_shared_by_all_heads_are_expanded() -> None:
    class MultiQuery(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, k)

    model = MultiQuery()
    q, k = torch.randn(2, 5, 7, 3), torch.randn(2, 1, 11, 3)
    with capture(model) as captured:
        model(q, k)
    assert torch.equal(captured.heads[0].k, k.expand(2, 5, 11, 3))


def test_dropout_is_recorded_in_training() -> None:
    model = Fused(lambda x: x.unsqueeze(1), dropout_p=0.25)
    with capture(model) as captured:
        model(_x())
    assert captured.heads[0].dropout == 0.25
    bert = FAMILIES["bert"].make().train()
    with capture(bert) as captured:
        bert(**FAMILIES["bert"].inputs())
    assert {heads.dropout for heads in captured.heads} == {0.1}
    mpnet = FAMILIES["mpnet"].make().train()
    with capture(mpnet) as captured:
        mpnet(**FAMILIES["mpnet"].inputs())
    assert {heads.dropout for heads in captured.heads} == {0.1}


def test_masked_logits_may_be_infinite() -> None:
    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Fused(heads=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).masked_fill(torch.arange(WIDTH) == 3, -torch.inf)

    model = Logits()
    assert check_fidelity(model, lambda: model(_x())).swap_error < 1e-5


@pytest.mark.parametrize("tokens", [5, TOKENS, 64])
def test_nan_in_attention_raises_an_error_even_if_the_output_is_finite(tokens: int) -> None:
    """torch's CPU kernel turns rows of NaN scores into zeros if keys are few, so the output is finite."""
    model = with_large_weights(nn.TransformerEncoderLayer(WIDTH, HEADS, 29, batch_first=True)).eval()
    x = _x(tokens=tokens)
    assert check_fidelity(model, lambda: model(x)).swap_error < 1e-5
    with torch.no_grad():
        model.self_attn.in_proj_weight[:WIDTH] = torch.nan
    with pytest.raises(FidelityError, match=r"hold NaN or infinity|output is not finite"):
        check_fidelity(model, lambda: model(x))


GOOD = Fidelity(
    layers=(), output_difference=0.0, recompute_error=0.0, swap_error=1e-7, control_change=0.5, tolerance=1e-5
)


@pytest.mark.parametrize(
    ("changed", "calls", "message"),
    [
        ({"output_difference": 1e-30}, 0, "capturing the model changed"),
        ({"output_difference": float("nan")}, 0, "capturing the model changed"),
        ({"swap_error": 2e-5}, 0, "more than rounding's"),
        ({"swap_error": float("nan")}, 0, "more than rounding's"),
        ({"control_change": 1e-8}, 0, "does not change the output"),
        ({"control_change": float("nan")}, 0, "does not change the output"),
        ({}, 3, "0 attention calls were captured but 3 replaced"),
    ],
)
def test_the_fidelity_check_requires_every_measurement(changed: dict[str, float], calls: int, message: str) -> None:
    import dataclasses

    fidelity._require(GOOD, [], 0)
    with pytest.raises(FidelityError, match=message):
        fidelity._require(dataclasses.replace(GOOD, **changed), [], calls)


def test_a_nan_among_outputs_fails_the_fidelity_check() -> None:
    ours, theirs = [torch.ones(3), torch.ones(3)], [torch.ones(3), torch.full((3,), torch.nan)]
    assert torch.isnan(torch.tensor(fidelity._largest(fidelity._relative, ours, theirs)))


def test_the_fidelity_check_fails_if_recomputed_attention_differs() -> None:
    heads = Heads(
        layer=0, name="layer", q=torch.ones(1, 1, 2, 3), k=torch.ones(1, 1, 2, 3), v=torch.ones(1, 1, 2, 3),
        out=torch.ones(1, 1, 2, 3), scale=1.0,
    )  # fmt: skip
    with pytest.raises(FidelityError, match="differs from the layer's own output by"):
        fidelity._require(GOOD, [(1e-3, heads)], 0)

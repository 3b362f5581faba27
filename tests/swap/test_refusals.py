"""Errors for unsupported operands are one line with the layer, the cause and the remedy."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import clearhead
from clearhead import AttentionSpec, swap
from clearhead.loading.model import load_model
from clearhead.loading.objects import LoadError
from clearhead.operators.named import Symmetric
from tests.interfaces.zoo import FAMILIES
from tests.noise import weight_tolerance
from tests.swap.models import IDENTITY, MODELS, encoder_inputs, relative_error, rounding, run, same
from tests.swap.operators import Gained, uniform

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

REFUSED = {
    "t5": r"block\.0\.layer\.0\.SelfAttention has a position bias, which symmetric does not take: leave it out of",
    "swin": r"blocks\.1\.attention has a position bias",
    "timm swin": r"layers\.0\.blocks\.0\.attn has a position bias",
    "mpnet": r"encoder\.layer\.0\.attention\.attn has a position bias",
    "gemma2": r"layers\.0\.self_attn has a soft cap on scores",
    "gpt-oss": r"layers\.0\.self_attn has attention sinks",
    "whisper": r"decoder\.layers\.0\.encoder_attn: symmetric attends within one sequence, and here 7 queries",
    "diffusers unet": r"attn2: symmetric attends within one sequence, and here 64 queries attend to 7 keys of another",
}


@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_the_operator_does_not_accept_raise_an_error(name: str) -> None:
    model, inputs = FAMILIES[name].make(), FAMILIES[name].inputs()
    alone = run(model, inputs)
    with swap(model, "symmetric"), pytest.raises(ValueError, match=REFUSED[name]) as caught:
        run(model, inputs)
    assert "\n" not in str(caught.value)
    assert same(alone, run(model, inputs))
    with swap(model, Gained(start=1.5)):
        assert relative_error(alone, run(model, inputs)) > 1e-3


def test_cross_attention_of_equal_length_is_refused_too() -> None:
    model, inputs = FAMILIES["t5"].make(), FAMILIES["t5"].inputs()
    equal = {**inputs, "decoder_input_ids": inputs["input_ids"], "decoder_attention_mask": inputs["attention_mask"]}
    crossing = "decoder.block.1.layer.1.EncDecAttention"
    with (
        swap(model, "symmetric", layers=crossing),
        pytest.raises(ValueError, match="EncDecAttention: symmetric"),
    ):
        run(model, equal)
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(24, 4, 29, batch_first=True).eval()
    x = encoder_inputs(padded=False)["src"]
    with swap(layer, "symmetric", layers="self_attn"):
        layer(x, x.flip(1))
    with swap(layer, "symmetric"), pytest.raises(ValueError, match="multihead_attn: symmetric"):
        layer(x, x.flip(1))


class Reading(nn.Module):
    """Cross-attention by torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Linear(24, 72)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (self.maps(y)[:, None, :, i : i + 24] for i, y in ((0, x), (24, other), (48, other)))
        return functional.scaled_dot_product_attention(q, k, v)[:, 0]


class CrossAttention(Reading):
    """The same, with an attribute that declares cross-attention."""


class Reader(nn.Module):
    def __init__(self, layer: nn.Module, *, name: str = "layer", said: bool = False) -> None:
        super().__init__()
        self.name = name
        layer.is_cross_attention = said
        self.add_module(name, layer)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x, other)


def test_fused_cross_attention_of_equal_length_is_refused_if_it_can_be_recognised() -> None:
    x = encoder_inputs(padded=False)["src"]
    for model in (Reader(CrossAttention()), Reader(Reading(), name="cross_attn"), Reader(Reading(), said=True)):
        with swap(model, "symmetric"), pytest.raises(ValueError, match="one sequence"):
            model.eval()(x, x.flip(1))
        with swap(model, "softmax"):
            model(x, x.flip(1))
    control = Reader(Reading())
    with swap(control, "symmetric"):
        control.eval()(x, x.flip(1))


def test_cross_attention_of_equal_length_is_refused_by_name_in_all_layers_too() -> None:
    clearhead.register_huggingface()
    model, inputs = FAMILIES["whisper"].make(), FAMILIES["whisper"].inputs()
    frames = model(**inputs, output_hidden_states=True).encoder_last_hidden_state.shape[1]
    ids = inputs["decoder_input_ids"][:, :1].expand(-1, frames)
    model.set_attn_implementation("clearhead-symmetric")
    with pytest.raises(ValueError, match=f"{frames} queries .*{frames} keys of another"):
        model(**{**inputs, "decoder_input_ids": ids})
    model.set_attn_implementation("clearhead-softmax")
    model(**{**inputs, "decoder_input_ids": ids})


def test_invalid_layers_raise_an_error(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses it before the function can")
    with pytest.raises(ValueError, match="got None"):
        swap(MODELS["bert"].make(), "softmax", layers=None)


def test_unsupported_masks_raise_an_error() -> None:
    model, inputs = MODELS["bert"].make(), MODELS["bert"].inputs()
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match=r"'flex_attention'.*\"sdpa\""):
        swap(model, "softmax")
    assert clearhead.find_swaps(model) == ()
    model.set_attn_implementation("sdpa")
    done = swap(model, "softmax", layers=0)
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="mask cannot be read"):
        run(model, inputs)
    done.undo()


@pytest.mark.parametrize(
    "add", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 11, "vdim": 7}, {"bias": False}]
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_every_variant_of_torchs_module(add: dict[str, Any], batch_first: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 4, batch_first=batch_first, **add).eval()
    generator = torch.Generator().manual_seed(3)
    draw = lambda n, width: torch.randn(*((5, n) if batch_first else (n, 5)), width, generator=generator)  # noqa: E731
    query, key, value = draw(13, 24), draw(11, add.get("kdim", 24)), draw(11, add.get("vdim", 24))
    hidden = torch.rand(5 * 4, 13, 11, generator=generator) > 0.7
    options = {"attn_mask": hidden, "key_padding_mask": torch.arange(11) >= torch.tensor([11, 3, 5, 9, 7])[:, None]}
    with torch.no_grad():
        alone, _ = module(query, key, value, need_weights=False, **options)
        rows = ~alone.isnan()
        close = weight_tolerance(module, lambda: module(query, key, value, need_weights=False, **options)[0][rows])
        with swap(module, "softmax"):
            exact, _ = module(query, key, value, need_weights=False, **options)
            single, _ = module(query[0], key[0], value[0], need_weights=False) if batch_first else (None, None)
        assert float((alone - exact)[rows].abs().max()) <= close
        assert not exact.isnan().any()
        if single is not None:
            assert torch.allclose(single, module(query[0], key[0], value[0], need_weights=False)[0], atol=close, rtol=0)
        with swap(module, uniform):
            assert float((module(query, key, value, need_weights=False, **options)[0] - alone)[rows].abs().max()) > 1e-3


def test_a_described_layer_can_be_swapped() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (f(x).unflatten(-1, (4, 6)).transpose(1, 2) for f in (self.q, self.k, self.v))
            return self.out(((q @ k.mT) * 6**-0.5).softmax(dim=-1).matmul(v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, x = nn.Sequential(Written(), Written()), torch.randn(3, 7, 24)
    spec = AttentionSpec(module="Written", q="q", k="k", v="v", out="out", heads=4)
    alone = run(model, {"input": x})
    with swap(model, "softmax", describe=[spec]):
        assert relative_error(alone, run(model, {"input": x})) <= rounding(model, {"input": x})
    with swap(model, Symmetric(), layers=1, describe=[spec]):
        assert relative_error(alone, run(model, {"input": x})) > 1e-3
    assert same(alone, run(model, {"input": x}))


def test_a_description_whose_output_never_runs_is_refused() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.q(x) @ self.k(x).mT).softmax(dim=-1) @ self.v(x)

    spec = AttentionSpec(module="Written", q="q", k="k", v="v", out="out", heads=4)
    model = nn.Sequential(Written()).eval()
    with swap(model, "softmax", describe=[spec]), pytest.raises(ValueError, match="child 'out'"):
        model(torch.randn(3, 7, 24))


def test_the_operator_of_a_symmetric_module_can_be_swapped() -> None:
    torch.manual_seed(0)
    module, x = clearhead.modules.SymmetricAttention(24, num_heads=4), torch.randn(3, 7, 24)
    alone = run(module, {"x": x})
    with swap(module, "symmetric"):
        assert relative_error(alone, run(module, {"x": x})) <= rounding(module, {"x": x})
    with swap(module, uniform):
        assert relative_error(alone, run(module, {"x": x})) > 1e-4
    assert same(alone, run(module, {"x": x}))


@pytest.mark.parametrize("name", ["clearhead-symmetric", "clearhead-rpc", "kernels-community/flash-attn"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
def test_a_model_file_cannot_choose_the_attention(tmp_path: Any, name: str, key: str) -> None:
    import json

    clearhead.register_huggingface()
    MODELS["bert"].make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: name}))
    with pytest.raises(LoadError, match=r"attention backend .*not trusted"):
        load_model(str(tmp_path), max_tokens=7)


def test_every_refused_family_exists() -> None:
    assert set(REFUSED) <= set(IDENTITY)

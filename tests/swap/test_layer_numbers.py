"""`layers=` means forward-pass order in capture, audit and swap: for decoders, shared layers and towers too."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead import capture, swap
from clearhead.audit.run import audit
from clearhead.interfaces import find
from tests.interfaces.zoo import FAMILIES, VOCABULARY, WIDTH, Family, _t5_inputs, _transformers
from tests.swap.models import IDENTITY, relative_error, run, same
from tests.swap.operators import Gained, uniform

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

_BART = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29, "max_position_embeddings": 64,
    "init_std": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
BART = Family(_transformers("BartModel", "BartConfig", **_BART), _t5_inputs, 6, (4,), padded=True)
ONE_CALL_EACH = {name: family for name, family in {**IDENTITY, "bart": BART}.items() if name != "albert"}
ALBERT = "encoder.albert_layer_groups.0.albert_layers.0.attention"


def _captured(model: nn.Module, inputs: dict[str, Any]) -> list[str]:
    with torch.no_grad(), capture(model) as captured:
        model(**inputs)
    return [layer.name for layer in captured.layers]


@pytest.mark.parametrize("name", ONE_CALL_EACH)
def test_swap_numbers_layers_as_capture_does(name: str) -> None:
    model, inputs = ONE_CALL_EACH[name].make(), ONE_CALL_EACH[name].inputs()
    names = _captured(model, inputs)
    assert [layer.path for layer in find(model)] == names
    with swap(model, "softmax", layers=[0, len(names) - 1]) as done:
        assert [layer.positions for layer in done.layers] == [(), ()]
        run(model, inputs)
    assert [(layer.index, layer.path, layer.positions) for layer in done.layers] == [
        (number, names[number], (number,)) for number in (0, len(names) - 1)
    ]


def test_control_the_order_of_named_modules_differs() -> None:
    """The control: CLIP lists its text model first and runs its vision model first."""
    model, inputs = FAMILIES["clip"].make(), FAMILIES["clip"].inputs()
    names = _captured(model, inputs)
    held = [path for path, _ in model.named_modules() if path in names]
    assert names[0].startswith("vision_model")
    assert held[0].startswith("text_model")


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_an_audit_and_a_swap_mean_the_same_layers_of_an_encoder_decoder(name: str) -> None:
    family = {"bart": BART, "t5": FAMILIES["t5"]}[name]
    model, inputs = family.make(), family.inputs()
    names = _captured(model, inputs)
    crossing = next(number for number, path in enumerate(names) if "encoder_attn" in path or "EncDec" in path)
    record = audit(model, [inputs], theories=["kernel-pca"], layers=[crossing])
    assert {finding.layer for finding in record.findings} == {crossing}
    assert record.fidelity.layers[crossing].name == names[crossing]
    alone = run(model, inputs)
    with swap(model, uniform, layers=crossing) as done:
        assert relative_error(alone, run(model, inputs)) > 1e-3
    assert [layer.path for layer in done.layers] == [names[crossing]]
    with swap(model, uniform, layers=names[crossing]):
        by_path = run(model, inputs)
    with swap(model, uniform, layers=crossing):
        assert same(run(model, inputs), by_path)


def test_a_shared_module_is_swapped_in_all_its_calls_and_lists_them() -> None:
    model, inputs = FAMILIES["albert"].make(), FAMILIES["albert"].inputs()
    names = _captured(model, inputs)
    assert names == [ALBERT, *(f"{ALBERT}, call {nth}" for nth in range(2, 6))]
    for which in ("all", ALBERT):
        with swap(model, Gained(start=1.5), layers=which) as done:
            run(model, inputs)
        assert [(layer.path, layer.positions) for layer in done.layers] == [(ALBERT, (0, 1, 2, 3, 4))]
        assert done.calls == {ALBERT: 5}


def test_some_calls_of_a_shared_module_are_refused() -> None:
    model, inputs = FAMILIES["albert"].make(), FAMILIES["albert"].inputs()
    alone = run(model, inputs)
    message = "attention runs 5 times .* layers 0 to 4"
    done = swap(model, "softmax", layers=0)
    with pytest.raises(ValueError, match=message):
        run(model, inputs)
    done.undo()
    with pytest.raises(ValueError, match="no attention layer 2 "):
        swap(model, "softmax", layers=2)
    assert same(run(model, inputs), alone)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + functional.scaled_dot_product_attention(x, x, x)


class Backwards(nn.Module):
    """A model that runs its layers in an order not visible in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))
        self.unused = Attention()

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        return x


@pytest.mark.parametrize("training", [False, True])
def test_a_number_that_the_first_pass_proves_wrong_is_refused(training: bool) -> None:
    model, x = Backwards(), torch.randn(3, 7, 5)
    if training:
        del model.unused  # in training, layers that do not run may have been dropped at random
    model.train(training)
    done = swap(model, uniform, layers=0)
    message = r"layers\.0 .*layer 0, .*layer 2 "
    with pytest.raises(ValueError, match=message):
        model(x)
    done.undo()
    assert _captured(model, {"x": x}) == ["layers.2", "layers.1", "layers.0"]
    with swap(model, uniform, layers=[1, "layers.0"]) as done:
        model(x)
    assert [(layer.path, layer.positions) for layer in done.layers] == [("layers.0", (2,)), ("layers.1", (1,))]


def test_an_encoder_that_generation_calls_alone_keeps_its_number() -> None:
    import transformers

    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**_BART)).eval()
    prompt = {key: value for key, value in _t5_inputs().items() if not key.startswith("decoder")}
    alone = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    with swap(model, "softmax", layers=[1, 2]) as done:
        assert torch.equal(model.generate(**prompt, max_new_tokens=4, do_sample=False), alone)
    assert [(layer.path, layer.positions) for layer in done.layers] == [
        ("model.encoder.layers.1.self_attn", (1,)),
        ("model.decoder.layers.0.self_attn", (2,)),
    ]

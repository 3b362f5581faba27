"""The Segmenter: definition, operators per layer, saving, and capture."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import clearhead as ch
from clearhead.errors import InputError
from clearhead.loading.model import load_model
from clearhead.loading.objects import LoadError
from clearhead.modules import MultiHeadAttention, SymmetricAttention
from clearhead.numerics.precision import tolerance
from clearhead.operators.named import RPC, Softmax, Symmetric
from clearhead.stored_json import read_json, write_json
from clearhead_lab.models.native import save_native
from clearhead_lab.models.segmenter import Segmenter, SegmenterConfig
from clearhead_lab.models.vit import VisionTransformer
from lab.tests.models.released_crate import randomised

CONFIG = SegmenterConfig(
    image_size=15, patch_size=3, channels=2, classes=7, width=22, layers=3, heads=2, mlp_width=13, decoder_layers=2
)
MIXED = {
    "attention": (RPC(iterations=2), Symmetric(), Symmetric()),
    "decoder_attention": (RPC(iterations=3), Softmax()),
}


def _model(**changes: Any) -> Segmenter:
    return Segmenter(dataclasses.replace(CONFIG, **changes), generator=torch.Generator().manual_seed(0)).eval()


def _images(n: int = 5, seed: int = 1) -> Tensor:
    return torch.rand(n, 2, 15, 15, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head", ["gain", "layer-norm"])
def test_outputs_match_the_definition(head: str) -> None:
    model, images = randomised(_model(mask_head=head)).double(), _images().double()
    decoder = model.decoder
    with torch.no_grad():
        patches = model.encoder.tokens(images)[:, 1:]
        x = torch.cat([decoder.projection(patches), decoder.classes.expand(5, -1, -1)], dim=1)
        for block in decoder.blocks:
            x = block(x)
        x = decoder.norm(x)
        p, c = x[:, :25] @ decoder.patch_map.weight.mT, x[:, 25:] @ decoder.class_map.weight.mT
        cosines = torch.einsum("bnd,bkd->bnk", p, c) / (p.norm(dim=-1)[:, :, None] * c.norm(dim=-1)[:, None])
        masks = cosines
        if head == "layer-norm":
            spread = (cosines.var(dim=-1, unbiased=False, keepdim=True) + decoder.mask_norm.eps).sqrt()
            masks = (cosines - cosines.mean(dim=-1, keepdim=True)) / spread
        masks = masks * decoder.mask_norm.weight + decoder.mask_norm.bias
        # Patches of odd size have a pixel at their centre, where interpolation changes nothing.
        expected = masks.mT.unflatten(2, (5, 5))
        logits = model(images)
        error = (logits[:, :, 1::3, 1::3] - expected).norm() / expected.norm()
        # Between two centres it is linear.
        between = 2 / 3 * expected[:, :, 0, 0] + 1 / 3 * expected[:, :, 0, 1]
        linear = (logits[:, :, 1, 2] - between).norm() / between.norm()
    assert logits.shape == (5, 7, 15, 15)
    assert error <= tolerance(torch.float64)
    assert linear <= tolerance(torch.float64)


def test_encoder_and_decoder_have_an_operator_per_layer() -> None:
    model = _model(**MIXED)
    encoder = [type(block.attention) for block in model.encoder.blocks]
    decoder = [type(block.attention) for block in model.decoder.blocks]
    assert encoder == [SymmetricAttention] * 3
    assert decoder == [SymmetricAttention, MultiHeadAttention]
    assert model.encoder.blocks[0].attention.operator.operator == RPC(iterations=2)
    assert model.decoder.blocks[0].attention.operator.operator == RPC(iterations=3)
    assert model(_images()).isfinite().all()


def test_the_encoder_has_the_initial_weights_of_the_classifier() -> None:
    config = dataclasses.replace(CONFIG, **MIXED)
    classifier = VisionTransformer(config, generator=torch.Generator().manual_seed(0)).state_dict()
    encoder = _model(**MIXED).encoder.state_dict()
    assert classifier.keys() - encoder.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(classifier[name], weight) for name, weight in encoder.items())
    plain, mixed = _model().decoder.state_dict(), _model(**MIXED).decoder.state_dict()
    assert all(torch.equal(plain[name], weight) for name, weight in mixed.items())


def test_every_parameter_gets_a_gradient() -> None:
    model = _model().train()
    model(_images()).logsumexp(dim=1).square().sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert silent <= {name for name, _ in model.named_parameters() if name.endswith("attention.key.bias")}


def _share_of_gradient(config: SegmenterConfig, *, steps: int) -> Tensor:
    """Return, for every patch, the gradient that the head passes to its products, relative to that of its logits.

    After `steps` steps on blocks of pixels whose brightness is their class, as the recipe for Oxford Pets takes them.
    """
    shares = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        model = Segmenter(config, generator=generator)
        patches = torch.randint(config.classes, (8, 5, 5), generator=generator)
        masks = patches.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
        noise = torch.rand(8, 2, 15, 15, generator=generator)
        images = 0.2 * noise + 0.8 * (masks[:, None] + 0.5) / config.classes
        passed: list[Tensor] = []
        model.decoder.mask_norm.register_full_backward_hook(
            lambda _, inner, outer, passed=passed: passed.append(inner[0].norm(dim=-1) / outer[0].norm(dim=-1))
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(steps + 1):
            optimizer.zero_grad()
            cross_entropy(model(images), masks).backward()
            optimizer.step()
        shares.append(passed[-1].flatten())
    return torch.cat(shares)


WIDE = dataclasses.replace(CONFIG, width=64, heads=4, mlp_width=128, decoder_layers=1)


@pytest.mark.parametrize("steps", [0, 10])
def test_the_head_passes_a_gradient_at_every_patch_of_two_classes(steps: int) -> None:
    share = _share_of_gradient(dataclasses.replace(WIDE, classes=2), steps=steps)
    assert share.min() > 1
    assert share.max() < 30


@pytest.mark.parametrize("steps", [0, 10])
def test_the_published_head_passes_a_gradient_at_150_classes_and_saturates_at_two(steps: int) -> None:
    share = _share_of_gradient(dataclasses.replace(WIDE, classes=150, mask_head="layer-norm"), steps=steps)
    assert share.min() > 1
    assert share.max() < 30
    saturated = _share_of_gradient(dataclasses.replace(WIDE, classes=2, mask_head="layer-norm"), steps=steps)
    assert saturated.min() < 0.1 or saturated.max() > 100


def test_settings_stored_without_a_head_have_the_published_one(tmp_path: Path) -> None:
    model = _model(mask_head="layer-norm")
    save_native(model, tmp_path)
    stored = read_json(tmp_path / "config.json")
    assert stored.pop("mask_head") == "layer-norm"
    write_json(tmp_path / "config.json", stored)
    loaded = load_model(str(tmp_path), max_tokens=256).model
    with torch.no_grad():
        assert torch.equal(loaded(_images()), model(_images()))


def test_drop_path_increases_in_encoder_and_decoder() -> None:
    model = _model(drop_path=0.2)
    rates = [block.drop[1].rate for block in (*model.encoder.blocks, *model.decoder.blocks)]
    assert rates == [0, 0.1, 0.2, 0, 0.2]


@pytest.mark.parametrize(
    "changes", [{}, {**MIXED, "drop_path": 0.1, "mask_head": "layer-norm"}], ids=["plain", "mixed"]
)
def test_a_saved_model_is_restored_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = _model(**changes)
    save_native(model, tmp_path)
    loaded = load_model(str(tmp_path), max_tokens=256)
    assert isinstance(loaded.model, Segmenter)
    assert loaded.model.config == model.config
    assert loaded.draw_baseline is not None
    torch.manual_seed(7)
    with torch.no_grad():
        assert torch.equal(loaded.model(_images()), model(_images()))
        assert torch.equal(loaded.draw_baseline(0)(_images()), model(_images()))
        other = loaded.draw_baseline(1)
    assert not torch.equal(other.decoder.classes, model.decoder.classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 10**6}, "has layers of 1000000, but there are only"),
        ({"decoder_layers": 10**6}, "has decoder_layers of 1000000, but there are only"),
        ({"classes": 10**12}, "decoder.classes should be"),
        ({"decoder_attention": {"operator": "magic"}}, "expected an operator among softmax, symmetric"),
        ({"decoder_attention": [{"operator": "softmax"}] * 3}, "as decoder_attention .* each of 2; got"),
        ({"mask_head": "sign"}, "expected mask_head among gain, layer-norm"),
        ({"decoder_width": 3}, "does not describe a segmenter"),
    ],
)
def test_hostile_settings_raise_a_one_line_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_native(_model(), tmp_path)
    write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), **change})
    with pytest.raises(LoadError, match=message) as error:
        load_model(str(tmp_path), max_tokens=256)
    assert "\n" not in str(error.value)


def test_model_can_be_captured_swapped_and_audited() -> None:
    model, images = randomised(_model()), _images()
    names = [*(f"encoder.blocks.{i}.attention" for i in range(3)), *(f"decoder.blocks.{i}.attention" for i in range(2))]
    with torch.no_grad():
        plain = model(images)
        with ch.capture(model) as captured:
            assert torch.equal(model(images), plain)
        assert [layer.name for layer in captured.layers] == names
        assert [heads.q.shape[2] for heads in captured.heads] == [26] * 3 + [25 + 7] * 2
        with pytest.warns(ch.SwapWarning, match="W_Q no longer acts"), ch.swap(model, Symmetric(), layers=[3]):
            assert not torch.equal(model(images), plain)
        assert torch.equal(model(images), plain)
    record = ch.audit(_model(), [images, _images(seed=2)], theories=["kernel-pca"])
    assert record.fidelity.output_difference == 0
    assert {finding.layer for finding in record.findings} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "change",
    [
        {"mask_head": "softmax"},
        {"decoder_layers": 0},
        {"classes": 1},
        {"decoder_attention": (Softmax(),)},
        {"drop_path": 1.0},
    ],
)
def test_invalid_settings_raise_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        dataclasses.replace(CONFIG, **change)

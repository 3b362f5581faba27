"""Weights of timm and Hugging Face in Clearhead's vision transformer: equal logits, and errors for other models."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead_lab.models.image_sizes import interpolate_positions
from clearhead_lab.models.native import load_native, save_native
from clearhead_lab.models.vit import VisionTransformer
from clearhead_lab.models.vit_weights import vit_from_huggingface, vit_from_timm
from lab.tests.models.released_crate import randomised
from tests.noise import largest_difference, weight_tolerance

MEAN, SPREAD = (0.3, 0.5, 0.6), (0.2, 0.3, 0.25)
PIXELS = {"pixel_mean": MEAN, "pixel_spread": SPREAD}
SIZE = {"img_size": 12, "patch_size": 4, "embed_dim": 21, "num_heads": 3, "depth": 2, "num_classes": 5}


def _timm(name: str = "vit_tiny_patch16_224", **changes: Any) -> nn.Module:
    import timm

    return randomised(timm.create_model(name, **{**SIZE, **changes}))


def _huggingface(**changes: Any) -> nn.Module:
    import transformers

    sizes = {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 29, "num_hidden_layers": 2}
    config = transformers.ViTConfig(**{**sizes, "image_size": 12, "patch_size": 4, "num_labels": 5, **changes})
    return randomised(transformers.ViTForImageClassification(config))


def _images(size: int = 12) -> Tensor:
    return torch.rand(7, 3, size, size, generator=torch.Generator().manual_seed(1))


def _normalised(images: Tensor, mean: Any, spread: Any) -> Tensor:
    return (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(spread).view(3, 1, 1)


def _check_equal(model: VisionTransformer, expected: Tensor) -> None:
    images = _images(model.config.image_size)
    with torch.no_grad():
        logits = model(images)
        close = weight_tolerance(model, lambda: model(images))
    assert largest_difference(logits, expected) <= close < float(expected.std())
    assert not model.training


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224"])
def test_logits_are_those_of_timm(name: str) -> None:
    theirs = _timm(name)
    cfg = theirs.pretrained_cfg
    with torch.no_grad():
        expected = theirs(_normalised(_images(), cfg["mean"], cfg["std"]))
    model = vit_from_timm(theirs)
    _check_equal(model, expected)
    assert (model.config.layers, model.config.heads, model.config.classes) == (2, 3, 5)
    assert model.config.norm_eps == 1e-6
    assert model.config.pixel_mean == cfg["mean"]


def test_logits_of_a_state_dict_are_those_of_timm() -> None:
    theirs = _timm()
    with torch.no_grad():
        expected = theirs(_normalised(_images(), MEAN, SPREAD))
    _check_equal(vit_from_timm(theirs.state_dict(), heads=3, **PIXELS), expected)
    with pytest.raises(InputError, match="does not store the number of heads: give heads="):
        vit_from_timm(theirs.state_dict(), **PIXELS)
    with pytest.raises(InputError, match="how pixels were normalised: give pixel_mean= and pixel_spread="):
        vit_from_timm(theirs.state_dict(), heads=3)


def test_the_weights_are_a_copy_in_the_models_dtype(tmp_path: Path) -> None:
    theirs = _timm().double()
    model = vit_from_timm(theirs)
    assert model.norm.weight.dtype is torch.float64
    with torch.no_grad():
        theirs.norm.weight.zero_()
    assert model.norm.weight.any()
    save_native(model.float(), tmp_path)
    loaded = load_native(tmp_path).eval()
    assert loaded.config == model.config
    with torch.no_grad():
        assert torch.equal(loaded(_images()), model(_images()))


def test_logits_are_those_of_hugging_face() -> None:
    theirs = _huggingface(layer_norm_eps=1e-3)
    with torch.no_grad():
        expected = theirs(pixel_values=_normalised(_images(), MEAN, SPREAD)).logits
    model = vit_from_huggingface(theirs, **PIXELS)
    _check_equal(model, expected)
    other = VisionTransformer(dataclasses.replace(model.config, norm_eps=1e-5)).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        control = largest_difference(other(_images()), expected)
        assert control > weight_tolerance(model, lambda: model(_images())), "the epsilon of norms matters"
    with pytest.raises(InputError, match="give pixel_mean= and pixel_spread="):
        vit_from_huggingface(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("before", "side"), [(3, 5), (7, 4), (3, 3)])
def test_interpolated_positions_are_those_of_timm(before: int, side: int, dtype: torch.dtype) -> None:
    from timm.layers import resample_abs_pos_embed

    positions = torch.randn(1, before**2 + 1, 11, generator=torch.Generator().manual_seed(2), dtype=dtype)
    resized = interpolate_positions(positions, side=side)
    expected = resample_abs_pos_embed(positions, [side, side])
    # timm computes in float32 whatever the dtype, and rounds the result to the dtype.
    close = (tolerance(torch.float32, terms=16) + machine_epsilon(dtype)) * float(positions.abs().max())
    assert resized.dtype is dtype
    assert resized.shape == expected.shape
    assert largest_difference(resized, expected) <= close
    assert torch.equal(resized[:, 0], positions[:, 0]), "the class token's position is kept"
    if before != side:
        control = resample_abs_pos_embed(positions, [side, side], antialias=False)
        assert largest_difference(resized, control) > 2 * close


def test_interpolated_positions_are_exact_in_double_precision() -> None:
    """A cubic interpolation gives a constant back, and takes rows and columns alike."""
    constant = torch.full((1, 10, 2), 0.3, dtype=torch.float64)
    assert largest_difference(interpolate_positions(constant, side=5), constant[:, :1]) <= tolerance(torch.float64)
    positions = torch.randn(1, 10, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    exchanged = torch.cat([positions[:, :1], positions[:, 1:].view(1, 3, 3).mT.reshape(1, 9, 1)], dim=1)
    rows, columns = (interpolate_positions(grid, side=5)[:, 1:].view(5, 5) for grid in (positions, exchanged))
    assert largest_difference(rows, columns.mT) <= tolerance(torch.float64)
    assert largest_difference(rows, columns) > 0.1  # control: the grid is not symmetric


@pytest.mark.parametrize("size", [8, 20])
def test_logits_at_another_image_size_are_those_of_timm(size: int) -> None:
    theirs = _timm()
    model = vit_from_timm(theirs, image_size=size)
    assert model.config.image_size == size
    cfg = theirs.pretrained_cfg
    theirs.set_input_size(img_size=size)
    with torch.no_grad():
        expected = theirs(_normalised(_images(size), cfg["mean"], cfg["std"]))
    _check_equal(model, expected)
    with pytest.raises(InputError, match="expected patch_size that divides image_size; got 4 and 18"):
        vit_from_timm(theirs, image_size=18)


def test_positions_of_hugging_face_are_interpolated_too(tmp_path: Path) -> None:
    theirs = _huggingface()
    theirs.save_pretrained(tmp_path)
    state = theirs.state_dict()
    for source in (theirs, tmp_path):
        model = vit_from_huggingface(source, image_size=20, **PIXELS)
        expected = interpolate_positions(state["vit.embeddings.position_embeddings"], side=5)
        assert torch.equal(model.positions, expected)
        assert model(_images(20)).shape == (7, 5)
        assert torch.equal(model.class_token, state["vit.embeddings.cls_token"])


OLDER = {
    "vit.layers.": "vit.encoder.layer.", "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key", "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense", "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense",
}  # fmt: skip


@pytest.mark.parametrize("names", ["as saved", "older"])
def test_logits_of_a_folder_are_those_of_hugging_face(tmp_path: Path, names: str) -> None:
    theirs = _huggingface()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": MEAN, "image_std": SPREAD}))
    if names == "older":
        state = theirs.state_dict()
        for new, old in OLDER.items():
            state = {name.replace(new, old): tensor for name, tensor in state.items()}
        assert "vit.encoder.layer.1.attention.attention.query.bias" in state
        save_file(state, tmp_path / "model.safetensors")
    with torch.no_grad():
        expected = theirs(pixel_values=_normalised(_images(), MEAN, SPREAD)).logits
    model = vit_from_huggingface(tmp_path)
    _check_equal(model, expected)
    assert model.config.pixel_mean == MEAN
    assert vit_from_huggingface(str(tmp_path), pixel_mean=SPREAD, pixel_spread=MEAN).config.pixel_mean == SPREAD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm": True}, "unknown: blocks.0.attn.k_norm.bias, blocks.0.attn.k_norm.weight, .* and 5 more"),
        ({"init_values": 0.1}, "unknown: blocks.0.ls1.gamma"),
        ({"qkv_bias": False}, "missing: blocks.0.attn.k.bias"),
        ({"num_classes": 0}, "missing: head.bias, head.weight$"),
        ({"reg_tokens": 2}, "unknown: reg_token"),
        ({"global_pool": "avg"}, "classifies by its class token; got pooling 'avg'"),
        ({"act_layer": "quick_gelu"}, "expected the activation GELU"),
        ({"no_embed_class": True}, r"one class token; got a map of patches \(21, 3, 4, 4\) and positions \(1, 9, 21\)"),
    ],
)
def test_other_timm_models_raise_a_one_line_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        vit_from_timm(_timm(**changes))
    assert "\n" not in str(error.value)


def test_a_distilled_model_raises_an_error() -> None:
    with pytest.raises(InputError, match=r"unknown: dist_token, head_dist\.bias, head_dist\.weight"):
        vit_from_timm(_timm("deit_tiny_distilled_patch16_224"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("blocks.7.norm1.bias", torch.zeros(21), "missing: blocks.2.attn.k.bias"),
        ("norm.weight", torch.zeros(22), r"expected norm.weight of shape \(21,\); got \(22,\)"),
        ("head.bias", torch.zeros(()), "expected classes of at least 1"),
        ("patch_embed.proj.weight", torch.zeros(21, 3, 4, 5), "expected square patches"),
        ("patch_embed.proj.weight", torch.zeros(20, 3, 4, 4), "expected heads that divides width; got 3 and 20"),
        ("blocks.1.attn.qkv.weight", torch.zeros(62, 21), "unknown: blocks.1.attn.qkv.weight"),
    ],
)
def test_damaged_states_raise_a_one_line_error(name: str, value: Tensor, message: str) -> None:
    state = {**_timm().state_dict(), name: value}
    with pytest.raises(InputError, match=message) as error:
        vit_from_timm(state, heads=3, **PIXELS)
    assert "\n" not in str(error.value)


def test_other_objects_raise_an_error() -> None:
    for source, message in (
        (nn.Linear(2, 3), "expected a VisionTransformer of timm; got a Linear"),
        ({}, "expected a model or a state dict with tensors by name"),
        ({"a": 3}, "expected a model or a state dict with tensors by name"),
        ({"a": torch.zeros(2)}, "missing: blocks.0.attn.k.bias"),
    ):
        with pytest.raises(InputError, match=message):
            vit_from_timm(source, heads=3, **PIXELS)
    with pytest.raises(InputError, match="expected a Hugging Face model of type 'vit'; got None"):
        vit_from_huggingface(nn.Linear(2, 3), **PIXELS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no config", "there is no .*config.json; give the folder that save_pretrained wrote"),
        ("no weights", "there is no .*model.safetensors; give the folder that save_pretrained wrote"),
        ("nonsense", "cannot read .*model.safetensors"),
        ("no classifier", "missing: classifier.bias, classifier.weight"),
        ("relu", "expected the activation gelu; got relu"),
        ("bert", "expected a Hugging Face model of type 'vit'; got 'bert'"),
        ("heads", "expected heads of at least 1; got 0"),
        ("eps", "expected norm_eps between 0 and 1; got -1"),
        ("mean", "expected numbers as settings; got .*'pixel_mean': 0.5"),
        ("no processor", "give pixel_mean= and pixel_spread="),
    ],
)
def test_other_folders_raise_a_one_line_error(tmp_path: Path, change: str, message: str) -> None:
    _huggingface().save_pretrained(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    settings = {
        "relu": {"hidden_act": "relu"},
        "bert": {"model_type": "bert"},
        "heads": {"num_attention_heads": 0},
        "eps": {"layer_norm_eps": -1.0},
    }
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings.get(change, {})}))
    if change != "no processor":
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": MEAN, "image_std": SPREAD}))
    if change == "mean":
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": 0.5, "image_std": 0.5}))
    elif change == "no config":
        config.unlink()
    elif change == "no weights":
        weights.unlink()
    elif change == "nonsense":
        weights.write_bytes(b"nonsense")
    elif change == "no classifier":
        save_file({name: x for name, x in load_file(weights).items() if "classifier" not in name}, weights)
    with pytest.raises(InputError, match=message) as error:
        vit_from_huggingface(tmp_path)
    assert "\n" not in str(error.value)

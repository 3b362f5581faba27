"""The vision transformer: outputs, capture, audit and saving."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clearhead._capture import capture
from clearhead.audit.run import audit
from clearhead.errors import InputError
from clearhead.loading.model import MARKER, load_model
from clearhead.modules import MultiHeadAttention, SymmetricAttention
from clearhead.numerics.precision import tolerance
from clearhead.operators.named import RPC, ClampedKeys, Softmax, Symmetric
from clearhead.shapes import ShapeError
from clearhead.storage import write_tensors
from clearhead.stored_json import read_json, write_json
from clearhead_lab.models.native import draw_baseline, is_native, load_native, save_native
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from tests.faults.damage import DAMAGES, damage
from tests.noise import largest_difference, weight_tolerance

CONFIG = VisionTransformerConfig(
    image_size=15, patch_size=3, channels=2, classes=7, width=22, layers=3, heads=2, mlp_width=13,
    pixel_mean=(0.3, 0.6), pixel_spread=(0.2, 0.4),
)  # fmt: skip


def _model(seed: int = 0) -> VisionTransformer:
    return VisionTransformer(CONFIG, generator=torch.Generator().manual_seed(seed)).eval()


def _images(n: int = 5, seed: int = 1) -> torch.Tensor:
    return torch.rand(n, 2, 15, 15, generator=torch.Generator().manual_seed(seed))


def test_outputs_match_the_definition() -> None:
    model, images = _model().double(), _images().double()
    with torch.no_grad():
        pixels = (images - torch.tensor(CONFIG.pixel_mean).view(2, 1, 1)) / torch.tensor(CONFIG.pixel_spread).view(
            2, 1, 1
        )
        tokens = [
            model.patches(pixels[:, :, y : y + 3, x : x + 3].flatten(1))
            for y in range(0, 15, 3)
            for x in range(0, 15, 3)
        ]
        x = torch.stack([model.class_token[0].expand(5, -1), *tokens], dim=1) + model.positions
        for block in model.blocks:
            x = x + block.attention(block.attention_norm(x))
            x = x + block.mlp(block.mlp_norm(x))
        expected = model.head(model.norm(x)[:, 0])
        error = (model(images) - expected).norm() / expected.norm()
    assert error <= tolerance(torch.float64)
    assert expected.shape == (5, 7)
    assert CONFIG.tokens == 26


def test_the_position_of_a_patch_matters() -> None:
    model, images = _model(), _images()
    with torch.no_grad():
        moved = torch.cat([images[..., 3:], images[..., :3]], dim=-1)
        assert not torch.allclose(model(moved), model(images), atol=1e-4)
        model.positions.zero_()
        assert largest_difference(model(moved), model(images)) <= weight_tolerance(model, lambda: model(images))


def test_every_parameter_gets_a_gradient() -> None:
    model = _model().train()
    model(_images()).logsumexp(dim=1).sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    # A key bias shifts all scores of a row equally, so it has no effect in softmax.
    assert silent <= {f"blocks.{i}.attention.key.bias" for i in range(3)}


def test_every_layer_is_captured() -> None:
    model = _model()
    with capture(model) as captured:
        model(_images())
    assert [layer.name for layer in captured.layers] == [f"blocks.{i}.attention" for i in range(3)]
    assert {tuple(heads.q.shape) for heads in captured.heads} == {(5, 2, 26, 11)}


def test_model_can_be_audited() -> None:
    record = audit(_model(), [_images(), _images(seed=2)], theories=["kernel-pca"])
    assert record.fidelity.output_difference == 0
    assert record.fidelity.swap_error <= record.fidelity.tolerance < record.fidelity.control_change
    assert {finding.inputs for finding in record.findings} == {10}


def test_a_saved_model_is_restored_bit_for_bit(tmp_path: Path) -> None:
    model = _model()
    save_native(model, tmp_path / "deep" / "model")
    assert is_native(tmp_path / "deep" / "model")
    loaded = load_model(str(tmp_path / "deep" / "model"), max_tokens=256)
    assert loaded.encode is None
    assert isinstance(loaded.model, VisionTransformer)
    assert loaded.model.config == CONFIG
    assert not loaded.model.training
    with torch.no_grad():
        assert torch.equal(loaded.model(_images()), model(_images()))
    assert sorted(path.name for path in (tmp_path / "deep" / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_initial_weights_depend_only_on_the_seed() -> None:
    torch.manual_seed(5)
    first = _model(3)
    torch.manual_seed(6)
    again, other = draw_baseline(first, 3), draw_baseline(first, 4)
    with torch.no_grad():
        assert torch.equal(first(_images()), again(_images()))
        assert not torch.equal(first(_images()), other(_images()))
    with pytest.raises(ValueError, match="expected one of Clearhead's own models; got a Linear"):
        draw_baseline(torch.nn.Linear(2, 3), 0)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_damaged_files_are_not_used(tmp_path: Path, file: str, kind: str) -> None:
    save_native(_model(), tmp_path)
    intact = (tmp_path / file).read_bytes()
    for seed in range(10):
        (tmp_path / file).write_bytes(intact)
        damage(tmp_path / file, kind, seed)
        try:
            loaded = load_model(str(tmp_path), max_tokens=256).model
        except InputError:
            continue
        # Only whitespace of config.json changed.
        assert file == "config.json"
        assert json.loads((tmp_path / file).read_text()) == json.loads(intact)
        assert loaded.config == CONFIG


def test_folders_of_other_libraries_are_not_loaded_as_native(tmp_path: Path) -> None:
    assert not is_native(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    assert not is_native(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([MARKER]))
    assert not is_native(tmp_path)


def _spoil(folder: Path, case: str) -> None:
    config = read_json(folder / "config.json")
    if case == "kind":
        config[MARKER] = "perceiver"
    elif case == "field":
        config["depth"] = 3
    elif case == "size":
        config["heads"] = 5
    elif case == "operator":
        config["attention"] = {"operator": "magic"}
    elif case == "setting":
        config["attention"] = [{"operator": "softmax"}, {"operator": "softmax", "power": 2}, {"operator": "softmax"}]
    elif case == "few operators":
        config["attention"] = [{"operator": "softmax"}, {"operator": "symmetric"}]
    elif case == "other attention":
        config["attention"] = {"operator": "symmetric"}
    elif case == "many layers":
        config["layers"] = 1000
    elif case == "edited":
        (folder / "config.json").write_text(json.dumps(config))
        return
    elif case == "widths":
        config["mlp_width"] = 17
    elif case == "lost":
        (folder / "model.safetensors").unlink()
    elif case == "nonsense":
        (folder / "model.safetensors").write_bytes(b"nonsense")
    elif case == "extra":
        write_tensors(folder / "model.safetensors", {**load_file(folder / "model.safetensors"), "more": torch.ones(2)})
    elif case == "nan":
        weights = load_file(folder / "model.safetensors")
        weights["head.bias"][0] = torch.nan
        write_tensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", config)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("kind", "holds a perceiver, which this version cannot load"),
        ("field", "does not describe a vision-transformer"),
        ("many layers", "has layers of 1000, but there are only"),
        ("edited", "config.json has no checksum"),
        ("size", "expected heads that divides width; got 5 and 22"),
        ("operator", "expected an operator among softmax, symmetric"),
        ("setting", "softmax has no setting power"),
        ("few operators", "one for all layers or one for each of 3"),
        ("other attention", r"attention.query.bias should be absent, not \(22,\)"),
        ("widths", r"blocks.0.mlp.0.bias should be \(17,\), not \(13,\)"),
        ("lost", "has no model.safetensors"),
        ("nonsense", "model.safetensors has no checksum: it is damaged"),
        ("extra", r"more should be absent, not \(2,\)"),
        ("nan", "head.bias holds NaN"),
    ],
)
def test_damaged_folders_raise_a_one_line_error(tmp_path: Path, case: str, message: str) -> None:
    save_native(_model(), tmp_path)
    _spoil(tmp_path, case)
    with pytest.raises(InputError, match=message) as error:
        load_model(str(tmp_path), max_tokens=256)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"patch_size": 4}, {"heads": 3}, {"layers": 0}, {"pixel_mean": (0.1,)}, {"pixel_spread": (0.1, 0.0)},
        {"pixel_mean": (0.1, float("nan"))},
    ],
)  # fmt: skip
def test_invalid_sizes_raise_an_error(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize("shape", [(5, 2, 15, 14), (5, 1, 15, 15), (2, 15, 15)])
def test_images_of_another_size_raise_an_error(shape: tuple[int, ...], typechecked: bool) -> None:
    if typechecked and len(shape) == 3:
        pytest.skip("the annotation refuses it first")
    with pytest.raises(ShapeError, match=r"expected images \(b, 2, 15, 15\); got"):
        _model()(torch.zeros(shape))


def test_pixel_spread_is_saved_and_restored(tmp_path: Path) -> None:
    save_native(_model(), tmp_path)
    model = load_native(tmp_path)
    assert torch.equal(model.pixels.spread.flatten(), torch.tensor([0.2, 0.4]))


MIXED = dataclasses.replace(CONFIG, attention=(Softmax(), Symmetric(), Symmetric()))


def test_each_layer_uses_its_own_operator() -> None:
    model = VisionTransformer(MIXED, generator=torch.Generator().manual_seed(0)).double().eval()
    modules = [block.attention for block in model.blocks]
    assert [type(module) for module in modules] == [MultiHeadAttention, SymmetricAttention, SymmetricAttention]
    x = torch.randn(3, 7, 22, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    twin = MultiHeadAttention(22, num_heads=2).double()
    state = modules[1].state_dict()
    with torch.no_grad():
        twin.load_state_dict({**state, "query.weight": state["key.weight"], "query.bias": state["key.bias"]})
        error = (modules[1](x) - twin(x)).norm() / twin(x).norm()
        twin.query.weight.mul_(-1)
        control = (modules[1](x) - twin(x)).norm() / twin(x).norm()
    assert error <= tolerance(torch.float64) < control
    assert copy.deepcopy(model).config == MIXED


@pytest.mark.parametrize("operator", [RPC(iterations=2, strength=1.0), ClampedKeys(strength=1.0)])
def test_a_layer_without_queries_passes_its_keys(operator: RPC | ClampedKeys) -> None:
    config = dataclasses.replace(CONFIG, attention=operator)
    attention = VisionTransformer(config, generator=torch.Generator().manual_seed(0)).blocks[0].attention.double()
    x = torch.randn(3, 7, 22, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        k, v = (of(x).unflatten(-1, (2, 11)).transpose(1, 2) for of in (attention.key, attention.value))
        expected = attention.out(operator(k, k, v).transpose(1, 2).flatten(-2))
        control = attention.out(Symmetric()(k, k, v).transpose(1, 2).flatten(-2))
        error, other = ((attention(x) - wanted).norm() / wanted.norm() for wanted in (expected, control))
    assert error <= tolerance(torch.float64) < other


def test_initial_shared_weights_do_not_depend_on_the_attention() -> None:
    plain = _model(3).state_dict()
    symmetric = VisionTransformer(
        dataclasses.replace(CONFIG, attention=Symmetric()), generator=torch.Generator().manual_seed(3)
    ).state_dict()
    queries = {f"blocks.{i}.attention.query.{part}" for i in range(3) for part in ("weight", "bias")}
    assert plain.keys() - symmetric.keys() == queries
    assert symmetric.keys() <= plain.keys()
    assert all(torch.equal(plain[name], weight) for name, weight in symmetric.items())
    assert not torch.equal(plain["head.weight"], _model(4).state_dict()["head.weight"])


@pytest.mark.parametrize("config", [MIXED, dataclasses.replace(CONFIG, attention=Symmetric())])
def test_the_attention_is_saved_and_restored(tmp_path: Path, config: VisionTransformerConfig) -> None:
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(0)).eval()
    save_native(model, tmp_path)
    loaded = load_native(tmp_path).eval()
    assert loaded.config == config
    with torch.no_grad():
        assert torch.equal(loaded(_images()), model(_images()))
    stored = json.loads((tmp_path / "config.json").read_text())["attention"]
    assert stored == (
        [{"operator": "softmax"}, {"operator": "symmetric"}, {"operator": "symmetric"}]
        if config is MIXED
        else {"operator": "symmetric"}
    )


def test_a_folder_without_attention_settings_loads_softmax_attention(tmp_path: Path) -> None:
    save_native(_model(), tmp_path)
    assert "attention" not in json.loads((tmp_path / "config.json").read_text())
    assert load_native(tmp_path).config.layer_attention == (Softmax(),) * 3
    assert dataclasses.replace(CONFIG, attention=(Softmax(),) * 3) == CONFIG


@pytest.mark.parametrize("attention", [(Softmax(), Symmetric()), torch.relu, (Softmax(), Softmax(), "symmetric")])
def test_invalid_attention_settings_raise_an_error(attention: object) -> None:
    message = r"expected named operators as attention \(softmax, symmetric.*\), one .* each of 3; got"
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, attention=attention)

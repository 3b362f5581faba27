"""CRATE: published sizes, outputs, forms, saving, capture, swap and audit."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead import swap
from clearhead._capture import capture
from clearhead.audit.run import audit
from clearhead.loading.model import MARKER, load_model
from clearhead.loading.objects import LoadError
from clearhead.numerics.precision import tolerance
from clearhead.operators.named import ClampedKeys
from clearhead.shapes import ShapeError
from clearhead.stored_json import read_json, write_json
from clearhead_lab.models.crate import CRATE_SIZES, Crate, CrateConfig, Form, crate_config
from clearhead_lab.models.native import draw_baseline, load_native, save_native
from clearhead_lab.models.transformer_block import config_as_json, config_from_json
from lab.tests.models.released_crate import Released, randomised
from tests.interfaces.map_checks import ROLES, assert_found
from tests.noise import largest_difference, weight_tolerance
from tests.operators.paths import PATHS, forced
from tests.swap.models import same, trace

CONFIG = CrateConfig(
    image_size=15, patch_size=3, channels=2, classes=7, width=22, layers=3, heads=2,
    pixel_mean=(0.3, 0.6), pixel_spread=(0.2, 0.4),
)  # fmt: skip


def _model(seed: int = 0, **changes: object) -> Crate:
    config = dataclasses.replace(CONFIG, **changes)
    return Crate(config, generator=torch.Generator().manual_seed(seed)).eval()


def _images(n: int = 5, seed: int = 1) -> Tensor:
    return torch.rand(n, 2, 15, 15, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("size", "parameters"), [("tiny", 6_090_856), ("small", 13_116_328), ("base", 22_796_008), ("large", 77_641_192)]
)
def test_the_published_sizes_have_the_published_numbers_of_parameters(size: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Crate(crate_config(size))
    assert sum(p.numel() for p in model.parameters()) == parameters
    width, blocks = CRATE_SIZES[size]["width"], model.blocks
    assert sum(p.numel() for p in blocks.parameters()) == len(blocks) * (3 * width**2 + 5 * width)


def test_an_unpublished_size_raises_an_error() -> None:
    with pytest.raises(ValueError, match="there is no CRATE size 'huge'; choose from tiny, small, base, large"):
        crate_config("huge")
    assert crate_config("tiny", classes=10, patch_size=8).tokens == 28**2 + 1


def _released_of(model: Crate) -> Released:
    """Return the released formulation with the model's weights."""
    twin = Released(size=15, patch=3, channels=2, classes=7, width=22, depth=3, heads=2)
    pairs = [(model.class_token, twin.cls_token), (model.positions, twin.pos_embedding)]
    pairs += zip(model.embedding.parameters(), twin.to_patch_embedding.parameters(), strict=True)
    for block, (attention, sparse) in zip(model.blocks, twin.transformer.layers, strict=True):
        pairs += zip(block.attention_norm.parameters(), attention.norm.parameters(), strict=True)
        pairs += zip(block.sparse_norm.parameters(), sparse.norm.parameters(), strict=True)
        pairs += [(block.attention.subspaces.weight, attention.fn.qkv.weight)]
        pairs += zip(block.attention.out.parameters(), attention.fn.to_out.parameters(), strict=True)
        pairs += [(block.sparse.dictionary, sparse.fn.weight)]
    pairs += zip([*model.norm.parameters(), *model.head.parameters()], twin.mlp_head.parameters(), strict=True)
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.copy_(ours)
    assert len(pairs) == len(list(twin.parameters())) == len(list(model.parameters()))
    return twin.to(model.positions.dtype).eval()


def _normalised(images: Tensor) -> Tensor:
    mean, spread = (torch.tensor(x, dtype=images.dtype).view(2, 1, 1) for x in ((0.3, 0.6), (0.2, 0.4)))
    return (images - mean) / spread


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_outputs_equal_those_of_the_released_code(path: str, dtype: torch.dtype, within: float) -> None:
    model, images = randomised(_model()).to(dtype), _images().to(dtype)
    if dtype is torch.float64:  # buffers are created in single precision
        model.pixels.mean, model.pixels.spread = (torch.tensor(x, dtype=dtype).view(2, 1, 1) for x in
                                                  (CONFIG.pixel_mean, CONFIG.pixel_spread))  # fmt: skip
    with torch.no_grad(), forced(path):
        want = _released_of(model)(_normalised(images))
        error = (model(images) - want).norm() / want.norm()
        turned = _released_of(model)(_normalised(images.transpose(2, 3)))
    assert error <= within
    assert (turned - want).norm() / want.norm() > 1e-2


def test_the_forms_differ_and_the_papers_default_shrinks_by_half() -> None:
    block_input = torch.randn(2, 7, 22, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tied = randomised(_model(form=Form.TIED)).double().requires_grad_(False)
    outputs = {}
    for form in (Form.TIED, Form.NEGATED, Form.PAPER):
        model = _model(form=form).double().requires_grad_(False)
        model.load_state_dict(tied.state_dict())
        outputs[form] = model.blocks[0]
    block = tied.blocks[0]
    attended = block.attention(block.attention_norm(block_input))
    for form, between in (
        (Form.TIED, block_input + attended),
        (Form.NEGATED, block_input - attended),
        (Form.PAPER, 0.5 * block_input + 0.5 * attended),
    ):
        want = block.sparse(block.sparse_norm(between))
        for other, its in outputs.items():
            error = float((its(block_input) - want).norm() / want.norm())
            assert (error <= tolerance(torch.float64)) is (other is form)
    assert _model().blocks[0].attention.out is not None
    assert all(its.attention.out is None for its in outputs.values())


def test_the_sparse_step_has_no_residual_connection() -> None:
    block, x = randomised(_model()).blocks[0], torch.randn(2, 7, 22, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert block(x).any()
        block.sparse_norm.weight.zero_()
        block.sparse_norm.bias.zero_()
        assert not block(x).any()  # a step from zero stays at zero for any input


def test_alpha_adds_the_decoded_codes_of_an_overcomplete_step() -> None:
    block = randomised(_model(overcomplete=True)).double().blocks[0].requires_grad_(False)
    x = torch.randn(2, 7, 22, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    between = x + block.attention(block.attention_norm(x))
    z, D = block.sparse_norm(between), block.sparse.dictionary
    first = (0.1 * z @ D - 0.01).clamp_min(0)
    second = (first - 0.1 * (first @ D.mT - z) @ D - 0.01).clamp_min(0)
    want = between + second @ block.sparse.decoder.mT
    assert (block(x) - want).norm() / want.norm() <= tolerance(torch.float64)
    assert (block(x) - want + between).norm() / want.norm() > 0.1  # without the residual connection
    assert block.attention.out.bias is None
    assert sum(p.numel() for p in block.parameters()) == 10 * 22**2 + 4 * 22


@pytest.mark.parametrize("overcomplete", [False, True])
def test_every_parameter_gets_a_gradient(overcomplete: bool) -> None:
    model = _model(overcomplete=overcomplete).train()
    model(_images()).logsumexp(dim=1).sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert not silent


def test_model_runs_under_autocast_and_in_inference_mode() -> None:
    model, images = _model(), _images()
    with torch.inference_mode():
        want = model(images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = model(images)
    assert got.dtype is torch.bfloat16
    assert float((got - want).norm() / want.norm()) < 0.1


@pytest.mark.parametrize("form", list(Form))
def test_a_saved_model_is_restored_bit_for_bit(tmp_path: Path, form: Form) -> None:
    model = _model(form=form, penalty=0.2, shrink=0.25, overcomplete=form is Form.NEGATED)
    save_native(model, tmp_path)
    loaded = load_model(str(tmp_path), max_tokens=256)
    assert loaded.model.config == model.config == config_from_json(CrateConfig, config_as_json(model.config))
    with torch.no_grad():
        assert torch.equal(loaded.model(_images()), model(_images()))
        again = loaded.draw_baseline(0)
        assert torch.equal(again(_images()), model(_images()))
        assert not torch.equal(draw_baseline(model, 1)(_images()), model(_images()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({MARKER: ["crate"]}, "which this version cannot load"),
        ({"width": 10**9}, "do not fit its config.json"),
        ({"classes": True}, "classes is True, expected a whole number"),
        ({"step": 10**400}, r"does not describe a crate: (expected step|Type-check)"),
        ({"form": "free"}, "does not describe a crate"),
    ],
    ids=["kind", "width", "flag", "step", "form"],
)
def test_a_hostile_folder_raises_a_clear_error(tmp_path: Path, change: dict[str, object], says: str) -> None:
    save_native(_model(), tmp_path)
    write_json(tmp_path / "config.json", read_json(tmp_path / "config.json") | change)
    with pytest.raises(LoadError, match=says):
        load_native(tmp_path)


def test_a_folder_without_alpha_loads_the_same_model(tmp_path: Path) -> None:
    save_native(_model(), tmp_path)
    stored = read_json(tmp_path / "config.json")
    del stored["overcomplete"]
    write_json(tmp_path / "config.json", stored)
    assert load_native(tmp_path).config == CONFIG


def test_initial_weights_depend_only_on_the_seed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = _model(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = _model(3)
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_every_layer_is_captured_and_the_output_is_unchanged(path: str) -> None:
    model, images = randomised(_model()), _images()
    with torch.no_grad(), forced(path):
        alone = model(images)
        with capture(model) as captured:
            while_capturing = model(images)
    assert torch.equal(alone, while_capturing)
    assert [heads.name for heads in captured.heads] == [f"blocks.{i}.attention" for i in range(3)]
    for heads, block in zip(captured.heads, model.blocks, strict=True):
        assert heads.q.shape == (5, 2, 26, 11)
        for role in ROLES:
            assert_found(heads, role)
        assert torch.equal(heads.values_from.weight, block.attention.bases)
        out = block.attention.out(heads.out.transpose(1, 2).flatten(2))
        assert (out - block.attention(heads.values_from.x)).abs().max() <= tolerance(torch.float32) * out.abs().max()


@pytest.mark.filterwarnings("error::clearhead.SwapWarning")  # there is no W_Q that would become unused
@pytest.mark.parametrize("path", ["kernel", "torch"])
def test_another_operator_can_be_swapped_in_and_removed(path: str) -> None:
    model, images = randomised(_model()), _images()
    with torch.no_grad(), forced(path):
        alone, before = model(images), trace(model)
        with swap(model, "softmax") as done:
            itself = model(images)
        assert [layer.path for layer in done.layers] == [f"blocks.{i}.attention" for i in range(3)]
        with swap(model, ClampedKeys(strength=1.0), layers=[1]) as one:
            other = model(images)
        assert dict(one.calls) == {"blocks.1.attention": 1}
        assert trace(model) == before
        assert same([alone], [model(images)])
        close = weight_tolerance(model, lambda: model(images))
    assert largest_difference(itself, alone) <= close
    assert largest_difference(other, alone) > 1e-2 * float(alone.abs().max())


def test_a_saved_model_can_be_audited(tmp_path: Path) -> None:
    save_native(_model(), tmp_path)
    model = load_model(str(tmp_path), max_tokens=256).model
    record = audit(model, [_images(), _images(seed=2)], theories=["symmetry"])
    assert record.fidelity.output_difference == 0
    assert {(finding.layer, finding.head) for finding in record.findings} == {(i, j) for i in range(3) for j in (0, 1)}
    assert {finding.inputs for finding in record.findings} == {10}


@pytest.mark.parametrize(
    "change",
    [
        {"patch_size": 4}, {"heads": 3}, {"layers": 0}, {"pixel_mean": (0.1,)}, {"pixel_spread": (0.1, 0.0)},
        {"step": 0.0}, {"penalty": -0.1}, {"shrink": 0.0}, {"shrink": 1.1}, {"form": "free"},
    ],
)  # fmt: skip
def test_invalid_sizes_raise_an_error(change: dict[str, object], typechecked: bool) -> None:
    if typechecked and "form" in change:
        pytest.skip("the annotation refuses it first")
    with pytest.raises(ValueError, match="expected"):
        dataclasses.replace(CONFIG, **change)


def test_images_of_another_size_raise_an_error() -> None:
    with pytest.raises(ShapeError, match=r"expected images \(b, 2, 15, 15\); got"):
        _model()(torch.zeros(5, 2, 15, 14))

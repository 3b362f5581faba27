"""The catalogue: sizes as published, multiply-adds as counted, overrides, and the table in the documentation."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clearhead.errors import InputError
from clearhead.operators.named import RPC, ClampedKeys, Scaled, Softmax, Symmetric
from clearhead_lab.models.catalogue import CATALOGUE, build, config_of, measure_size
from clearhead_lab.models.language import LanguageModel
from clearhead_lab.models.native import load_native, save_native
from clearhead_lab.models.segmenter import Segmenter
from tests.once import once

TINY_IMAGE = {"image_size": 16, "patch_size": 4, "width": 12, "heads": 3, "mlp_width": 13, "layers": 3}
TINY_TEXT = {"vocabulary": 53, "context": 11, "width": 12, "heads": 3, "mlp_width": 13, "layers": 5, "cutoffs": (7, 23)}
TINY = {"language": {**TINY_TEXT, "tail_divisor": 2.0}, "deit": TINY_IMAGE, "vit": TINY_IMAGE, "segmenter": TINY_IMAGE}


def _tiny(name: str, **overrides: Any) -> torch.nn.Module:
    settings = {**TINY[name.split("-")[0]], **overrides}
    return build(name, generator=torch.Generator().manual_seed(0), **settings).eval()


def _inputs(model: torch.nn.Module) -> torch.Tensor:
    config = model.config
    if isinstance(model, LanguageModel):
        return torch.zeros(1, config.context, dtype=torch.long)
    return torch.rand(1, config.channels, config.image_size, config.image_size)


@pytest.mark.parametrize(("name", "parameters"), [("tiny", 5_717_416), ("small", 22_050_664), ("base", 86_567_656)])
def test_deit_has_the_parameters_of_timm(name: str, parameters: int) -> None:
    import timm

    with torch.device("meta"):
        theirs = timm.create_model(f"deit_{name}_patch16_224")
    assert sum(p.numel() for p in theirs.parameters()) == parameters
    assert measure_size(f"deit-{name}").parameters == parameters


def test_the_symmetric_deit_tiny_has_the_size_of_the_paper() -> None:
    # 5.2 M in the paper; a layer loses W_Q and its bias.
    expected = 5_717_416 - 12 * (192 * 192 + 192)
    assert {measure_size(f"deit-tiny-{end}").parameters for end in ("symmetric", "rpc", "rpc-all")} == {expected}
    assert expected == 5_272_744


def test_multiply_adds_match_a_formula() -> None:
    n, width = 197, 192
    maps = 196 * 768 * width + 12 * n * (4 * width * width + 2 * width * 768) + width * 1000
    attention = 2 * n * n * width
    assert measure_size("deit-tiny").multiply_adds == maps + 12 * attention
    symmetric = maps - 12 * n * width * width + 12 * attention
    assert measure_size("deit-tiny-symmetric").multiply_adds == symmetric
    assert measure_size("deit-tiny-rpc").multiply_adds == symmetric + 5 * attention
    assert measure_size("deit-tiny-rpc-all").multiply_adds == symmetric + 12 * attention
    tokens, inner = 256, 16 * (4 * 128 * 128 + 2 * 128 * 2048) + 16 * 2 * 256 * 128
    clusters = 20_003 + 20_000 + 160_000 + 67_735 + 3 * 128  # words, a logit for each cluster, and the tails' maps
    assert measure_size("language-paper").multiply_adds == tokens * (inner + 128 * clusters)


@pytest.mark.parametrize("operator", [Softmax(), Symmetric(), ClampedKeys(), RPC(iterations=3), Scaled()])
@pytest.mark.parametrize("name", ["deit-tiny", "segmenter-pets"])
def test_multiply_adds_are_those_of_a_real_forward_pass(name: str, operator: Any) -> None:
    overrides = {"attention": operator}
    model = _tiny(name, **overrides)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(_inputs(model))
    counted = measure_size(name, **{**TINY_IMAGE, **overrides}).multiply_adds
    assert counted == counter.get_total_flops() // 2 > 0


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_model_runs_trains_and_is_saved_at_a_tiny_size(name: str, tmp_path: Path) -> None:
    model = _tiny(name)
    inputs = _inputs(model)
    with torch.no_grad():
        output = model(inputs)
        assert torch.equal(_tiny(name)(inputs), output)
        save_native(model, tmp_path)
        assert torch.equal(load_native(tmp_path).eval()(inputs), output)
    model.train()
    loss = model.loss(inputs, inputs) if isinstance(model, LanguageModel) else model(inputs)
    loss.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_variants_follow_the_number_of_layers() -> None:
    assert config_of("deit-tiny-rpc").layer_attention == (RPC(iterations=6, strength=4.0), *(Symmetric(),) * 11)
    assert config_of("deit-tiny-rpc", layers=2).layer_attention == (RPC(iterations=6, strength=4.0), Symmetric())
    assert config_of("deit-tiny-rpc-all").attention == RPC(iterations=2, strength=3.0)
    text = config_of("language-paper-rpc").layer_attention
    assert text == (*(RPC(iterations=4, strength=4.0),) * 4, *(Symmetric(),) * 12)
    assert config_of("language-paper-rpc", layers=3).attention == RPC(iterations=4, strength=4.0)
    masks = config_of("segmenter-tiny-rpc")
    assert masks.layer_attention[0] == masks.decoder_attention[0] == RPC(iterations=4, strength=4.0)
    assert masks.layer_attention[1] == masks.decoder_attention[1] == Symmetric()
    assert isinstance(_tiny("segmenter-tiny-rpc"), Segmenter)


def test_only_segmenters_of_many_classes_have_the_published_head() -> None:
    heads = {name: (config_of(name).mask_head, config_of(name).classes) for name in CATALOGUE if "segmenter" in name}
    assert {head for head, classes in heads.values() if classes < 10} == {"gain"}
    assert {head for head, classes in heads.values() if classes >= 10} == {"layer-norm"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("symmetric", Symmetric()),
        ({"operator": "rpc", "iterations": 2}, RPC(iterations=2)),
        (["rpc", {"operator": "clamped"}, Symmetric()], (RPC(), ClampedKeys(), Symmetric())),
        (ClampedKeys(strength=1.0), ClampedKeys(strength=1.0)),
    ],
)
def test_attention_can_be_given_as_plain_values(given: Any, expected: Any) -> None:
    assert config_of("deit-tiny", layers=3, attention=given).attention == expected
    assert config_of("segmenter-tiny", decoder_layers=3, decoder_attention=given).decoder_attention == expected
    plain = config_of("segmenter-tiny", decoder_layers=3, decoder_attention=given)
    assert plain.attention == Softmax()


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("deit-tinny", {}, r"there is no model 'deit-tinny' \(did you mean 'deit-tiny'\?\); choose from deit-tiny, "),
        ("deit-tiny", {"layer": 3}, r"deit-tiny has no setting 'layer' \(did you mean 'layers'\?\); it has image_size"),
        ("deit-tiny", {"layers": 0}, "expected layers of at least 1; got 0"),
        ("deit-tiny", {"attention": "magic"}, "expected named operators as attention"),
        ("language-small", {"image_size": 3}, "language-small has no setting 'image_size'"),
    ],
)
def test_unknown_names_and_settings_raise_a_one_line_error(name: str, overrides: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        build(name, **overrides)
    assert "\n" not in str(error.value)


@once
def test_the_documentation_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    lines = ["| model | what it is | parameters | multiply-adds |", "|---|---|---|---|"]
    for name, entry in CATALOGUE.items():
        assert dataclasses.is_dataclass(entry.config)
        size = measure_size(name)
        unit, letter = (1e9, "G") if size.multiply_adds >= 1e9 else (1e6, "M")
        count = f"{size.multiply_adds / unit:,.3g} {letter}"
        lines.append(f"| `{name}` | {entry.meaning} | {size.parameters:,} | {count} |")
    assert "\n".join(lines) in page

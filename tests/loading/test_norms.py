"""The normalisation layers of a model: which modules they are, and their values in another model."""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from clearhead.errors import InputError
from clearhead.loading.norms import has_norms, norm_values, with_norms
from clearhead_lab.models.crate import Crate, CrateConfig
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig


class PreNorm(nn.Module):
    """A norm and a map in one module, as many vision transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(3), nn.Linear(3, 3)


class NormedLinear(nn.Module):
    """A map whose rows are normalised, which is no normalisation of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(3))


def _of_transformers(module: str, name: str) -> nn.Module:
    modelling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    norm: nn.Module = getattr(modelling, name)(3)
    return norm


def _of_timm(name: str) -> nn.Module:
    norm: nn.Module = getattr(pytest.importorskip("timm.layers"), name)(3)
    return norm


STATISTICS = {"weight", "bias", "running_mean", "running_var"}
LAYERS: dict[str, tuple[Any, set[str]]] = {
    "LayerNorm": (lambda: nn.LayerNorm((3, 5)), {"weight", "bias"}),
    "LayerNorm without bias": (lambda: nn.LayerNorm(3, bias=False), {"weight"}),
    "LayerNorm without gain": (lambda: nn.LayerNorm(3, elementwise_affine=False), set()),
    "RMSNorm": (lambda: nn.RMSNorm(3), {"weight"}),
    "GroupNorm": (lambda: nn.GroupNorm(3, 6), {"weight", "bias"}),
    "BatchNorm": (lambda: nn.BatchNorm1d(3), STATISTICS),
    "InstanceNorm": (lambda: nn.InstanceNorm1d(3, affine=True), {"weight", "bias"}),
    "Llama": (lambda: _of_transformers("llama", "LlamaRMSNorm"), {"weight"}),
    "T5": (lambda: _of_transformers("t5", "T5LayerNorm"), {"weight"}),
    "MobileBERT": (lambda: _of_transformers("mobilebert", "NoNorm"), {"weight", "bias"}),
    "timm RMS": (lambda: _of_timm("RmsNorm"), {"weight"}),
    "timm 2d": (lambda: _of_timm("LayerNorm2d"), {"weight", "bias"}),
    "timm frozen": (lambda: _of_timm("FrozenBatchNormAct2d"), STATISTICS),
    "inside": (PreNorm, {"norm.weight", "norm.bias"}),
    "normed map": (NormedLinear, set()),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), set()),
    "attention": (lambda: nn.MultiheadAttention(6, 2), set()),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 5),
        {f"norm{i}.{key}" for i in (1, 2) for key in ("weight", "bias")},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_found_by_class_and_their_values_by_name(name: str) -> None:
    make, expected = LAYERS[name]
    module = make()
    values = norm_values(module)
    assert values.keys() == expected
    state = module.state_dict(keep_vars=True)
    assert all(value is state[key] for key, value in values.items())


def test_own_models_have_all_their_norms() -> None:
    image = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3}
    vit = VisionTransformer(VisionTransformerConfig(**image, width=12, layers=2, heads=3, mlp_width=7))
    crate = Crate(CrateConfig(**image, width=12, layers=2, heads=3))
    for model, ends in (
        (vit, {"norm", "attention_norm", "mlp_norm"}),
        (crate, {"norm", "attention_norm", "sparse_norm"}),
    ):
        layers = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
        assert {name.rpartition(".")[0] for name in norm_values(model)} == layers
        assert ends <= {name.rpartition(".")[2] for name in layers}


def _pair() -> tuple[nn.Module, nn.Module]:
    """Return two models with a layer norm and a batch norm: a trained one and a fresh one."""
    torch.manual_seed(0)
    trained, fresh = (nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.BatchNorm1d(5)) for _ in range(2))
    with torch.no_grad():
        for value in norm_values(trained).values():
            value.normal_().abs_()
    return trained.eval(), fresh.eval()


def test_a_model_has_the_norms_inside_the_block_only() -> None:
    trained, fresh = _pair()
    values, before = norm_values(trained), {name: x.clone() for name, x in fresh.state_dict().items()}
    assert has_norms(trained, values)
    assert not has_norms(fresh, values)
    with contextlib.suppress(ZeroDivisionError), with_norms(fresh, values):
        assert has_norms(fresh, values)
        changed = {name for name, x in fresh.state_dict().items() if not torch.equal(x, before[name])}
        assert changed == set(values)
        raise ZeroDivisionError
    assert all(torch.equal(x, before[name]) for name, x in fresh.state_dict().items())
    assert all(parameter.requires_grad for parameter in fresh.parameters())


def test_norms_are_converted_to_the_models_dtype() -> None:
    trained, fresh = _pair()
    fresh = fresh.double()
    with with_norms(fresh, norm_values(trained)):
        assert fresh[1].weight.dtype == torch.float64
        assert torch.equal(fresh[1].weight, trained[1].weight.double())
        assert has_norms(fresh, norm_values(trained))


def test_models_made_for_inference_can_get_norms() -> None:
    trained, _ = _pair()
    with torch.inference_mode():
        fresh = _pair()[1]
    with with_norms(fresh, norm_values(trained)):
        assert has_norms(fresh, norm_values(trained))
    assert not has_norms(fresh, norm_values(trained))


def test_a_model_of_another_architecture_raises_an_error() -> None:
    trained, _ = _pair()
    for other in (nn.Sequential(nn.Linear(3, 5)), nn.Sequential(nn.Linear(3, 7), nn.LayerNorm(7), nn.BatchNorm1d(7))):
        with pytest.raises(InputError, match=r"has no normalisation 1.weight of shape \(5,\), .*same architecture"):
            has_norms(other, norm_values(trained))


def test_a_model_without_norms_has_the_norms_of_any_such_model() -> None:
    assert has_norms(nn.Linear(2, 3), norm_values(nn.Linear(2, 3)))

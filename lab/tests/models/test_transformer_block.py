"""The transformer block: drop path, dropout, and what they leave unchanged."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clearhead.operators.named import Softmax
from clearhead_lab.models.native import load_native, save_native
from clearhead_lab.models.transformer_block import DropPath, TransformerBlock, config_as_json, drop_path_rates
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig

CONFIG = VisionTransformerConfig(
    image_size=15, patch_size=3, channels=2, classes=7, width=22, layers=5, heads=2, mlp_width=13, drop_path=0.2
)


def _model(**changes: object) -> VisionTransformer:
    return VisionTransformer(dataclasses.replace(CONFIG, **changes), generator=torch.Generator().manual_seed(0))


def _images(n: int = 3) -> Tensor:
    return torch.rand(n, 2, 15, 15, generator=torch.Generator().manual_seed(1))


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    rate, samples = 0.3, 20_000
    dropped = DropPath(rate)(torch.ones(samples, 3, 2))
    assert torch.equal(dropped, dropped[:, :1, :1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
    # A binomial count: five standard deviations.
    deviation = (rate * (1 - rate) * samples) ** 0.5
    assert abs(float((dropped[:, 0, 0] == 0).sum()) - rate * samples) <= 5 * deviation


def test_rates_increase_linearly_from_zero() -> None:
    assert drop_path_rates(0.2, 5) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert drop_path_rates(0.2, 1) == [0]
    rates = [module.rate for module in _model().modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_torchs_default_generator_draws_and_only_in_training() -> None:
    model, images = _model(drop_path=0.9).train(), _images()
    outputs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outputs.append(model(images))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    plain = _model(drop_path=0.0)
    state = torch.get_rng_state()
    assert torch.equal(model.eval()(images), plain.train()(images))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_dropped_branch_leaves_the_residual_stream() -> None:
    block = TransformerBlock(22, 2, 13, operator=Softmax(), drop_path=0.5).train()
    x = torch.randn(64, 5, 22, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    unchanged = (block(x) == x).flatten(1).all(dim=1)
    # Both branches are dropped with probability 1/4.
    assert 4 <= int(unchanged.sum()) <= 32


def test_dropout_is_applied_to_the_hidden_layer_and_both_branches() -> None:
    block = TransformerBlock(22, 2, 13, operator=Softmax(), dropout=0.5).train()
    seen: dict[str, Tensor] = {}
    for name, module in block.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda *call, name=name: seen.setdefault(name, call[2]))
    branches: list[Tensor] = []
    block.drop.register_forward_hook(lambda *call: branches.append(call[2]))
    x = torch.randn(3, 5, 22, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    block(x)
    assert {name: tuple(output.shape) for name, output in seen.items()} == {"mlp.1.1": (3, 5, 13), "drop.0": (3, 5, 22)}
    assert len(branches) == 2
    for output in (*seen.values(), *branches):
        assert 0.25 < float((output == 0).double().mean()) < 0.75


def test_drop_path_is_saved_and_changes_no_weight(tmp_path: Path) -> None:
    model = _model()
    save_native(model, tmp_path)
    assert load_native(tmp_path).config == CONFIG
    assert "drop_path" not in config_as_json(dataclasses.replace(CONFIG, drop_path=0.0))
    plain = _model(drop_path=0.0).state_dict()
    assert plain.keys() == model.state_dict().keys()
    assert all(torch.equal(plain[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_an_invalid_rate_raises_an_error(rate: float) -> None:
    with pytest.raises(ValueError, match="expected drop_path from 0 to below 1; got"):
        dataclasses.replace(CONFIG, drop_path=rate)

"""The stem of convolutions, and the tokens of a vision transformer."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.numerics.precision import tolerance
from clearhead_lab.models.native import draw_baseline, load_native, save_native
from clearhead_lab.models.vit import ConvolutionStem, VisionTransformer, VisionTransformerConfig
from tests.noise import largest_difference, weight_tolerance

CONFIG = VisionTransformerConfig(
    image_size=24, patch_size=8, channels=2, classes=7, width=22, layers=3, heads=2, mlp_width=13, stem="convolution"
)


def _model(**changes: object) -> VisionTransformer:
    config = dataclasses.replace(CONFIG, **changes)
    return VisionTransformer(config, generator=torch.Generator().manual_seed(0)).eval()


def _images(n: int = 5) -> Tensor:
    return torch.rand(n, 2, 24, 24, generator=torch.Generator().manual_seed(1))


def test_convolutions_halve_the_image_down_to_one_position_per_patch() -> None:
    stem = ConvolutionStem(2, 22, 8)
    shapes = [tuple(module.weight.shape) for module in stem if isinstance(module, nn.Conv2d)]
    assert shapes == [(5, 2, 3, 3), (11, 5, 3, 3), (22, 11, 3, 3), (22, 22, 1, 1)]
    assert stem(_images()).shape == (5, 9, 22)


def test_outputs_match_the_definition() -> None:
    model, images = _model().double(), _images().double()
    with torch.no_grad():
        x = (images - 0.5) / 0.5
        for convolution, norm, activation in zip(*[iter(list(model.patches)[:-1])] * 3, strict=True):
            x = activation(norm(convolution(x)))
        grid = model.patches[-1](x)
        x = torch.stack([grid[:, :, row, column] for row in range(3) for column in range(3)], dim=1)
        x = torch.cat([model.class_token.expand(5, -1, -1), x], dim=1) + model.positions
        for block in model.blocks:
            x = block(x)
        expected = model.norm(x)
        error = (model.tokens(images) - expected).norm() / expected.norm()
        logits = model.head(expected[:, 0])
        assert error <= tolerance(torch.float64)
        assert (model(images) - logits).norm() / logits.norm() <= tolerance(torch.float64)


def test_an_image_does_not_depend_on_the_others_of_its_batch() -> None:
    model, images = _model().train(), _images()
    with torch.no_grad():
        together, alone = model(images)[:2], model(images[:2])
        assert largest_difference(together, alone) <= weight_tolerance(model, lambda: model(images[:2]))
        model.patches[1] = nn.BatchNorm2d(5)
        control = model(images)[:2] - model(images[:2])
    assert float(control.abs().max()) > 1e-4


def test_common_weights_are_those_of_the_linear_stem() -> None:
    convolutions, linear = _model().state_dict(), _model(stem="patch").state_dict()
    common = convolutions.keys() & linear.keys()
    assert {name for name in convolutions.keys() ^ linear.keys() if not name.startswith("patches.")} == set()
    assert len(common) > 30
    assert all(torch.equal(convolutions[name], linear[name]) for name in common)


def test_weights_depend_only_on_the_seed_and_are_restored(tmp_path: Path) -> None:
    model, images = _model(), _images()
    save_native(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(load_native(tmp_path).eval()(images), model(images))
        assert torch.equal(draw_baseline(model, 0)(images), model(images))
        assert not torch.equal(draw_baseline(model, 1).patches[0].weight, model.patches[0].weight)


def test_every_parameter_gets_a_gradient_and_every_layer_is_captured() -> None:
    model = _model().train()
    with capture(model) as captured:
        model(_images()).logsumexp(dim=1).sum().backward()
    assert len(captured.heads) == 3
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert silent <= {f"blocks.{i}.attention.key.bias" for i in range(3)}  # it has no effect in softmax


def test_an_unknown_stem_or_patch_size_raises_an_error() -> None:
    with pytest.raises(ValueError, match='expected stem "patch" or "convolution"; got \'pool\''):
        dataclasses.replace(CONFIG, stem="pool")
    with pytest.raises(ValueError, match=r"expected a patch_size that is a power of 2 .*; got 12"):
        dataclasses.replace(CONFIG, patch_size=12)

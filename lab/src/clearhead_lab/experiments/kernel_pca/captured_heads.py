"""The attention heads of a vision transformer on images, and their values under random value maps."""

import torch
from torch import Tensor, nn

from clearhead._capture.recording import capture
from clearhead.heads import Heads
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.controls import RandomMaps
from clearhead_lab.training.evaluation import evaluating


def capture_layers(model: nn.Module, images: Float[Tensor, "b c y x"]) -> list[Heads]:
    """Return the heads of every layer. The model runs in evaluation mode and gets its mode back."""
    with evaluating(model) as device, capture(model) as captured:
        model(images.to(device))
    return captured.heads


def random_map_values(heads: Heads, *, draws: int, seed: int) -> Float[Tensor, "t b h m e"]:
    """Return the layer's values under random value maps that have the singular values of its own."""
    assert heads.values_from is not None  # Clearhead's own modules have linear values
    maps = RandomMaps.draw(heads.values_from, draws=draws, seed=seed, layer=heads.layer)
    inputs = [maps.at(x, slice(None)) for x in heads.values_from.x]
    count = heads.v.shape[1]
    return torch.stack([torch.stack([x.of_head(head).mT for head in range(count)], dim=1) for x in inputs], dim=1)

r"""CRATE, the white-box transformer (Yu et al. 2023, arXiv 2306.01129; 2024, arXiv 2311.13110), for images.

A layer compresses the tokens by subspace attention and then makes them sparse by one step of sparse coding:

    Z <- Z + MSSA(LN(Z)),        Z <- ISTA(LN(Z)),

as in the released code. The derivation has (1 - t) Z + t MSSA(Z) with the output map tied to the subspaces and no
norms; `Form` lists the variants. The second step has no residual connection. CRATE-alpha (Yang et al. 2024) is
`CrateConfig(overcomplete=True)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Float
from clearhead_lab.models.crate_block import CrateBlock, Form, ImageBlockConfig, initialised_by, read_image_config
from clearhead_lab.models.image_sizes import PixelNorm, check_sizes, patches

__all__ = ["CRATE_SIZES", "Crate", "CrateBlock", "CrateConfig", "Form", "crate_config", "crate_from_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateConfig(ImageBlockConfig):
    """Settings of a CRATE: those of its blocks and images, and the number of classes."""

    classes: int

    def __post_init__(self) -> None:
        ImageBlockConfig.__post_init__(self)
        check_sizes(classes=self.classes)


def crate_from_json(stored: Mapping[str, Any]) -> CrateConfig:
    """Return the settings that `CrateConfig.as_json` wrote. Raise ValueError or TypeError for anything else."""
    return CrateConfig(**read_image_config(stored))


CRATE_SIZES = {
    "tiny": {"width": 384, "layers": 12, "heads": 6},
    "small": {"width": 576, "layers": 12, "heads": 12},
    "base": {"width": 768, "layers": 12, "heads": 12},
    "large": {"width": 1024, "layers": 24, "heads": 16},
}
"""Published sizes, for 224 x 224 pixels in patches of 16 and 1,000 classes."""


def crate_config(size: str, **settings: Any) -> CrateConfig:
    """Return the settings of a published size (tiny, small, base or large), changed by `settings`."""
    if size not in CRATE_SIZES:
        raise InputError(f"there is no CRATE size {size!r}; choose from {', '.join(CRATE_SIZES)}")
    published = {"image_size": 224, "patch_size": 16, "channels": 3, "classes": 1000, **CRATE_SIZES[size]}
    return CrateConfig(**{**published, **settings})


class Crate(nn.Module):
    """A classifier of images by compression and sparse coding of their patches.

    Tokens are [class token; LN(linear(LN(patch)))] + positions; class token and positions are drawn from N(0, 1). The
    logits are a linear map of the normalised class token. Maps have torch's default initialisation, drawn from the
    generator, and a patch lists the channels of each pixel together, both as in the released code.
    """

    def __init__(self, config: CrateConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        pixels = config.channels * config.patch_size**2
        with initialised_by(generator):
            self.pixels = PixelNorm(config.pixel_mean, config.pixel_spread, size=config.image_size)
            self.embedding = nn.Sequential(
                nn.LayerNorm(pixels), nn.Linear(pixels, config.width), nn.LayerNorm(config.width)
            )
            self.class_token = nn.Parameter(torch.randn(1, 1, config.width))
            self.positions = nn.Parameter(torch.randn(1, config.tokens, config.width))
            self.blocks = nn.ModuleList(CrateBlock(config) for _ in range(config.layers))
            self.norm = nn.LayerNorm(config.width)
            self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        """Return logits (b, classes). images: (b, channels, image_size, image_size), from 0 to 1."""
        cut = patches(self.pixels(images), self.config.patch_size)
        x = self.embedding(cut.permute(0, 1, 3, 4, 2).flatten(2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits

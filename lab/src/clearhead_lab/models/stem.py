"""A stem of convolutions in place of the linear map of patches (Xiao et al. 2021, arXiv 2106.14881).

The source has batch norms. Here every image is normalised by itself, so that outputs do not depend on the other images
of a batch, nor on how processes share one.
"""

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Float

__all__ = ["ConvolutionStem", "check_stem"]


def check_stem(stem: object, patch_size: int) -> None:
    """Raise InputError unless the stem is known and fits the patch size."""
    if stem not in ("patch", "convolution"):
        raise InputError(f'expected stem "patch" or "convolution"; got {stem!r}')
    if stem == "convolution" and (patch_size < 2 or patch_size & (patch_size - 1)):
        raise InputError(
            f"expected a patch_size that is a power of 2 for a stem of convolutions, which halve the image; "
            f"got {patch_size}"
        )


class ConvolutionStem(nn.Sequential):
    """Convolutions (3 x 3, stride 2, norm, ReLU) down to one position per patch, and a 1 x 1 convolution to the width.

    The last of them has `width` channels, and each before it half as many.
    """

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        halvings = patch_size.bit_length() - 1
        layers: list[nn.Module] = []
        for remaining in reversed(range(halvings)):
            wider = max(width >> remaining, 1)
            layers += [
                nn.Conv2d(channels, wider, kernel_size=3, stride=2, padding=1, bias=False),
                nn.GroupNorm(1, wider),
                nn.ReLU(),
            ]
            channels = wider
        super().__init__(*layers, nn.Conv2d(channels, width, kernel_size=1))

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        """Return the tokens of the patches, (b, n, width), row by row."""
        for layer in self:
            images = layer(images)
        return images.flatten(2).mT

    def initialise(self, generator: torch.Generator | None) -> None:
        """Initialise convolutions as He et al. (2015), the last as Glorot and Bengio (2010), and its bias with zero."""
        *convolutions, last = (module for module in self if isinstance(module, nn.Conv2d))
        for convolution in convolutions:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu", generator=generator)
        nn.init.xavier_uniform_(last.weight, generator=generator)
        assert last.bias is not None
        nn.init.zeros_(last.bias)

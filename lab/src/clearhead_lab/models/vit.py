"""A plain vision transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), small enough to train on one core.

Blocks are pre-norm as in that paper and use Clearhead's attention modules. There is no dropout; branches can be dropped
for whole images (`drop_path`), as in DeiT. Pixels are normalised inside the model, so images have values from 0 to 1
everywhere else.

The stem of convolutions in place of the linear map of patches is that of Xiao et al. 2021 (arXiv 2106.14881), which has
batch norms. Here every image is normalised by itself, so that outputs do not depend on the other images of a batch, nor
on how processes share one.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Float
from clearhead_lab.models.image_sizes import PixelNorm, check_divides, check_images, check_sizes, patches
from clearhead_lab.models.transformer_block import (
    SOFTMAX,
    TransformerBlock,
    check_rate,
    drop_path_rates,
    initialise_maps,
    per_layer,
    resolve_attention,
)


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


INITIAL_DEVIATION = 0.02
"""Standard deviation of the initial class token and positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTransformerConfig:
    """Settings of a vision transformer.

    image_size: height and width of an image; must be a multiple of patch_size
    channels, classes: number of image channels and of classes
    width: size of a token; must be a multiple of heads
    mlp_width: size of the MLP's hidden layer
    pixel_mean, pixel_spread: per channel, mean that is subtracted and standard deviation that is divided by
    attention: an operator of `OPERATORS`, or a tuple with one per layer
    drop_path: probability of dropping a branch of the last layer for an image in training; it increases linearly from 0
        in the first layer
    stem: "patch" for a linear map of the patches, "convolution" for a stem of convolutions
    norm_eps: added to the variance in norms
    """

    LEFT_OUT: ClassVar = ("attention", "drop_path", "stem", "norm_eps")

    image_size: int
    patch_size: int
    channels: int
    classes: int
    width: int = 128
    layers: int = 6
    heads: int = 8
    mlp_width: int = 256
    pixel_mean: tuple[float, ...] = ()
    pixel_spread: tuple[float, ...] = ()
    attention: Any = SOFTMAX
    drop_path: float = 0.0
    stem: str = "patch"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_images(self)
        check_sizes(**{name: getattr(self, name) for name in ("classes", "width", "layers", "heads", "mlp_width")})
        check_divides(whole="width", part="heads", sizes=(self.width, self.heads))
        check_rate("drop_path", self.drop_path)
        check_stem(self.stem, self.patch_size)
        if not 0 < self.norm_eps < 1:
            raise InputError(f"expected norm_eps between 0 and 1; got {self.norm_eps!r}")
        object.__setattr__(self, "attention", resolve_attention(self.attention, self.layers))

    @property
    def layer_attention(self) -> tuple[Any, ...]:
        """Return the operator of every layer."""
        return per_layer(self.attention, self.layers)

    @property
    def tokens(self) -> int:
        """Return the number of tokens of an image: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


class VisionTransformer(nn.Module):
    r"""A classifier of images by attention over their patches.

    .. math::
        x \leftarrow x + A(\mathrm{LN}(x)), \qquad x \leftarrow x + W_2\, \mathrm{GELU}(W_1 \mathrm{LN}(x))

    over tokens x = [class token; linear maps of the patches] + positions, `layers` times. The logits are a linear map
    of the normalised class token. Equal generator states give equal initial weights whatever the attention: all
    parameters that two models have in common are equal.
    """

    def __init__(self, config: VisionTransformerConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.pixels = PixelNorm(config.pixel_mean, config.pixel_spread, size=config.image_size)
        self.patches: nn.Linear | ConvolutionStem
        if config.stem == "convolution":
            self.patches = ConvolutionStem(config.channels, config.width, config.patch_size)
        else:
            self.patches = nn.Linear(config.channels * config.patch_size**2, config.width)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.positions = nn.Parameter(torch.empty(1, config.tokens, config.width))
        rates = drop_path_rates(config.drop_path, config.layers)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                config.width,
                config.heads,
                config.mlp_width,
                operator=operator,
                drop_path=rate,
                norm_eps=config.norm_eps,
            )
            for operator, rate in zip(config.layer_attention, rates, strict=True)
        )
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.classes)
        self._initialise(generator)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        """Return logits (b, classes). images: (b, channels, image_size, image_size), from 0 to 1."""
        logits: Tensor = self.head(self.norm(self._encode(images)[:, 0]))
        return logits

    def tokens(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        """Return the normalised tokens (b, n, width): the class token, and the patches row by row."""
        tokens: Tensor = self.norm(self._encode(images))
        return tokens

    def _encode(self, images: Tensor) -> Tensor:
        """Return the tokens after the last block."""
        x = self.pixels(images)
        if isinstance(self.patches, nn.Linear):
            x = patches(x, self.config.patch_size).flatten(2)
        x = self.patches(x)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return tokens

    def _initialise(self, generator: torch.Generator | None) -> None:
        """Initialise maps as `initialise_maps`; class token, positions and head are small.

        A stem of convolutions is drawn last, after the map of patches that it replaces.
        """
        config, stem = self.config, self.patches
        if isinstance(stem, ConvolutionStem):
            replaced = torch.empty(config.width, config.channels * config.patch_size**2)
            nn.init.xavier_uniform_(replaced, generator=generator)
        initialise_maps(self, generator)
        small = partial(nn.init.trunc_normal_, std=INITIAL_DEVIATION, generator=generator)
        for parameter in (self.class_token, self.positions, self.head.weight):
            small(parameter)
        if isinstance(stem, ConvolutionStem):
            stem.initialise(generator)

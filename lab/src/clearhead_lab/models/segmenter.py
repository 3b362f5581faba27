"""Segmenter (Strudel et al. 2021, arXiv 2105.05633): a vision transformer and a decoder of masks.

The decoder is the paper's mask transformer: one embedding per class attends together with the patches, and a class's
mask is the scalar product of its embedding with every patch. Encoder and decoder have any named operator in each layer.
The decoder has the width, heads and MLP of the encoder, as in the paper.

The paper's decoder ends in a layer norm over classes. That is sound at the 150 classes of ADE20K: a norm removes two of
150 directions of a patch's products, their mean and their length, and passes the gradient of the others. Two numbers
have no other direction. Their norm is the sign of half their difference d, with the slope eps / (d^2 + eps)^(3/2): 316
where they are equal, 0.01 at d = 0.1, so that a patch on the wrong side stays there. The default head therefore has a
gain and a bias for each class and no norm; models for ADE20K have the published one.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from clearhead.errors import InputError
from clearhead.shapes import Float
from clearhead_lab.models.image_sizes import check_sizes
from clearhead_lab.models.transformer_block import (
    SOFTMAX,
    TransformerBlock,
    drop_path_rates,
    initialise_maps,
    per_layer,
    resolve_attention,
)
from clearhead_lab.models.vit import (
    INITIAL_DEVIATION,
    VisionTransformer,
    VisionTransformerConfig,
)

MASK_HEADS = ("gain", "layer-norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterConfig(VisionTransformerConfig):
    """Settings of a Segmenter: those of its encoder, with `classes` the number of mask classes, and of its decoder.

    decoder_layers: number of blocks of the decoder
    decoder_attention: an operator of `OPERATORS`, or a tuple with one per decoder layer
    mask_head: what makes logits of the products of patches and classes: "gain" for a gain and a bias for each class,
        "layer-norm" for the published norm over classes, which needs many of them
    """

    OLDER: ClassVar = {"mask_head": "layer-norm"}
    """The published head was the only one at first."""

    decoder_layers: int = 2
    decoder_attention: Any = SOFTMAX
    mask_head: str = "gain"

    def __post_init__(self) -> None:
        VisionTransformerConfig.__post_init__(self)  # super() fails in dataclasses with slots
        check_sizes(decoder_layers=self.decoder_layers)
        if self.classes < 2:
            raise InputError(f"expected at least 2 classes, whose masks are compared; got {self.classes}")
        if self.mask_head not in MASK_HEADS:
            raise InputError(f"expected mask_head among {', '.join(MASK_HEADS)}; got {self.mask_head!r}")
        resolved = resolve_attention(self.decoder_attention, self.decoder_layers, name="decoder_attention")
        object.__setattr__(self, "decoder_attention", resolved)


class Segmenter(nn.Module):
    """A model that gives every pixel of an image a logit for each class.

    `encoder` is a `VisionTransformer` without its head. Equal generator states give it the initial weights of the
    classifier, whatever the attention.
    """

    def __init__(self, config: SegmenterConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionTransformer(config, generator=generator)
        del self.encoder.head  # a parameter that nothing uses fails distributed training
        self.decoder = MaskDecoder(config)
        self.decoder.initialise(generator)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes y x"]:
        """Return logits (b, classes, image_size, image_size). images: (b, channels, image_size, image_size), 0 to 1.

        They are interpolated bilinearly between the centres of patches.
        """
        patches = self.encoder.tokens(images)[:, 1:]
        masks = self.decoder(patches)
        side = self.config.image_size // self.config.patch_size
        grid = masks.mT.unflatten(2, (side, side))
        return interpolate(grid, size=tuple(images.shape[-2:]), mode="bilinear", align_corners=False)


class ClassGain(nn.Module):
    r"""A gain and a bias for each class: M_{nk} = g_k S_{nk} + b_k.

    Products S of unit rows have a standard deviation of 1 / sqrt(width) where rows are random, so gains begin at
    sqrt(width): logits then begin with a standard deviation near 1, as those of a norm.
    """

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((classes,), width**0.5))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, products: Float[Tensor, "b n classes"]) -> Float[Tensor, "b n classes"]:
        """Return the logits of products of patches and classes."""
        return products * self.weight + self.bias


class MaskDecoder(nn.Module):
    r"""The mask transformer: a logit for each patch and class.

    .. math:: M = h\big(\hat P \hat C^T\big), \qquad \hat P = P W_P / |P W_P|, \quad \hat C = C W_C / |C W_C|

    where [P; C] are the tokens of patches and classes after the blocks, rows are normalised, and h is the head: a gain
    and a bias for each class, or a layer norm over classes.
    """

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__()
        width = config.width
        self.projection = nn.Linear(width, width)
        self.classes = nn.Parameter(torch.empty(1, config.classes, width))
        operators = per_layer(config.decoder_attention, config.decoder_layers)
        rates = drop_path_rates(config.drop_path, config.decoder_layers)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                width, config.heads, config.mlp_width, operator=operator, drop_path=rate, norm_eps=config.norm_eps
            )
            for operator, rate in zip(operators, rates, strict=True)
        )
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.patch_map = nn.Linear(width, width, bias=False)
        self.class_map = nn.Linear(width, width, bias=False)
        self.mask_norm: nn.Module  # the name that the weights of stored models have
        if config.mask_head == "layer-norm":
            self.mask_norm = nn.LayerNorm(config.classes)
        else:
            self.mask_norm = ClassGain(config.classes, width)

    def forward(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n classes"]:
        """Return the logits of patches (b, n, width)."""
        x = torch.cat([self.projection(patches), self.classes.expand(len(patches), -1, -1)], dim=1)
        for block in self.blocks:
            x = block(x)
        decoded, classes = self.norm(x).split([patches.shape[1], self.classes.shape[1]], dim=1)
        masks: Tensor = normalize(self.patch_map(decoded), dim=-1) @ normalize(self.class_map(classes), dim=-1).mT
        logits: Tensor = self.mask_norm(masks)
        return logits

    def initialise(self, generator: torch.Generator | None) -> None:
        """Initialise maps as `initialise_maps`; the embeddings of classes are small."""
        initialise_maps(self, generator)
        nn.init.trunc_normal_(self.classes, std=INITIAL_DEVIATION, generator=generator)

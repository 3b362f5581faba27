r"""CRATE-MAE, a masked autoencoder of CRATE blocks (Pai et al. 2024, arXiv 2404.02446; code of CRATE, model/crate_ae).

Masked patches are predicted from the others. Mask tokens enter the encoder, which therefore has all positions of the
image. A layer of the decoder reverses one of the encoder,

    Y = D LN(X),        X <- Y - MSSA(LN(Y)),

with a linear map in place of the sparse coding step. Positions are fixed sines and cosines, added once before the
encoder. The released code also has a map between encoder and decoder and a second table of positions, neither of which
is used; its 25.4 M (small) and 44.6 M (base) parameters include them and both tables.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Bool, Float, ShapeError
from clearhead_lab.models.crate import (
    BlockConfig,
    CrateBlock,
    ImageBlockConfig,
    initialised_by,
    subspace_attention,
)
from clearhead_lab.models.image_sizes import PixelNorm, check_divides, check_sizes, patches

TOKEN_DEVIATION = 0.02
NORM_EPSILON = 1e-6
"""Epsilon of the norms after encoder and decoder, as released; norms inside blocks have torch's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateAutoencoderConfig(ImageBlockConfig):
    """Settings of a CRATE-MAE: those of its blocks and images, and `decoder_layers` (0 means equal to `layers`).

    penalty: lambda of the encoder, 0.5 as released
    """

    penalty: float = 0.5
    decoder_layers: int = 0

    def __post_init__(self) -> None:
        ImageBlockConfig.__post_init__(self)
        if self.decoder_layers == 0:
            object.__setattr__(self, "decoder_layers", self.layers)
        check_sizes(decoder_layers=self.decoder_layers)
        check_divides(whole="width", part="4", sizes=(self.width, 4))  # a sine and a cosine for each of two axes


def random_mask(
    batch: int, patch_count: int, *, share: float = 0.75, generator: torch.Generator | None = None
) -> Bool[Tensor, "b n"]:
    """Return a mask (batch, patch_count), True at masked patches: the same number in every image, never all of them."""
    if not 0 < share < 1:
        raise InputError(f"expected a share between 0 and 1; got {share}")
    visible = max(1, int(patch_count * (1 - share)))
    order = torch.rand(batch, patch_count, generator=generator).argsort(dim=1)
    return torch.ones(batch, patch_count, dtype=torch.bool).scatter(1, order[:, :visible], False)


def sinusoidal_positions(side: int, width: int) -> Float[Tensor, "n d"]:
    """Return (side^2 + 1, width): zeros for the class token, then sines and cosines of row, column (He et al. 2022)."""
    frequencies = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * frequencies
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)
    grid = torch.cat([columns, rows], dim=-1).flatten(0, 1)
    return torch.cat([grid.new_zeros(1, width), grid]).to(torch.get_default_dtype())


class CrateAutoencoder(nn.Module):
    """A masked autoencoder: predicts the pixels of masked patches from the visible ones."""

    positions: Tensor

    def __init__(self, config: CrateAutoencoderConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        pixels, width = config.channels * config.patch_size**2, config.width
        with initialised_by(generator):
            self.pixels = PixelNorm(config.pixel_mean, config.pixel_spread, size=config.image_size)
            self.embedding = nn.Linear(pixels, width)
            self.class_token = nn.Parameter(TOKEN_DEVIATION * torch.randn(1, 1, width))
            self.mask_token = nn.Parameter(TOKEN_DEVIATION * torch.randn(1, 1, width))
            self.register_buffer(
                "positions", sinusoidal_positions(config.image_size // config.patch_size, width), persistent=False
            )
            self.blocks = nn.ModuleList(CrateBlock(config) for _ in range(config.layers))
            self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)
            self.decoder = nn.ModuleList(_DecoderBlock(config) for _ in range(config.decoder_layers))
            self.decoder_norm = nn.LayerNorm(width, eps=NORM_EPSILON)
            self.head = nn.Linear(width, pixels)
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def forward(
        self, images: Float[Tensor, "b c y x"], masked: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n pixels"]:
        """Return a prediction of `targets`. masked: (b, patches), True at masked patches; None masks none."""
        x = self.decoder_norm(_apply_all(self.decoder, self.encode(images, masked)))
        prediction: Tensor = self.head(x[:, 1:])
        return prediction

    def encode(
        self, images: Float[Tensor, "b c y x"], masked: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b m d"]:
        """Return the encoded class token and patches, (b, patches + 1, width)."""
        x = self.embedding(self.targets(images))
        if masked is not None:
            if masked.shape != x.shape[:2]:
                raise ShapeError(f"expected masked {tuple(x.shape[:2])}; got masked {tuple(masked.shape)}")
            x = torch.where(masked.unsqueeze(-1), self.mask_token, x)
        x = torch.cat([self.class_token.expand(len(x), -1, -1).to(x.dtype), x], dim=1) + self.positions
        encoded: Tensor = self.norm(_apply_all(self.blocks, x))
        return encoded

    def targets(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n pixels"]:
        """Return the normalised pixels of every patch. images: (b, channels, image_size, image_size), from 0 to 1."""
        return patches(self.pixels(images), self.config.patch_size).flatten(2)

    def loss(self, images: Float[Tensor, "b c y x"], masked: Bool[Tensor, "b n"]) -> Float[Tensor, ""]:
        """Return the mean squared error of the prediction over masked patches."""
        if not masked.any():
            raise InputError("expected masked patches to predict; masked is False everywhere")
        error: Tensor = (self(images, masked) - self.targets(images)).square().mean(dim=-1)
        return error[masked].mean()


class _DecoderBlock(nn.Module):
    """A reversed block: a dictionary, then subtraction of the attention output."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.sparse_norm = nn.LayerNorm(config.width)
        self.dictionary = nn.Parameter(torch.empty(config.width, config.width))
        nn.init.kaiming_uniform_(self.dictionary)
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = subspace_attention(config)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(self.sparse_norm(x), self.dictionary)
        output: Tensor = y - self.attention(self.attention_norm(y))
        return output


def _apply_all(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x

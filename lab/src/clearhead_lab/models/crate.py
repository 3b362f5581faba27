r"""CRATE, the white-box transformer (Yu et al. 2023, arXiv 2306.01129; 2024, arXiv 2311.13110), for images.

A layer compresses the tokens by subspace attention and then makes them sparse by one step of sparse coding:

    Z <- Z + MSSA(LN(Z)),        Z <- ISTA(LN(Z)),

as in the released code. The derivation has (1 - t) Z + t MSSA(Z) with the output map tied to the subspaces and no
norms; `Form` lists the variants. The second step has no residual connection.

CRATE-alpha (Yang et al. 2024, arXiv 2405.20299) is `CrateConfig(overcomplete=True)`: an overcomplete sparse coding step
with a residual connection, and no bias in the output map of attention.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.sparse_coding import OvercompleteStep, SparseCodingStep
from clearhead.modules.subspace import SubspaceAttention
from clearhead.shapes import Float
from clearhead_lab.models.image_sizes import PixelNorm, check_divides, check_images, check_sizes, patches


class Form(StrEnum):
    """The compression step of a block. The input of MSSA is LN(Z) in all variants."""

    RELEASED = "released"
    """Z + MSSA with a separate output map. It increases the coding rate of the projected tokens."""
    TIED = "tied"
    """Z + MSSA with the subspaces as output map."""
    NEGATED = "negated"
    """Z - MSSA, tied (CRATE-N of Hu et al. 2024, arXiv 2411.17182)."""
    PAPER = "paper"
    """(1 - t) Z + t MSSA, tied, as derived in the paper."""


LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """Settings of the blocks of a CRATE.

    width: size of a token
    layers: number of blocks
    heads: number of subspaces in each block
    step, penalty: eta and lambda of the sparse coding step
    form: the compression step
    shrink: t of the form PAPER
    overcomplete: use the sparse coding step of CRATE-alpha
    """

    width: int = 128
    layers: int = 6
    heads: int = 8
    step: float = 0.1
    penalty: float = 0.1
    form: Form | str = Form.RELEASED
    shrink: float = 0.5
    overcomplete: bool = False

    def __post_init__(self) -> None:
        check_sizes(width=self.width, layers=self.layers, heads=self.heads)
        check_divides(whole="width", part="heads", sizes=(self.width, self.heads))
        if not 0 < self.step <= LARGEST or not 0 <= self.penalty <= LARGEST or not 0 < self.shrink <= 1:
            raise InputError(
                "expected step above 0, penalty of at least 0 and shrink above 0 up to 1; "
                f"got {self.step}, {self.penalty}, {self.shrink}"
            )
        if self.form not in list(Form):
            raise InputError(f"expected form to be one of {', '.join(Form)}; got {self.form!r}")
        object.__setattr__(self, "form", Form(self.form))  # a file or a caller may pass its value


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBlockConfig(BlockConfig):
    """Settings of a CRATE for images: those of `BlockConfig`, and of the images as in `check_images`."""

    image_size: int
    patch_size: int
    channels: int
    pixel_mean: tuple[float, ...] = ()
    pixel_spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        BlockConfig.__post_init__(self)  # super() fails in dataclasses with slots
        check_images(self)

    @property
    def tokens(self) -> int:
        """Return the number of tokens of an image: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


@contextmanager
def initialised_by(generator: torch.Generator | None) -> Iterator[None]:
    """Draw the initial weights of torch's modules from the generator. The global random state does not change."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield


def subspace_attention(config: BlockConfig) -> SubspaceAttention:
    """Return the attention of a block."""
    return SubspaceAttention(
        config.width, config.heads, tied=config.form is not Form.RELEASED, out_bias=not config.overcomplete
    )


class CrateBlock(nn.Module):
    """A compression step and a sparse coding step.

    The second has no residual connection, except in CRATE-alpha: Z + ODL(LN(Z)), where the codes are decoded again.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.form, self.shrink, self.overcomplete = config.form, config.shrink, config.overcomplete
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = subspace_attention(config)
        self.sparse_norm = nn.LayerNorm(config.width)
        sparse_step = OvercompleteStep if config.overcomplete else SparseCodingStep
        self.sparse = sparse_step(config.width, step=config.step, penalty=config.penalty)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Return the sparse codes of the compressed tokens."""
        attended = self.attention(self.attention_norm(x), causal=causal)
        if self.form is Form.PAPER:
            x = (1 - self.shrink) * x + self.shrink * attended
        else:
            x = x - attended if self.form is Form.NEGATED else x + attended
        codes: Tensor = self.sparse(self.sparse_norm(x))
        return x + codes if self.overcomplete else codes


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateConfig(ImageBlockConfig):
    """Settings of a CRATE: those of its blocks and images, and the number of classes."""

    classes: int

    def __post_init__(self) -> None:
        ImageBlockConfig.__post_init__(self)
        check_sizes(classes=self.classes)


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

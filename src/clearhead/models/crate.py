r"""CRATE, the white-box transformer (Yu et al. 2023, arXiv 2306.01129; 2024, arXiv 2311.13110), for images.

A layer compresses the tokens by subspace attention and then makes them sparse by one step of sparse coding:

    Z <- Z + MSSA(LN(Z)),        Z <- ISTA(LN(Z)),

which is what the released code does. The derivation has (1 - t) Z + t MSSA(Z) with the output map tied to the subspaces
and no norms; `Form` names the ways between. There is no path around the second step.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.axes import Float
from clearhead.models.image_sizes import PixelNorm, check_divides, check_sizes, patches, per_channel
from clearhead.modules.sparse_coding import SparseCodingStep
from clearhead.modules.subspace import SubspaceAttention

__all__ = ["CRATE_SIZES", "Crate", "CrateBlock", "CrateConfig", "Form", "crate_config", "crate_from_json", "drawn_from"]


class Form(StrEnum):
    """How a block compresses. In all of them MSSA reads LN(Z)."""

    RELEASED = "released"
    """Z + MSSA, with an output map of its own. It ascends the raw rate of the projected tokens."""
    TIED = "tied"
    """Z + MSSA, with the subspaces as output map."""
    NEGATED = "negated"
    """Z - MSSA, tied (CRATE-N of Hu et al. 2024, arXiv 2411.17182)."""
    PAPER = "paper"
    """(1 - t) Z + t MSSA, tied: with the shrinking term of the derivation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateConfig:
    """The sizes of a CRATE.

    image_size, patch_size, channels, classes, pixel_mean, pixel_spread: as in `VisionTransformerConfig`
    width, layers, heads: of a token, of blocks, of subspaces in each
    step, penalty: eta and lambda of the sparse coding step
    shrink: t, where the form is PAPER
    """

    image_size: int
    patch_size: int
    channels: int
    classes: int
    width: int = 128
    layers: int = 6
    heads: int = 8
    step: float = 0.1
    penalty: float = 0.1
    form: Form = Form.RELEASED
    shrink: float = 0.5
    pixel_mean: tuple[float, ...] = ()
    pixel_spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        names = ("image_size", "patch_size", "channels", "classes", "width", "layers", "heads")
        check_sizes(**{name: getattr(self, name) for name in names})
        for whole, part in (("image_size", "patch_size"), ("width", "heads")):
            check_divides(whole=whole, part=part, sizes=(getattr(self, whole), getattr(self, part)))
        for name in ("pixel_mean", "pixel_spread"):
            object.__setattr__(self, name, per_channel(name, getattr(self, name), channels=self.channels))
        if min(self.pixel_spread) <= 0:
            raise ValueError(f"expected pixel_spread above zero; got {self.pixel_spread}")
        if not self.step > 0 or not self.penalty >= 0 or not 0 < self.shrink <= 1:
            raise ValueError(
                "expected step above 0, penalty of at least 0 and shrink above 0 up to 1; "
                f"got {self.step}, {self.penalty}, {self.shrink}"
            )
        object.__setattr__(self, "form", Form(self.form))  # a file, or a caller, may say it in words

    @property
    def tokens(self) -> int:
        """How many tokens an image becomes: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def as_json(self) -> dict[str, Any]:
        """The sizes as plain values."""
        return {**dataclasses.asdict(self), "form": str(self.form)}


def crate_from_json(stored: Mapping[str, Any]) -> CrateConfig:
    """The sizes that `CrateConfig.as_json` gave. ValueError or TypeError for anything else."""
    pixels = {name: tuple(stored.get(name, ())) for name in ("pixel_mean", "pixel_spread")}
    return CrateConfig(**{**stored, **pixels, "form": Form(stored.get("form", Form.RELEASED))})


CRATE_SIZES = {
    "tiny": {"width": 384, "layers": 12, "heads": 6},
    "small": {"width": 576, "layers": 12, "heads": 12},
    "base": {"width": 768, "layers": 12, "heads": 12},
    "large": {"width": 1024, "layers": 24, "heads": 16},
}
"""The sizes that were published, for 224 x 224 pixels in patches of 16 and 1,000 classes."""


def crate_config(size: str, **others: Any) -> CrateConfig:
    """A published size: tiny, small, base or large. `others` are fields of the config that shall differ."""
    if size not in CRATE_SIZES:
        raise ValueError(f"no CRATE is called {size}; there is {', '.join(CRATE_SIZES)}")
    plain = {"image_size": 224, "patch_size": 16, "channels": 3, "classes": 1000, **CRATE_SIZES[size]}
    return CrateConfig(**{**plain, **others})


@contextmanager
def drawn_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let torch's modules draw their first weights from the generator; torch's own chance stays as it was."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield


class CrateBlock(nn.Module):
    """One compression and one sparse coding step."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.form, self.shrink = config.form, config.shrink
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SubspaceAttention(config.width, heads=config.heads, tied=config.form is not Form.RELEASED)
        self.sparse_norm = nn.LayerNorm(config.width)
        self.sparse = SparseCodingStep(config.width, step=config.step, penalty=config.penalty)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """The sparse codes of the compressed tokens."""
        attended = self.attention(self.attention_norm(x), causal=causal)
        if self.form is Form.PAPER:
            x = (1 - self.shrink) * x + self.shrink * attended
        else:
            x = x - attended if self.form is Form.NEGATED else x + attended
        codes: Tensor = self.sparse(self.sparse_norm(x))
        return codes


class Crate(nn.Module):
    """Classify images by compression and sparse coding of their patches.

    Tokens are [class token; LN(linear(LN(patch)))] + positions, both drawn normally with spread one; the answer is a
    linear map of the normalised class token. Maps are drawn as torch draws them, as in the released code, from the
    generator given. Patches are read pixel by pixel with the channels of each together, as the released code does.
    """

    def __init__(self, config: CrateConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        pixels = config.channels * config.patch_size**2
        with drawn_from(generator):
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
        """One score for each class, (b, classes). images: (b, channels, image_size, image_size), from 0 to 1."""
        cut = patches(self.pixels(images), self.config.patch_size)
        x = self.embedding(cut.permute(0, 1, 3, 4, 2).flatten(2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x[:, 0]))
        return scores

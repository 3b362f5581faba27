"""What every CRATE is built of: the forms of a block, the sizes of blocks and images, and the block.

CRATE-alpha (Yang et al. 2024, arXiv 2405.20299) has an overcomplete sparse coding step with a path around it, and no
bias in attention's output map.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.models.image_sizes import check_divides, check_sizes, per_channel
from clearhead.modules.sparse_coding import OvercompleteStep, SparseCodingStep
from clearhead.modules.subspace import SubspaceAttention
from clearhead.shapes import Float

__all__ = ["BlockConfig", "CrateBlock", "Form", "ImageBlockConfig", "drawn_from", "read_image_config"]


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


LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """The sizes of the blocks of a CRATE.

    width, layers, heads: of a token, of blocks, of subspaces in each
    step, penalty: eta and lambda of the sparse coding step
    form: how a block compresses
    shrink: t, where the form is PAPER
    overcomplete: whether the second half of a block is that of CRATE-alpha
    """

    width: int = 128
    layers: int = 6
    heads: int = 8
    step: float = 0.1
    penalty: float = 0.1
    form: Form = Form.RELEASED
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
        object.__setattr__(self, "form", Form(self.form))  # a file, or a caller, may say it in words

    def as_json(self) -> dict[str, Any]:
        """The sizes as plain values."""
        return {**dataclasses.asdict(self), "form": str(self.form)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBlockConfig(BlockConfig):
    """The sizes of a CRATE that reads images: those of `BlockConfig`, and of the images as in a vision transformer.

    image_size: height and width of an image; patch_size divides it
    channels: of the images
    pixel_mean, pixel_spread: of each channel, subtracted and divided by
    """

    image_size: int
    patch_size: int
    channels: int
    pixel_mean: tuple[float, ...] = ()
    pixel_spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        BlockConfig.__post_init__(self)  # super() does not find its class where there are slots
        check_sizes(image_size=self.image_size, patch_size=self.patch_size, channels=self.channels)
        check_divides(whole="image_size", part="patch_size", sizes=(self.image_size, self.patch_size))
        for name in ("pixel_mean", "pixel_spread"):
            object.__setattr__(self, name, per_channel(name, getattr(self, name), channels=self.channels))
        if min(self.pixel_spread) <= 0:
            raise InputError(f"expected pixel_spread above zero; got {self.pixel_spread}")

    @property
    def tokens(self) -> int:
        """How many tokens an image becomes: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


def read_image_config(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that `as_json` gave: JSON has neither tuples nor forms."""
    pixels = {name: tuple(stored.get(name, ())) for name in ("pixel_mean", "pixel_spread")}
    return {**stored, **pixels, "form": Form(stored.get("form", Form.RELEASED))}


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
    """One compression and one sparse coding step.

    No path leads around the second, except in CRATE-alpha: Z + ODL(LN(Z)), where the codes are decoded again.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.form, self.shrink, self.overcomplete = config.form, config.shrink, config.overcomplete
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SubspaceAttention(
            config.width,
            config.heads,
            tied=config.form is not Form.RELEASED,
            out_bias=not config.overcomplete,
        )
        self.sparse_norm = nn.LayerNorm(config.width)
        kind = OvercompleteStep if config.overcomplete else SparseCodingStep
        self.sparse = kind(config.width, step=config.step, penalty=config.penalty)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """The sparse codes of the compressed tokens."""
        attended = self.attention(self.attention_norm(x), causal=causal)
        if self.form is Form.PAPER:
            x = (1 - self.shrink) * x + self.shrink * attended
        else:
            x = x - attended if self.form is Form.NEGATED else x + attended
        codes: Tensor = self.sparse(self.sparse_norm(x))
        return x + codes if self.overcomplete else codes

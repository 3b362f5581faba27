"""A plain vision transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), small enough to train on one core.

Blocks are pre-norm as in that paper and use Clearhead's attention modules. There is no dropout. Pixels are normalised
inside the model, so images have values from 0 to 1 everywhere else.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.models.image_sizes import PixelNorm, check_divides, check_sizes, patches, per_channel
from clearhead.modules import SymmetricAttention
from clearhead.modules.from_operator import attention_module
from clearhead.operators.named import NAMED_OPERATORS, Softmax, operator_from_dict, operator_to_dict
from clearhead.shapes import Float

__all__ = ["VisionTransformer", "VisionTransformerConfig", "config_as_json", "config_from_json"]

INITIAL_DEVIATION = 0.02
"""Standard deviation of the initial class token and positions."""
SOFTMAX = Softmax()


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTransformerConfig:
    """Settings of a vision transformer.

    image_size: height and width of an image; must be a multiple of patch_size
    channels, classes: number of image channels and of classes
    width: size of a token; must be a multiple of heads
    mlp_width: size of the MLP's hidden layer
    pixel_mean, pixel_spread: per channel, mean that is subtracted and standard deviation that is divided by
    attention: an operator of `NAMED_OPERATORS`, or a tuple with one per layer
    """

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

    def __post_init__(self) -> None:
        names = ("image_size", "patch_size", "channels", "classes", "width", "layers", "heads", "mlp_width")
        check_sizes(**{name: getattr(self, name) for name in names})
        for whole, part in (("image_size", "patch_size"), ("width", "heads")):
            check_divides(whole=whole, part=part, sizes=(getattr(self, whole), getattr(self, part)))
        for name in ("pixel_mean", "pixel_spread"):
            object.__setattr__(self, name, per_channel(name, getattr(self, name), channels=self.channels))
        if min(self.pixel_spread) <= 0:
            raise InputError(f"expected pixel_spread above zero; got {self.pixel_spread}")
        operators = self.layer_attention
        if len(operators) != self.layers or any(
            type(operator) not in NAMED_OPERATORS.values() for operator in operators
        ):
            raise InputError(
                f"expected named operators as attention ({', '.join(NAMED_OPERATORS)}), one for all layers or one for "
                f"each of {self.layers}; got {self.attention!r}"
            )
        equal = all(operator == operators[0] for operator in operators)
        object.__setattr__(self, "attention", operators[0] if equal else operators)

    @property
    def layer_attention(self) -> tuple[Any, ...]:
        """Return the operator of every layer."""
        attention = self.attention
        return tuple(attention) if isinstance(attention, Sequence) else (attention,) * self.layers

    @property
    def tokens(self) -> int:
        """Return the number of tokens of an image: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


def config_as_json(config: VisionTransformerConfig) -> dict[str, Any]:
    """Return the settings as plain values, operators by name. Softmax attention in all layers is left out."""
    plain = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    attention = plain.pop("attention")
    if isinstance(attention, tuple):
        plain["attention"] = [operator_to_dict(operator) for operator in attention]
    elif attention != SOFTMAX:
        plain["attention"] = operator_to_dict(attention)
    return plain


def config_from_json(stored: Mapping[str, Any]) -> VisionTransformerConfig:
    """Return the settings that `config_as_json` wrote. Raise ValueError or TypeError for anything else."""
    settings = {**stored, **{name: tuple(stored.get(name, ())) for name in ("pixel_mean", "pixel_spread")}}
    if "attention" in settings:
        attention = settings["attention"]
        settings["attention"] = (
            tuple(map(operator_from_dict, attention)) if isinstance(attention, list) else operator_from_dict(attention)
        )
    return VisionTransformerConfig(**settings)


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
        self.patches = nn.Linear(config.channels * config.patch_size**2, config.width)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.positions = nn.Parameter(torch.empty(1, config.tokens, config.width))
        self.blocks = nn.ModuleList(_Block(config, operator) for operator in config.layer_attention)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)
        self._initialise(generator)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        """Return logits (b, classes). images: (b, channels, image_size, image_size), from 0 to 1."""
        x = self.patches(patches(self.pixels(images), self.config.patch_size).flatten(2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits

    def _initialise(self, generator: torch.Generator | None) -> None:
        """Initialise maps as Glorot and Bengio (2010), biases with zero; class token, positions and head are small."""
        small = partial(nn.init.trunc_normal_, std=INITIAL_DEVIATION, generator=generator)
        for module in self.modules():
            if isinstance(module, SymmetricAttention):  # draws in place of W_Q, so that later draws stay equal
                nn.init.xavier_uniform_(torch.empty(self.config.width, self.config.width), generator=generator)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)
        for parameter in (self.class_token, self.positions, self.head.weight):
            small(parameter)


class _Block(nn.Module):
    """Attention and an MLP, each with a residual connection."""

    def __init__(self, config: VisionTransformerConfig, operator: Any) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = attention_module(operator, embed_dim=config.width, num_heads=config.heads)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.mlp_width), nn.GELU(), nn.Linear(config.mlp_width, config.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        output: Tensor = x + self.mlp(self.mlp_norm(x))
        return output

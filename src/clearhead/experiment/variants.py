"""The vision transformers that are compared: the same in everything but how a layer attends."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.models.vit import VisionTransformerConfig
from clearhead.operators.drop_in import Softmax, Symmetric

__all__ = ["VARIANTS", "Variant", "configs_of"]

SYMMETRIC = "symmetric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to attend.

    name: short, of letters that a folder may have
    meaning: in words
    attention: what a config's `attention` is to be, given the sizes
    beside: the variants that it is compared with, seed by seed
    """

    name: str
    meaning: str
    attention: Callable[[VisionTransformerConfig], Any]
    beside: tuple[str, ...] = (SYMMETRIC,)


VARIANTS = (
    Variant(name="softmax", meaning="softmax attention", attention=lambda config: Softmax()),
    Variant(name=SYMMETRIC, meaning="queries are keys, in all layers", attention=lambda config: Symmetric(), beside=()),
)
"""In the order of the tables; times are relative to the first."""


def configs_of(plain: VisionTransformerConfig, variants: Sequence[Variant]) -> dict[str, VisionTransformerConfig]:
    """The same sizes for every variant, by name."""
    return {variant.name: dataclasses.replace(plain, attention=variant.attention(plain)) for variant in variants}

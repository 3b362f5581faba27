"""The vision transformers that are compared: the same in everything but how a layer attends."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.models.vit import VisionTransformerConfig
from clearhead.operators.drop_in import RPC, ClampedKeys, Scaled, Softmax, Symmetric

__all__ = ["VARIANTS", "Variant", "configs_of"]

SOFTMAX, SYMMETRIC = "softmax", "symmetric"
STRENGTH = 4.0
"""Lambda, as in the source's runs of tiny models; clamped keys have the same."""


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


def _first(operator: Any) -> Callable[[VisionTransformerConfig], Any]:
    """The operator in the first layer, symmetric attention in the others, as published."""
    return lambda config: (operator, *(Symmetric(),) * (config.layers - 1))


def _all(operator: Any) -> Callable[[VisionTransformerConfig], Any]:
    return lambda config: operator


VARIANTS = (
    Variant(name=SOFTMAX, meaning="softmax attention in all layers", attention=_all(Softmax())),
    Variant(
        name=SYMMETRIC,
        meaning="queries are keys, in all layers; the baseline as published",
        attention=_all(Symmetric()),
        beside=(),
    ),
    Variant(
        name="clamped-first",
        meaning="symmetric, keys clamped in the first layer as RPC-Attention's code would clamp them",
        attention=_first(ClampedKeys(strength=STRENGTH)),
    ),
    Variant(name="clamped", meaning="the same in all layers", attention=_all(ClampedKeys(strength=STRENGTH))),
    *(
        Variant(
            name=f"rpc{iterations}{end}",
            meaning=f"RPC-Attention, {iterations} iterations in {where}, threshold as in its code",
            attention=place(RPC(iterations=iterations, strength=STRENGTH)),
            beside=(SYMMETRIC, f"clamped{end}"),
        )
        for iterations in (2, 4)
        for end, where, place in (("-first", "the first layer, symmetric elsewhere", _first), ("", "all layers", _all))
    ),
    Variant(
        name="rpc4-first-paper",
        meaning="as rpc4-first, with the paper's threshold, which hardly a key reaches",
        attention=_first(RPC(pursuit="paper", iterations=4, strength=STRENGTH)),
        beside=(SYMMETRIC, "rpc4-first"),
    ),
    Variant(
        name="scaled-matrix",
        meaning="softmax attention on (I - S) V in all layers, S a learned matrix for each head",
        attention=lambda config: Scaled(form="matrix", num_tokens=config.tokens, num_heads=config.heads),
        beside=(SOFTMAX, SYMMETRIC),
    ),
    Variant(
        name="scaled-symmetric",
        meaning="the same with S = alpha softmax(K K^T), one learned alpha for each layer",
        attention=_all(Scaled(form="symmetric")),
        beside=(SOFTMAX, SYMMETRIC),
    ),
    Variant(
        name="scaled-asymmetric",
        meaning="the same with S = alpha softmax(Q K^T)",
        attention=_all(Scaled(form="asymmetric")),
        beside=(SOFTMAX, SYMMETRIC),
    ),
)
"""In the order of the tables; times are relative to the first."""


def configs_of(plain: VisionTransformerConfig, variants: Sequence[Variant]) -> dict[str, VisionTransformerConfig]:
    """The same sizes for every variant, by name."""
    return {variant.name: dataclasses.replace(plain, attention=variant.attention(plain)) for variant in variants}

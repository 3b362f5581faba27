"""The designs of comparisons, and the vision transformers that they compare, which differ in their attention alone."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.operators.named import RPC, ClampedKeys, Scaled, Softmax, Symmetric
from clearhead_lab.experiments.study import Study
from clearhead_lab.models.transformer_block import attention_as_json
from clearhead_lab.models.vit import VisionTransformerConfig
from clearhead_lab.training.recipe_file import RecipeFile

SOFTMAX, SYMMETRIC = "softmax", "symmetric"
STRENGTH = 4.0
"""Lambda, as for the tiny models of the source; clamped keys use the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a comparison trains, measures and times.

    file: the recipe, with the sizes of the models and the number of training images
    seeds: the number of runs of each variant
    corrupted: the number of test images that are corrupted; rounds: of the timing
    """

    file: RecipeFile
    seeds: int = 3
    corrupted: int
    rounds: int

    def config(self, *, image_size: int, channels: int, classes: int) -> VisionTransformerConfig:
        """Return the config with softmax attention for images of this size."""
        sizes = {name: value for name, value in self.file.model.items() if name not in ("kind", "attention")}
        return VisionTransformerConfig(image_size=image_size, channels=channels, classes=classes, **sizes)

    def study(self, configs: Mapping[str, VisionTransformerConfig]) -> Study:
        """Return the study of these variants."""
        attention = {name: {"attention": attention_as_json(config.attention)} for name, config in configs.items()}
        return Study(small=self.file, variants=attention, seeds=self.seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kind of attention.

    name: a valid name of a folder
    meaning: a description
    attention: returns the `attention` of a config
    baselines: the variants that it is compared with, paired by seed
    """

    name: str
    meaning: str
    attention: Callable[[VisionTransformerConfig], Any]
    baselines: tuple[str, ...] = (SYMMETRIC,)


def _first(operator: Any) -> Callable[[VisionTransformerConfig], Any]:
    """Use the operator in the first layer and symmetric attention in the others, as published."""
    return lambda config: (operator, *(Symmetric(),) * (config.layers - 1))


def _all(operator: Any) -> Callable[[VisionTransformerConfig], Any]:
    return lambda config: operator


VARIANTS = (
    Variant(name=SOFTMAX, meaning="softmax attention in all layers", attention=_all(Softmax())),
    Variant(
        name=SYMMETRIC,
        meaning="queries equal keys, in all layers; the published baseline",
        attention=_all(Symmetric()),
        baselines=(),
    ),
    Variant(
        name="clamped-first",
        meaning="symmetric, keys clamped in the first layer as in the code of RPC-Attention",
        attention=_first(ClampedKeys(strength=STRENGTH)),
    ),
    Variant(name="clamped", meaning="the same in all layers", attention=_all(ClampedKeys(strength=STRENGTH))),
    *(
        Variant(
            name=f"rpc{iterations}{end}",
            meaning=f"RPC-Attention, {iterations} iterations in {where}, threshold as in its code",
            attention=apply(RPC(iterations=iterations, strength=STRENGTH)),
            baselines=(SYMMETRIC, f"clamped{end}"),
        )
        for iterations in (2, 4)
        for end, where, apply in (("-first", "the first layer, symmetric elsewhere", _first), ("", "all layers", _all))
    ),
    Variant(
        name="rpc4-first-paper",
        meaning="as rpc4-first, with the paper's threshold, which few keys reach",
        attention=_first(RPC(pursuit="paper", iterations=4, strength=STRENGTH)),
        baselines=(SYMMETRIC, "rpc4-first"),
    ),
    Variant(
        name="scaled-matrix",
        meaning="softmax attention on (I - S) V in all layers, S a learned matrix for each head",
        attention=lambda config: Scaled(form="matrix", num_tokens=config.tokens, num_heads=config.heads),
        baselines=(SOFTMAX, SYMMETRIC),
    ),
    Variant(
        name="scaled-symmetric",
        meaning="the same with S = alpha softmax(K K^T), one learned alpha for each layer",
        attention=_all(Scaled(form="symmetric")),
        baselines=(SOFTMAX, SYMMETRIC),
    ),
    Variant(
        name="scaled-asymmetric",
        meaning="the same with S = alpha softmax(Q K^T)",
        attention=_all(Scaled(form="asymmetric")),
        baselines=(SOFTMAX, SYMMETRIC),
    ),
)
"""The variants in the order of the tables; times are relative to the first."""


def configs_of(plain: VisionTransformerConfig, variants: Sequence[Variant]) -> dict[str, VisionTransformerConfig]:
    """Return a config of the same sizes for every variant, by name."""
    return {variant.name: dataclasses.replace(plain, attention=variant.attention(plain)) for variant in variants}

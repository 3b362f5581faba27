"""Causal CRATE, a language model of CRATE blocks (Yu et al. 2024, arXiv 2311.13110, on text; its code, crate_gpt.py).

Attention is causal. As in the released code there is no norm before the output map, which is the transposed token
embedding, and maps are initialised as in GPT-2. The input is token ids; there is no tokenizer.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from clearhead.errors import InputError
from clearhead.modules.subspace import SubspaceAttention
from clearhead.shapes import Float, Int, ShapeError
from clearhead_lab.models.crate import BlockConfig, CrateBlock, initialised_by
from clearhead_lab.models.image_sizes import check_sizes

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial maps, tokens and positions; output maps have it divided by sqrt(2 layers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateLanguageConfig(BlockConfig):
    """Settings of a causal CRATE: those of `BlockConfig`, the number of token ids, and the maximum sequence length."""

    vocabulary: int
    context: int

    def __post_init__(self) -> None:
        BlockConfig.__post_init__(self)
        check_sizes(vocabulary=self.vocabulary, context=self.context)


def causal_crate_base(**settings: Any) -> CrateLanguageConfig:
    """Return the settings of Causal-CRATE-Base, changed by `settings`.

    It is published as 60 M parameters. It has 60,699,648, and 59,913,216 without the positions, as its code counts.
    """
    published = {"width": 768, "layers": 12, "heads": 12, "vocabulary": 50_304, "context": 1024}
    return CrateLanguageConfig(**{**published, **settings})


class CrateLanguage(nn.Module):
    """A causal language model: predicts the next token at each position."""

    def __init__(self, config: CrateLanguageConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        with initialised_by(generator):
            self.embedding = nn.Embedding(config.vocabulary, config.width)
            self.positions = nn.Parameter(torch.empty(config.context, config.width))
            self.blocks = nn.ModuleList(CrateBlock(config) for _ in range(config.layers))
            self._initialise()

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocabulary"]:
        """Return logits of the next token, (b, n, vocabulary). tokens: ids (b, n)."""
        if tokens.ndim != 2 or tokens.shape[1] > self.config.context:
            raise ShapeError(f"expected tokens (b, n), n at most {self.config.context}; got {tuple(tokens.shape)}")
        if tokens.is_floating_point():
            raise InputError(f"expected tokens of an integer dtype; got {tokens.dtype}")
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, causal=True)
        return linear(x, self.embedding.weight)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, SubspaceAttention) and module.out is not None:
                nn.init.normal_(module.out.weight, std=INITIAL_DEVIATION / math.sqrt(2 * self.config.layers))
        nn.init.normal_(self.positions, std=INITIAL_DEVIATION)

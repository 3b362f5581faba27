"""Causal CRATE, a language model of CRATE blocks (Yu et al. 2024, arXiv 2311.13110, on text; its code, crate_gpt.py).

Tokens see themselves and those before them. As released there is no norm before the answer, whose map is the token
embedding turned round, and maps start as in GPT-2. It reads numbers of tokens; which text they stand for is not its
matter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from clearhead.errors import InputError
from clearhead.models.crate_block import BlockConfig, CrateBlock, Form, drawn_from
from clearhead.models.image_sizes import check_sizes
from clearhead.modules.subspace import SubspaceAttention
from clearhead.shapes import Float, Int, ShapeError

__all__ = ["CrateLanguage", "CrateLanguageConfig", "causal_crate_base", "language_from_json"]

INITIAL_SPREAD = 0.02
"""Standard deviation of maps, tokens and positions at the start; that of output maps is less by sqrt(2 layers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateLanguageConfig(BlockConfig):
    """The sizes of a causal CRATE: those of `BlockConfig`, and

    vocabulary: how many tokens there are
    context: how many of them an input holds at most
    """

    vocabulary: int
    context: int

    def __post_init__(self) -> None:
        BlockConfig.__post_init__(self)
        check_sizes(vocabulary=self.vocabulary, context=self.context)


def language_from_json(stored: Mapping[str, Any]) -> CrateLanguageConfig:
    """The sizes that `as_json` gave. ValueError or TypeError for anything else."""
    return CrateLanguageConfig(**{**stored, "form": Form(stored.get("form", Form.RELEASED))})


def causal_crate_base(**others: Any) -> CrateLanguageConfig:
    """Causal-CRATE-Base, published as 60 M parameters. `others` are fields of the config that shall differ.

    It has 60,699,648 of them; 59,913,216 without the positions, as its code counts.
    """
    plain = {"width": 768, "layers": 12, "heads": 12, "vocabulary": 50_304, "context": 1024}
    return CrateLanguageConfig(**{**plain, **others})


class CrateLanguage(nn.Module):
    """Tell, at each token, how likely every token is to be the next."""

    def __init__(self, config: CrateLanguageConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        with drawn_from(generator):
            self.embedding = nn.Embedding(config.vocabulary, config.width)
            self.positions = nn.Parameter(torch.empty(config.context, config.width))
            self.blocks = nn.ModuleList(CrateBlock(config) for _ in range(config.layers))
            self._initialise()

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocabulary"]:
        """Scores of the next token, (b, n, vocabulary); softmax makes them probabilities. tokens: (b, n), numbers."""
        if tokens.ndim != 2 or tokens.shape[1] > self.config.context:
            raise ShapeError(f"expected tokens (b, n), n at most {self.config.context}; got {tuple(tokens.shape)}")
        if tokens.is_floating_point():
            raise InputError(f"expected tokens as whole numbers; got {tokens.dtype}")
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, causal=True)
        return linear(x, self.embedding.weight)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_SPREAD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, SubspaceAttention) and module.out is not None:
                nn.init.normal_(module.out.weight, std=INITIAL_SPREAD / math.sqrt(2 * self.config.layers))
        nn.init.normal_(self.positions, std=INITIAL_SPREAD)

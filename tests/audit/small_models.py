"""Small models of three architectures, with their inputs: BERT, a causal Llama with shared keys, and a vision model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

__all__ = ["MODELS", "Subject", "subject"]

HEADS, WIDTH, VOCABULARY, TOKENS, INPUTS = 5, 4, 67, 13, 14
"""Two groups of inputs for max margin, and two more."""
LAYER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, its inputs, and draws of it before training."""

    model: nn.Module
    batches: list[Any]
    draws: list[nn.Module]


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=17, initializer_range=0.3, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=1, intermediate_size=17, initializer_range=0.3, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaModel(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=HEADS * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=17, image_size=12,
        patch_size=4, initializer_range=0.3,
    )  # fmt: skip
    return transformers.ViTModel(config)


MODELS: dict[str, Callable[[], nn.Module]] = {"bert": bert, "llama": llama, "vit": vit}


def subject(name: str) -> Subject:
    """Return a random model with one head of large scores and one that attends alike to all, and five draws of it."""
    torch.manual_seed(1)
    model, *draws = (MODELS[name]().eval() for _ in range(6))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if ".1." in path and path.endswith(("query.weight", "q_proj.weight")):
                parameter[:WIDTH] *= 20
                parameter[WIDTH : 2 * WIDTH] = 0
            if ".1." in path and path.endswith(("query.bias", "q_proj.bias")):
                parameter[WIDTH : 2 * WIDTH] = 0
    generator = torch.Generator().manual_seed(2)
    if name == "vit":
        batches: list[Any] = [torch.randn(INPUTS // 2, 3, 12, 12, generator=generator) for _ in range(2)]
    else:
        rows = torch.randint(3, VOCABULARY, (INPUTS, TOKENS), generator=generator)
        rows[:, 0] = 1
        batches = [{"input_ids": part} for part in rows.split(INPUTS // 2)]
    return Subject(model=model, batches=batches, draws=draws)

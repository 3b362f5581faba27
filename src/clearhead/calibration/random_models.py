"""Models of four families with random weights, as the null of all theories together, and the sizes of a model.

Planted heads have the sizes of the model that is audited, and of its inputs.
"""

import importlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from clearhead._capture import capture
from clearhead.audit.passes import evaluation_mode, forward
from clearhead.calibration.planted_model import BATCH_SIZE, Shape
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.loading.huggingface import Draw, baseline_of

FAMILIES = ("BERT", "GPT-2", "Llama", "ViT")
LAYERS, HEADS, WIDTH, TOKENS, VOCABULARY, IMAGE, PATCH = 2, 4, 32, 24, 101, 20, 4
INPUTS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModels:
    """Models of one architecture, drawn by their seed, and inputs drawn in the same way."""

    name: str
    draw: Callable[[int], nn.Module]
    batches: Callable[[int], Sequence[Any]]


def families() -> list[RandomModels]:
    """Return the four families in small sizes. Raise InputError without transformers."""
    ensure_torchvision()
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise InputError("random models need transformers; pip install 'clearhead[hf]'") from None
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    text = {
        **special,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "hidden_size": WIDTH,
    }
    inner = {"intermediate_size": 4 * WIDTH}
    image = {"image_size": IMAGE, "patch_size": PATCH}
    configs = {
        "BERT": transformers.BertConfig(**text, **inner, max_position_embeddings=TOKENS),
        "GPT-2": transformers.GPT2Config(
            vocab_size=VOCABULARY, n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=TOKENS, **special
        ),
        "Llama": transformers.LlamaConfig(**text, **inner, max_position_embeddings=TOKENS),
        "ViT": transformers.ViTConfig(
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, hidden_size=WIDTH, **inner, **image
        ),
    }
    return [
        RandomModels(
            name=name,
            draw=_draw(transformers, name, configs[name]),
            batches=_images if name == "ViT" else _text,
        )
        for name in FAMILIES
    ]


def _draw(transformers: Any, name: str, config: Any) -> Draw:
    """Return a function that draws models as the audit draws a baseline. The global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
    return baseline_of(model, name)


def _text(seed: int) -> list[dict[str, torch.Tensor]]:
    """Return token ids drawn by Zipf's law. The first token is the same in all inputs, as that of most tokenizers."""
    generator = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1, VOCABULARY, dtype=torch.float64)
    ids = 1 + torch.multinomial(frequency, INPUTS * TOKENS, replacement=True, generator=generator)
    ids = ids.reshape(INPUTS, TOKENS)
    ids[:, 0] = 0
    return [{"input_ids": batch, "attention_mask": torch.ones_like(batch)} for batch in torch.split(ids, BATCH_SIZE)]


def _images(seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(INPUTS, 3, IMAGE // 2, IMAGE // 2, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=(IMAGE, IMAGE), mode="bilinear")
    return [{"pixel_values": batch} for batch in torch.split(images, BATCH_SIZE)]


def shape_of(model: nn.Module, batches: Iterable[Any]) -> Shape:
    """Return the number of layers and inputs, and the median of heads, widths and tokens over layers or inputs."""
    calls: list[tuple[int, int, int]] = []
    lengths: list[int] = []

    def keep(heads: Heads) -> None:
        _, count, _, head_dim = heads.v.shape
        width = count * head_dim if heads.values_from is None else heads.values_from.x.shape[-1]
        calls.append((count, head_dim, width))
        if heads.layer == 0:
            lengths.extend(_lengths(heads))

    with evaluation_mode(model), torch.no_grad(), capture(model, keep=keep) as captured:
        for batch in batches:
            forward(model, batch)
    sizes = (statistics.median_low(values) for values in zip(*calls, strict=True))
    heads, head_dim, width = sizes
    return Shape(
        layers=len(captured.layers),
        heads=heads,
        head_dim=head_dim,
        width=max(width, head_dim),
        tokens=statistics.median_low(lengths),
        inputs=len(lengths),
    )


def _lengths(heads: Heads) -> list[int]:
    """Return the number of tokens of every input that are not padding."""
    inputs, tokens = len(heads.k) // heads.windows, heads.k.shape[-2]
    if heads.mask is None:
        return [tokens] * inputs
    visible = heads.mask.any(dim=-2).any(dim=1).expand(len(heads.k), tokens)
    return [int(row.sum()) for row in visible[:: heads.windows]]

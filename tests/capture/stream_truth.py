"""The position of the residual stream in families whose code is known, and hooks that record it there."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead_lab.models.crate import Crate, CrateConfig, Form
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from tests.interfaces.zoo import FAMILIES, Family, _size, _t5_inputs, _text, _timm, _timm_images, _transformers

IN, OUT = "in", "out"


@dataclass(frozen=True)
class Places:
    """Positions of the residual stream in a block: a module, and whether its input or output.

    The block's path is that of its attention without `attention`. `before` is the block's input.
    within: prefix of the path
    """

    attention: str
    between: tuple[str, str]
    after: tuple[str, str] | None = ("", OUT)
    within: str = ""

    def of(self, name: str) -> list[tuple[str, str] | None]:
        """Return the positions of `before`, `between` and `after` around the attention of this name."""
        block = name.removesuffix(self.attention)
        given = (("", IN), self.between, self.after)
        return [None if place is None else (block + place[0], place[1]) for place in given]


@dataclass(frozen=True)
class Case:
    """A family, the positions of its residual stream by the suffix of the attention's path, and layers without one."""

    family: Family
    places: tuple[Places, ...]
    none: tuple[str, ...] = ()

    def place(self, name: str) -> Places | None:
        """Return the positions around one attention layer; None if it has no residual stream."""
        if any(name.endswith(end) for end in self.none):
            return None
        return next(x for x in self.places if name.startswith(x.within) and name.endswith(x.attention))


@contextmanager
def recorded(model: nn.Module) -> Iterator[dict[tuple[str, str], list[Tensor]]]:
    """Record copies of the inputs and outputs of every module, call by call."""
    seen: dict[tuple[str, str], list[Tensor]] = defaultdict(list)

    def into(path: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        seen[path, IN].append(given[0].clone() if given else torch.empty(0))

    def out_of(path: str, _: nn.Module, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        seen[path, OUT].append(first.clone() if isinstance(first, Tensor) else torch.empty(0))

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(into, path), with_kwargs=True))
        handles.append(module.register_forward_hook(partial(out_of, path)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _own() -> nn.Module:
    config = VisionTransformerConfig(
        image_size=12, patch_size=4, channels=1, classes=5, width=14, layers=3, heads=2, mlp_width=23
    )
    return VisionTransformer(config, generator=torch.Generator().manual_seed(0)).eval()


def _crate(form: Form, images: int) -> Family:
    def make() -> nn.Module:
        config = CrateConfig(
            image_size=12, patch_size=4, channels=1, classes=5, width=14, layers=3, heads=2, form=form, shrink=0.3
        )
        return Crate(config, generator=torch.Generator().manual_seed(0)).eval()

    return Family(make, lambda: {"images": _squares(images)}, 3, (2,))


def _squares(images: int = 3) -> Tensor:
    return torch.rand(images, 1, 12, 12, generator=torch.Generator().manual_seed(8))


def _hugging(model: str, config: str, calls: int = 3, inputs: Callable[[], Any] = _text, **values: Any) -> Family:
    return Family(_transformers(model, config, **values), inputs, calls, (4,))


_BART = {
    "vocab_size": 67, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29, "max_position_embeddings": 64,
    "init_std": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_DISTIL = {"vocab_size": 67, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 31, "initializer_range": 0.5}
_SCALED = {
    "patch_size": 8, "depth": 3, "embed_dim": 48, "num_heads": 4, "init_values": 0.3, "drop_path_rate": 0.2,
}  # fmt: skip

BERT = (Places(".attention.self", (".attention", OUT)),)
LLAMA = (Places(".self_attn", (".post_attention_layernorm", IN)),)
CLIP = (Places(".self_attn", (".layer_norm2", IN)),)
TIMM = (Places(".attn", (".norm2", IN)),)
CRATE = (Places(".attention", (".sparse_norm", IN)),)
BART = (
    Places(".self_attn", (".self_attn_layer_norm", OUT), within="encoder"),
    Places(".self_attn", (".self_attn_layer_norm", OUT), None),
)
WHISPER = (
    Places(".self_attn", (".final_layer_norm", IN), within="encoder"),
    Places(".self_attn", (".encoder_attn_layer_norm", IN), None),
)
T5 = (
    Places(".layer.0.SelfAttention", (".layer.1", IN), within="encoder"),
    Places(".layer.0.SelfAttention", (".layer.1", IN), None),
)

CASES = {
    "bert": Case(FAMILIES["bert"], BERT),
    "roberta": Case(FAMILIES["roberta"], BERT),
    "albert": Case(FAMILIES["albert"], (Places(".attention", (".attention", OUT)),)),
    "mpnet": Case(FAMILIES["mpnet"], (Places(".attention.attn", (".attention", OUT)),)),
    "distilbert": Case(
        _hugging("DistilBertModel", "DistilBertConfig", **_DISTIL), (Places(".attention", (".sa_layer_norm", OUT)),)
    ),
    "gpt2": Case(FAMILIES["gpt2"], (Places(".attn", (".ln_2", IN)),)),
    "llama": Case(FAMILIES["llama"], LLAMA),
    "qwen3": Case(_hugging("Qwen3Model", "Qwen3Config", **_size(num_key_value_heads=2, head_dim=6)), LLAMA),
    "gemma2": Case(FAMILIES["gemma2"], (Places(".self_attn", (".pre_feedforward_layernorm", IN)),)),
    "olmo2": Case(_hugging("Olmo2Model", "Olmo2Config", **_size()), (Places(".self_attn", (".mlp", IN)),)),
    "gpt-oss": Case(FAMILIES["gpt-oss"], LLAMA),
    "vit": Case(FAMILIES["vit"], (Places(".attention", (".layernorm_after", IN)),)),
    "clip": Case(FAMILIES["clip"], CLIP),
    "swin": Case(FAMILIES["swin"], (Places(".attention", (".layernorm_after", IN)),)),
    "timm vit": Case(Family(_timm("vit_tiny_patch16_224", **_SCALED), _timm_images, 3, (4,)), TIMM),
    "timm swin": Case(FAMILIES["timm swin"], TIMM),
    "timm eva": Case(FAMILIES["timm eva"], TIMM),
    "t5": Case(FAMILIES["t5"], T5, none=(".EncDecAttention",)),
    "whisper": Case(FAMILIES["whisper"], WHISPER, none=(".encoder_attn",)),
    "bart": Case(_hugging("BartModel", "BartConfig", 6, _t5_inputs, **_BART), BART, none=(".encoder_attn",)),
    "own vision transformer": Case(
        Family(_own, lambda: {"images": _squares()}, 3, (2,)), (Places(".attention", (".mlp_norm", IN)),)
    ),
    **{f"crate, {form}": Case(_crate(form, 3), CRATE) for form in Form},
    "crate, many tokens": Case(_crate(Form.RELEASED, 47), CRATE),
}  # fmt: skip

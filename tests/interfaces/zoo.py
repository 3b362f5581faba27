"""Tiny models of every supported family, initialised with a large range so that attention is not uniform.

Sizes are distinct where the family allows it, and texts are padded, so that a missing scale, mask, cap, sink or bias
changes the output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BATCH, TOKENS, WIDTH, HEADS, VOCABULARY = 3, 13, 24, 4, 67


@dataclass(frozen=True)
class Family:
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    calls: int
    heads: tuple[int, ...]
    padded: bool = False


def _text(*, left: bool = False) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    mask[0, 9:] = 0
    mask[1, 5:] = 0
    ids = torch.randint(5, VOCABULARY - 3, (BATCH, TOKENS), generator=generator)
    return {"input_ids": ids, "attention_mask": mask.flip(1) if left else mask}


def _images(size: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(2))}


def _size(layers: int = 3, **extra: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **extra,
    }


def _vision() -> dict[str, Any]:
    size = {"image_size": 16, "patch_size": 4, **_size()}
    del size["vocab_size"], size["max_position_embeddings"]
    return size


def _transformers(model: str, config: str, **values: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        return getattr(transformers, model)(getattr(transformers, config)(**values)).eval()

    return make


def _clip() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=_size(), vision_config=_vision(), projection_dim=8)
    return with_large_weights(transformers.CLIPModel(config)).eval()


def with_large_weights(model: nn.Module, deviation: float = 0.4) -> nn.Module:
    """Set large matrices and small vectors, for models whose configuration has no initialiser range."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation / 4)
    return model


def _timm(name: str, **values: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        torch.manual_seed(0)
        return with_large_weights(timm.create_model(name, img_size=32, num_classes=5, **values)).eval()

    return make


def _timm_images() -> dict[str, Any]:
    return {"x": torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(4))}


def _unet() -> nn.Module:
    import diffusers

    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()


def _unet_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    return {
        "sample": torch.randn(2, 4, 8, 8, generator=generator),
        "timestep": 3,
        "encoder_hidden_states": torch.randn(2, 7, 16, generator=generator),
    }


def _dit() -> nn.Module:
    import diffusers

    torch.manual_seed(0)
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        norm_num_groups=4,
        num_embeds_ada_norm=10,
    ).eval()


def _dit_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(6)
    return {
        "hidden_states": torch.randn(2, 4, 8, 8, generator=generator),
        "timestep": torch.tensor([3, 3]),
        "class_labels": torch.tensor([1, 2]),
    }


def _t5_inputs() -> dict[str, Any]:
    text = _text()
    return {
        **text,
        "decoder_input_ids": text["input_ids"][:, :7],
        "decoder_attention_mask": text["attention_mask"][:, :7],
    }


def _whisper_inputs() -> dict[str, Any]:
    features = torch.randn(BATCH, 8, 40, generator=torch.Generator().manual_seed(7))
    return {"input_features": features, "decoder_input_ids": _text()["input_ids"][:, :7]}


_GROUPED = _size(num_key_value_heads=2)
_NARROW = _size(num_key_value_heads=2, head_dim=6, sliding_window=4)
_GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 3, "n_head": HEADS, "n_positions": 64,
    "initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_WHISPER = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29,
    "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30, "init_std": 0.5,
    "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 6, "d_ff": 29, "num_layers": 3, "num_heads": HEADS,
    "initializer_factor": 3.0,
}  # fmt: skip
_SWIN = {
    "image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    "initializer_range": 0.5,
}  # fmt: skip
_VIT = {"patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": HEADS}

FAMILIES = {
    "bert": Family(_transformers("BertModel", "BertConfig", **_size()), _text, 3, (4,), padded=True),
    "roberta": Family(_transformers("RobertaModel", "RobertaConfig", **_size()), _text, 3, (4,), padded=True),
    "albert": Family(
        _transformers("AlbertModel", "AlbertConfig", **_size(5, embedding_size=16)), _text, 5, (4,), padded=True
    ),
    "mpnet": Family(_transformers("MPNetModel", "MPNetConfig", **_size()), _text, 3, (4,), padded=True),
    "gpt2": Family(_transformers("GPT2Model", "GPT2Config", **_GPT2), _text, 3, (4,), padded=True),
    "gpt2, padded left": Family(
        _transformers("GPT2Model", "GPT2Config", **_GPT2), lambda: _text(left=True), 3, (4,), padded=True
    ),
    "gpt2, no mask given": Family(
        _transformers("GPT2Model", "GPT2Config", **_GPT2),
        lambda: {"input_ids": _text()["input_ids"]}, 3, (4,), padded=True,
    ),
    "llama": Family(_transformers("LlamaModel", "LlamaConfig", **_GROUPED), _text, 3, (4,), padded=True),
    "llama, padded left": Family(
        _transformers("LlamaModel", "LlamaConfig", **_GROUPED), lambda: _text(left=True), 3, (4,), padded=True
    ),
    "gemma2": Family(
        _transformers("Gemma2Model", "Gemma2Config", attn_logit_softcapping=5.0, **_NARROW), _text, 3, (4,), padded=True
    ),
    "gpt-oss": Family(
        _transformers("GptOssModel", "GptOssConfig", num_local_experts=4, num_experts_per_tok=2, **_NARROW),
        _text, 3, (4,), padded=True,
    ),
    "vit": Family(_transformers("ViTModel", "ViTConfig", **_vision()), lambda: _images(16), 3, (4,)),
    "deit": Family(_transformers("DeiTModel", "DeiTConfig", **_vision()), lambda: _images(16), 3, (4,)),
    "swin": Family(_transformers("SwinModel", "SwinConfig", **_SWIN), lambda: _images(32), 4, (2, 4)),
    "clip": Family(_clip, lambda: {**_text(), **_images(16)}, 6, (4,), padded=True),
    "t5": Family(_transformers("T5Model", "T5Config", **_T5), _t5_inputs, 9, (4,), padded=True),
    "whisper": Family(_transformers("WhisperModel", "WhisperConfig", **_WHISPER), _whisper_inputs, 6, (4,)),
    "timm vit": Family(_timm("vit_tiny_patch16_224", **_VIT), _timm_images, 2, (4,)),
    "timm deit": Family(_timm("deit_tiny_distilled_patch16_224", **_VIT), _timm_images, 2, (4,)),
    "timm swin": Family(
        _timm(
            "swin_tiny_patch4_window7_224", embed_dim=12, depths=(2, 2), num_heads=(2, 4), window_size=4, patch_size=2
        ),
        _timm_images, 4, (2, 4),
    ),
    "timm eva": Family(_timm("eva02_tiny_patch14_224", **_VIT), _timm_images, 2, (4,)),
    "diffusers unet": Family(_unet, _unet_inputs, 8, (8,)),
    "diffusers dit": Family(_dit, _dit_inputs, 2, (2,)),
}  # fmt: skip

WRITES_ITS_ATTENTION_OUT = {"mpnet", "gemma2", "gpt-oss"}
"""Families of transformers with only the eager implementation."""
EITHER_IMPLEMENTATION = [
    name for name in FAMILIES if not name.startswith(("timm", "diffusers")) and name not in WRITES_ITS_ATTENTION_OUT
]

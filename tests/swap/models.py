"""Tiny models for swaps, and the state of a model that a swap could change."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.audit.fidelity import tensors
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from tests.interfaces.zoo import FAMILIES, Family, with_large_weights
from tests.noise import weight_tolerance

TOKENS, WIDTH, HEADS = 13, 24, 4


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 29, batch_first=True)
    return with_large_weights(nn.TransformerEncoder(layer, 3)).eval()


def encoder_inputs(*, padded: bool = True) -> dict[str, Any]:
    padding = torch.arange(TOKENS) >= torch.tensor([13, 9, 5, 11, 7])[:, None]
    src = torch.randn(5, TOKENS, WIDTH, generator=torch.Generator().manual_seed(8))
    return {"src": src, "src_key_padding_mask": padding} if padded else {"src": src}


def _native() -> nn.Module:
    config = VisionTransformerConfig(
        image_size=6, patch_size=2, channels=3, classes=5, width=WIDTH, heads=HEADS, layers=3
    )
    return with_large_weights(VisionTransformer(config)).eval()


def _native_inputs() -> dict[str, Any]:
    return {"images": torch.rand(7, 3, 6, 6, generator=torch.Generator().manual_seed(9))}


MODELS: dict[str, Family] = {
    **{name: FAMILIES[name] for name in ("bert", "gpt2", "gpt2, padded left", "llama", "vit", "timm vit")},
    "torch encoder": Family(_encoder, encoder_inputs, 3, (HEADS,), padded=True),
    "own vision transformer": Family(_native, _native_inputs, 3, (HEADS,)),
}
"""One model of each kind of layer that accepts a symmetric operator."""

IDENTITY: dict[str, Family] = {**FAMILIES, **MODELS}


def run(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    with torch.no_grad():
        return list(tensors(model(**inputs)))


def relative_error(ours: list[Tensor], theirs: list[Tensor], rows: Tensor | None = None) -> float:
    """Return the largest difference relative to the largest value, on rows that are tokens."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        kept = rows.bool() if rows is not None and a.shape[:2] == rows.shape else ...
        worst = max(worst, float((a[kept] - b[kept]).abs().max() / a[kept].abs().max()))
    return worst


def rounding(model: nn.Module, inputs: dict[str, Any]) -> float:
    """Return the largest `relative_error` between runs of the model that differ only by rounding."""
    return weight_tolerance(model, lambda: run(model, inputs), relative_error)


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def trace(model: nn.Module) -> dict[str, Any]:
    """Return the state that a swap could change: names, hooks, attributes by identity, config, state dict."""
    modules = {}
    for path, module in model.named_modules():
        plain = {name: id(value) for name, value in vars(module).items() if not isinstance(value, dict)}
        held = {name: list(value) for name, value in vars(module).items() if isinstance(value, dict)}
        modules[path] = (type(module), plain, held)
    config = model.config.to_dict() if hasattr(getattr(model, "config", None), "to_dict") else None
    return {"modules": modules, "state": list(model.state_dict()), "config": config}

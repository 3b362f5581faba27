"""How often a bound on keys is active: the share of key entries beyond it, by layer."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from clearhead.models.vit import VisionTransformer
from clearhead.operators.clamped_keys import KeyBound
from clearhead.operators.drop_in import RPC, ClampedKeys

__all__ = ["clamped_shares"]


def clamped_shares(model: VisionTransformer, pixels: Tensor) -> list[float | None]:
    """Return the share of key entries that the first clamping changes, per layer; None for layers without a bound.

    Later iterations of a pursuit clamp other matrices, which are not counted.
    """
    shares: list[float | None] = [None] * model.config.layers
    training = model.training
    with ExitStack() as hooks, torch.no_grad():
        for layer, (block, operator) in enumerate(zip(model.blocks, model.config.layer_attention, strict=True)):
            bound = _bound_of(operator)
            if bound is None:
                continue

            def count(_: Any, __: Any, keys: Tensor, layer: int = layer, bound: KeyBound = bound) -> None:
                k = keys.reshape(*keys.shape[:-1], model.config.heads, -1).movedim(-2, -3)
                shares[layer] = float((k.abs() > bound.compute(k)).double().mean())

            projection = block.get_submodule("attention.key")
            hooks.callback(projection.register_forward_hook(count).remove)
        model.eval()(pixels)
    model.train(training)
    return shares


def _bound_of(operator: Any) -> KeyBound | None:
    if isinstance(operator, RPC):
        return operator.options.bound
    return operator.limit if isinstance(operator, ClampedKeys) else None

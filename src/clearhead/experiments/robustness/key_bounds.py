"""Whether a bound on keys binds: how many entries of the keys lie beyond it, layer by layer."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from clearhead.models.vit import VisionTransformer
from clearhead.operators.drop_in import RPC, ClampedKeys
from clearhead.operators.key_bound import KeyBound

__all__ = ["beyond_bound"]


def beyond_bound(model: VisionTransformer, pixels: Tensor) -> list[float | None]:
    """The share of entries of the keys that the first clamping cuts, for every layer; None where nothing is clamped.

    Later iterations of a pursuit clamp other matrices, which this does not count.
    """
    shares: list[float | None] = [None] * model.config.layers
    training = model.training
    with ExitStack() as hooks, torch.no_grad():
        for place, (block, operator) in enumerate(zip(model.blocks, model.config.layer_attention, strict=True)):
            bound = _bound_of(operator)
            if bound is None:
                continue

            def count(_: Any, __: Any, keys: Tensor, place: int = place, bound: KeyBound = bound) -> None:
                k = keys.reshape(*keys.shape[:-1], model.config.heads, -1).movedim(-2, -3)
                shares[place] = float((k.abs() > bound.of(k)).double().mean())

            keys_of = block.get_submodule("attention.key")
            hooks.callback(keys_of.register_forward_hook(count).remove)
        model.eval()(pixels)
    model.train(training)
    return shares


def _bound_of(operator: Any) -> KeyBound | None:
    if isinstance(operator, RPC):
        return operator.options.bound
    return operator.limit if isinstance(operator, ClampedKeys) else None

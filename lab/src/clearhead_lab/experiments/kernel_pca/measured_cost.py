"""Seconds and peak memory of models: interleaved, so that noise of the machine affects all of them equally."""

import random
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from clearhead.numerics.threads import one_thread
from clearhead.private_names import DispatchMode
from clearhead_lab.models.transformer_block import config_from_json
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.loop import Stepper
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification

WARM_UP = 2
"""Rounds that are not counted."""


def interleave(calls: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, Sequence[float]]:
    """Call every function once in each round, in random order, on one thread. Return the seconds of every round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with one_thread():
        for number in range(WARM_UP + rounds):
            for name in random.Random(number).sample(list(calls), len(calls)):
                start = time.perf_counter()
                calls[name]()
                seconds[name].append(time.perf_counter() - start)
    return {name: each[WARM_UP:] for name, each in seconds.items()}


def forward_seconds(*, models: Mapping[str, Any], batch_size: int, rounds: int) -> dict[str, Sequence[float]]:
    """Return the seconds of forward passes on random images, interleaved. models: settings as `config_as_json`."""

    @torch.no_grad()
    def forward(model: nn.Module, images: Tensor) -> None:
        model(images)

    built = {name: _build(settings).eval() for name, settings in models.items()}
    calls = {name: partial(forward, model, _images(model, batch_size)) for name, model in built.items()}
    return interleave(calls, rounds=rounds)


def step_seconds(*, models: Mapping[str, Any], recipe: Mapping[str, Any], rounds: int) -> dict[str, Sequence[float]]:
    """Return the seconds of training steps on random images, interleaved: forward, backward, clipping, optimizer.

    recipe: its settings
    """
    settings = Recipe(**recipe)
    return interleave({name: _step(_build(each), settings) for name, each in models.items()}, rounds=rounds)


def peak_memory(*, models: Mapping[str, Any], batch_size: int) -> dict[str, dict[str, int]]:
    """Return the peak bytes of a training step and of inference by model, without weights and optimizer states."""
    peaks = {}
    for name, settings in models.items():
        model = _build(settings)
        take = _step(model, Recipe(epochs=1, batch_size=batch_size))
        take()  # creates the states of the optimizer
        training = peak_bytes(take)
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            inference = peak_bytes(partial(model.eval(), _images(model, batch_size)))
        peaks[name] = {"training": training, "inference": inference}
    return peaks


def _step(model: VisionTransformer, recipe: Recipe) -> Callable[[], float]:
    step, labels = Stepper(model, recipe, Classification(recipe)), torch.zeros(recipe.batch_size, dtype=torch.long)
    return partial(step, _images(model, recipe.batch_size), labels, learning_rate=recipe.learning_rate)


def _build(settings: Mapping[str, Any]) -> VisionTransformer:
    return VisionTransformer(
        config_from_json(VisionTransformerConfig, settings), generator=torch.Generator().manual_seed(0)
    )


def _images(model: VisionTransformer, count: int) -> Tensor:
    side = model.config.image_size
    return torch.rand(count, model.config.channels, side, side, generator=torch.Generator().manual_seed(0))


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Return the largest number of bytes of tensors that `compute` created and that exist at the same time.

    Tensors from before, also if they are changed in place, and memory inside compiled kernels are not counted.
    """
    live = _LiveBytes()
    with live:
        compute()
    return live.peak


class _LiveBytes(DispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new storages while they exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._counted: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._count(leaf.untyped_storage())
        return results

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._counted:
            return

        def forget(_: Any) -> None:
            self.now -= size
            self._counted.pop(key, None)

        self._counted[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)

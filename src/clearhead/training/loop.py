"""The one training loop: AdamW (Loshchilov and Hutter 2019) on batches in an order that the seed and the epoch give.

Every chance is drawn from a generator of its own, seeded by the run's seed, the epoch and the step, so a run is a
function of its recipe: one that was killed and continued ends with the same bits as one that was not.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from clearhead.training.evaluation import as_pixels
from clearhead.training.schedule import warmed_cosine

__all__ = ["Augment", "DivergedError", "Recipe", "Stepper", "read_log", "train"]

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Changes a batch of images (b, c, y, x) by chance."""

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
MIX = 1_000_003
"""Parts the seeds of one run from each other."""


class DivergedError(InputError):
    """A run whose loss is no number any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to train. `warmup` counts epochs; `clip` bounds the norm of the gradient."""

    epochs: int
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.5
    label_smoothing: float = 0.0
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError(f"expected an epoch and a batch; got {self.epochs} epochs of batches of {self.batch_size}")
        if not 0 <= self.warmup < self.epochs:
            raise InputError(f"expected a warm-up shorter than the {self.epochs} epochs; got {self.warmup}")


class Stepper:
    """A model, its optimizer and its loss: what one step of training is."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.model, self.clip = model, recipe.clip
        self.optimizer = _optimizer(model, recipe)
        self._loss_of = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)

    def __call__(self, pixels: Tensor, labels: Tensor, *, learning_rate: float) -> float:
        """Learn from one batch and return the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss_of(self.model(pixels), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return float(loss.detach())


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    recipe: Recipe,
    folder: Path,
    evaluate: Callable[[nn.Module], Mapping[str, Any]],
    augment: Augment | None = None,
    checkpoint_every: int = 200,
    describe: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> list[dict[str, Any]]:
    """Train the model in place and return the log: one entry per epoch, with what `evaluate` says of the model.

    images are bytes (n, c, y, x). Under `folder` go the log, a line as soon as an epoch ends, and the checkpoint, every
    so many steps and at the end of an epoch; a run with the same recipe and `describe` that finds them continues there.
    `progress` is told the steps done, all steps, and the last loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    per_epoch = len(images) // min(recipe.batch_size, len(images))
    steps, warmup = recipe.epochs * per_epoch, int(recipe.warmup * per_epoch)
    run = {**dataclasses.asdict(recipe), "images": len(images), **(describe or {})}
    take_step = Stepper(model, recipe)
    at = load_checkpoint(folder / CHECKPOINT, model, take_step.optimizer, run=run) or Progress()
    log = _kept_log(folder / LOG, at.epoch)
    began, step, loss_sum, order = time.perf_counter() - at.seconds, at.step, at.loss_sum, None
    while step < steps:
        epoch, nth = divmod(step, per_epoch)
        if order is None:
            order = torch.randperm(len(images), generator=_chance(recipe.seed, 2 * epoch))
        chosen = order[nth * recipe.batch_size : (nth + 1) * recipe.batch_size]
        batch = as_pixels(images[chosen])
        if augment is not None:
            batch = augment(batch, _chance(recipe.seed, 2 * step + 1))
        rate = recipe.learning_rate * warmed_cosine(step, steps=steps, warmup=warmup)
        now = take_step(batch, labels[chosen], learning_rate=rate)
        step, loss_sum = step + 1, loss_sum + now
        if not math.isfinite(now):
            raise DivergedError(f"the loss is {now} at step {step}; take a lower learning rate")
        if progress is not None:
            progress(step, steps, now)
        seconds = time.perf_counter() - began
        if step % per_epoch == 0:
            entry = {"epoch": epoch + 1, "step": step, "loss": loss_sum / per_epoch, **evaluate(model)}
            log.append({**entry, "seconds": round(seconds, 1)})
            with (folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(log[-1]) + "\n")
            began, loss_sum, order, seconds = time.perf_counter(), 0.0, None, 0.0
        if step % per_epoch == 0 or step % checkpoint_every == 0:
            at = Progress(step=step, epoch=step // per_epoch, loss_sum=loss_sum, seconds=seconds)
            save_checkpoint(folder / CHECKPOINT, model, take_step.optimizer, at, run=run)
    return log


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The log of a run, empty where there is none."""
    path = folder / LOG
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _kept_log(path: Path, epochs: int) -> list[dict[str, Any]]:
    """The log up to the checkpoint; what was written after it comes again."""
    kept = [entry for entry in read_log(path.parent) if entry["epoch"] <= epochs]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
    return kept


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Decay on matrices alone: biases, norms, tokens and positions are no maps."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    maps = [p for name, p in named if p.ndim == 2]
    others = [p for name, p in named if p.ndim != 2]
    groups = [{"params": maps, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.99))


def _chance(seed: int, nth: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * MIX + nth) % 2**63)

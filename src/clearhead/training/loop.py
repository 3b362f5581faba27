"""The training loop: AdamW (Loshchilov and Hutter 2019), a cosine schedule, resumable checkpoints.

Every random draw comes from its own generator, seeded by the run's seed and the epoch or step. A run is therefore a
function of its recipe: a run that was killed and continued ends with the same bits as one that was not.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.storage import lock_folder, read_lines, remove_unfinished, write_lines
from clearhead.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from clearhead.training.evaluation import as_pixels

__all__ = ["Augment", "DivergedError", "Recipe", "Stepper", "learning_rate_factor", "read_log", "train"]

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""A random change of a batch of images (b, c, y, x)."""

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
SEED_STRIDE = 1_000_003
"""Distance between the generator seeds of consecutive run seeds."""


class DivergedError(InputError):
    """A training run whose loss became NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a training run. `warmup` is in epochs; `clip` is the maximum norm of the gradient."""

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
            raise InputError(f"expected epochs and batch_size of at least 1; got {self.epochs} and {self.batch_size}")
        if not 0 <= self.warmup < self.epochs:
            raise InputError(f"expected a warmup of at least 0 and less than {self.epochs} epochs; got {self.warmup}")


class Stepper:
    """A model with its optimizer and loss; calling it does one training step."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.model, self.clip = model, recipe.clip
        self.optimizer = _optimizer(model, recipe)
        self._loss = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)

    def __call__(self, pixels: Tensor, labels: Tensor, *, learning_rate: float) -> float:
        """Take one step on a batch. Return the loss before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self.model(pixels), labels)
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
    notice: Callable[[str], None] = warnings.warn,
) -> list[dict[str, Any]]:
    """Train the model in place and return the log: one entry per epoch, with the results of `evaluate`.

    images: bytes (n, c, y, x)
    folder: gets the log and the checkpoint. A run with the same recipe and `describe` continues from them.
    checkpoint_every: steps between checkpoints; there is one at the end of each epoch too
    progress: called with the finished steps, the total steps and the last loss
    notice: receives one line if the last checkpoint is damaged and the one before it is used

    Raise InputError if another process trains in `folder`, and DamagedFileError if both checkpoints or the log are
    damaged.
    """
    with lock_folder(folder):
        for name in (CHECKPOINT, LOG):
            remove_unfinished(folder / name)
        per_epoch = len(images) // min(recipe.batch_size, len(images))
        steps, warmup = recipe.epochs * per_epoch, int(recipe.warmup * per_epoch)
        run = {**dataclasses.asdict(recipe), "images": len(images), **(describe or {})}
        take_step = Stepper(model, recipe)
        start = load_checkpoint(folder / CHECKPOINT, model, take_step.optimizer, run=run, notice=notice) or Progress()
        log = _log_until(folder, start.epoch)
        start_time, step, loss_sum, order = time.perf_counter() - start.seconds, start.step, start.loss_sum, None
        while step < steps:
            epoch, index = divmod(step, per_epoch)
            if order is None:
                order = torch.randperm(len(images), generator=_generator(recipe.seed, 2 * epoch))
            chosen = order[index * recipe.batch_size : (index + 1) * recipe.batch_size]
            batch = as_pixels(images[chosen])
            if augment is not None:
                batch = augment(batch, _generator(recipe.seed, 2 * step + 1))
            rate = recipe.learning_rate * learning_rate_factor(step, steps=steps, warmup=warmup)
            loss = take_step(batch, labels[chosen], learning_rate=rate)
            step, loss_sum = step + 1, loss_sum + loss
            if not math.isfinite(loss):
                raise DivergedError(f"the loss is {loss} at step {step}; use a lower learning rate")
            if progress is not None:
                progress(step, steps, loss)
            seconds = time.perf_counter() - start_time
            if step % per_epoch == 0:
                entry = {"epoch": epoch + 1, "step": step, "loss": loss_sum / per_epoch, **evaluate(model)}
                log.append({**entry, "seconds": round(seconds, 1)})
                write_lines(folder / LOG, log)
                start_time, loss_sum, order, seconds = time.perf_counter(), 0.0, None, 0.0
            if step % per_epoch == 0 or step % checkpoint_every == 0:
                now = Progress(step=step, epoch=step // per_epoch, loss_sum=loss_sum, seconds=seconds)
                save_checkpoint(folder / CHECKPOINT, model, take_step.optimizer, now, run=run)
        return log


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the log of a run; empty if it has not logged anything.

    Raise DamagedFileError if it does not match its checksum, and InputError if an entry is impossible.
    """
    path = folder / LOG
    if not path.exists():
        return []
    log = read_lines(path)
    for number, entry in enumerate(log, start=1):
        if entry.get("epoch") != number:
            raise InputError(f"{path} has no entry for epoch {number}; delete the folder to train again")
        for name, value in entry.items():
            if name.endswith("accuracy") and not 0 <= value <= 1:
                raise InputError(f"{path} has {name} {value} at epoch {number}, outside 0 to 1; delete the folder")
    return log


def learning_rate_factor(step: int, *, steps: int, warmup: int) -> float:
    r"""Return the factor of the learning rate at `step`: a linear warmup, then half a cosine to zero.

    .. math:: \frac{t + 1}{w} \text{ for } t < w, \qquad \frac{1 + \cos(\pi (t - w) / (T - w))}{2} \text{ after}

    with t = `step` in 0 to T - 1, w = `warmup` and T = `steps` (Loshchilov and Hutter 2017).
    """
    if not 0 <= step < steps or not 0 <= warmup < steps:
        raise InputError(f"expected 0 <= step < steps and 0 <= warmup < steps; got {step}, {warmup} and {steps}")
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def _log_until(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Return the log up to the checkpoint. Later epochs run again and are logged again."""
    stored = read_log(folder)
    log = stored[:epochs]
    if len(log) < epochs:
        raise InputError(
            f"{folder / LOG} has {len(log)} epochs, but {CHECKPOINT} is at epoch {epochs}; restore the log, or delete "
            f"{CHECKPOINT} to train again"
        )
    if len(stored) > epochs:
        write_lines(folder / LOG, log)
    return log


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, not on biases, norms, tokens and positions."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.99))


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * SEED_STRIDE + number) % 2**63)

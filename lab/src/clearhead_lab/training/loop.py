"""The training loop, for every task: optimizer, schedule, evaluation, log, and checkpoints from which a run continues.

Every random draw comes from its own generator, seeded by the run's seed and the epoch or step. A run is therefore a
function of its recipe: a run that was killed and continued ends with the same bits as one that was not. A signal stops
a run at the end of a step.
"""

import contextlib
import dataclasses
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.records import read_record
from clearhead.storage import lock_folder, read_lines, remove_unfinished, write_lines
from clearhead_lab.data.batches import Batches
from clearhead_lab.training.batches import SEED_STRIDE, seeded_generator
from clearhead_lab.training.checkpoint import Progress, State, WeightAverage, load_checkpoint, save_checkpoint
from clearhead_lab.training.distributed import ALONE, Processes
from clearhead_lab.training.metrics import Metrics
from clearhead_lab.training.recipe import Recipe, learning_rate
from clearhead_lab.training.tasks import Task

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopRequest:
    """The signal that asked for a stop, if one has arrived, and the handlers that were there before."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.handlers: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Return True if a signal has arrived."""
        return self.number is not None

    def restore(self) -> None:
        """Put the handlers back."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers = {}

    def deliver(self) -> None:
        """Put the handlers back and send the signal again; Ctrl-C if it arrived in another process."""
        self.restore()
        signal.raise_signal(self.number or signal.SIGINT)

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:  # the second one does not wait for the step
            self.deliver()
        self.number = number


@contextmanager
def stop_at_signals() -> Iterator[StopRequest]:
    """Yield a request that the first SIGINT, SIGTERM or SIGHUP sets. Ignored signals stay ignored.

    Outside the main thread, where Python sets no handlers, it is never set.
    """
    request = StopRequest()
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is signal.SIG_IGN or handler is None:
            continue
        with contextlib.suppress(ValueError):
            signal.signal(number, request._handle)
            request.handlers[number] = handler
    try:
        yield request
    finally:
        request.restore()


CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"


class DivergedError(InputError):
    """A training run whose loss became NaN or infinite."""


class Stepper:
    """A model with its optimizer and task; calling it does one training step."""

    def __init__(self, model: nn.Module, recipe: Recipe, task: Task, *, processes: Processes = ALONE) -> None:
        self.model, self.recipe, self.task, self.processes = model, recipe, task, processes
        self._losses = processes.wrap(_Losses(model, task), model)
        # Compiled around the wrapper, so that torch divides the graph where gradients are averaged. The model itself
        # stays as it is: its names, and the evaluation.
        self._compiled = torch.compile(self._losses) if recipe.compile else self._losses
        self.optimizer = _optimizer(model, recipe)
        self.average = WeightAverage(model, recipe.ema) if recipe.ema else None
        self.device = next(model.parameters()).device

    def __call__(self, inputs: Tensor, targets: Tensor, *, learning_rate: float, step: int = 0) -> float:
        """Take one step on this process's rows of a batch. Return the loss of the whole batch before the step."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(_dropout_seed(recipe.seed, step, self.processes))
        total = torch.zeros((), device=self.device)
        parts = list(zip(inputs.chunk(recipe.accumulate), targets.chunk(recipe.accumulate), strict=True))
        for number, (part, part_targets) in enumerate(parts):
            # Orders and augmentation have the numbers from 0.
            generator = seeded_generator(recipe.seed, -1 - step)
            drawn = self.task.draw(part.to(self.device), part_targets.to(self.device), generator)
            with self.processes.without_reduction(self._losses, self.model, last=number == len(parts) - 1):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
                    losses = self._compiled(*drawn)
                loss = losses.mean() / len(parts)
                loss.backward()
            total += loss.detach()
        if recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return float(self.processes.mean(total))


class _Losses(nn.Module):
    """Model and task as one module, so that data-parallel wrappers see every use of the model."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, *drawn: Tensor) -> Tensor:
        return self.task.losses(self.model, *drawn)


def train(
    model: nn.Module,
    task: Task,
    batches: Batches,
    *,
    recipe: Recipe,
    folder: Path,
    processes: Processes = ALONE,
    checkpoint_every: int = 200,
    describe: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
    progress: Callable[[int, int, float], None] | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> list[dict[str, Any]]:
    """Train the model in place and return the log: one entry per epoch, with the results of the task's evaluation.

    folder: gets the log, the metrics and the checkpoint. A run with the same recipe and `describe` continues from them.
    checkpoint_every: steps between checkpoints; there is one at the end of each epoch too
    tensorboard: write the metrics for TensorBoard too
    progress: called with the finished steps, the total steps and the last loss
    notice: receives one line if the last checkpoint is damaged and the one before it is used

    With an average of weights (`recipe.ema`) that average is evaluated, and the model ends with it. The first signal
    (Ctrl-C, SIGTERM) ends the run after its step, with a checkpoint. Raise InputError if another process trains in
    `folder`, and DamagedFileError if both checkpoints or the log are damaged.
    """
    locked = lock_folder(folder) if processes.first else nullcontext()
    with locked, torch.random.fork_rng(devices=[]), stop_at_signals() as stop:
        if processes.first:
            for name in (CHECKPOINT, LOG):
                remove_unfinished(folder / name)
        steps, warmup = recipe.epochs * batches.steps, int(recipe.warmup * batches.steps)
        run = {**dataclasses.asdict(recipe), "steps": batches.steps, **(describe or {})}
        take_step = Stepper(model, recipe, task, processes=processes)
        state = State(model=model, optimizer=take_step.optimizer, average=take_step.average, processes=processes)
        start = load_checkpoint(folder / CHECKPOINT, state, run=run, notice=notice) or Progress()
        log = _log_until(folder, start.epoch)
        metrics = Metrics(folder, step=start.step, tensorboard=tensorboard) if processes.first else None
        start_time, step, loss_sum = time.perf_counter() - start.seconds, start.step, start.loss_sum
        rows, stream = processes.rows(batches.batch_size) if processes.count > 1 else slice(None), None
        while step < steps:
            epoch, index = divmod(step, batches.steps)
            if stream is None:
                stream = batches.epoch(epoch, start=index, rows=rows)
            inputs, targets = next(stream)
            rate = learning_rate(recipe, step, steps=steps, warmup=warmup)
            loss = take_step(inputs, targets, learning_rate=rate, step=step)
            step, loss_sum = step + 1, loss_sum + loss
            if not math.isfinite(loss):
                raise DivergedError(f"the loss is {loss} at step {step}; use a lower learning rate")
            if progress is not None:
                progress(step, steps, loss)
            if metrics is not None:
                metrics.add_step(step, loss=loss, learning_rate=rate)
            seconds = time.perf_counter() - start_time
            ended = step % batches.steps == 0
            if ended:
                with take_step.average.applied() if take_step.average is not None else nullcontext():
                    results = task.evaluate(model)
                entry = {"epoch": epoch + 1, "step": step, "loss": loss_sum / batches.steps, **results}
                log.append({**entry, "seconds": round(seconds, 1)})
                if metrics is not None:
                    write_lines(folder / LOG, log)
                    metrics.add_epoch(step, results)
                start_time, loss_sum, stream, seconds = time.perf_counter(), 0.0, None, 0.0
            stopping = processes.any(stop.requested, device=take_step.device)
            if ended or stopping or step % checkpoint_every == 0:
                now = Progress(step=step, epoch=step // batches.steps, loss_sum=loss_sum, seconds=seconds)
                save_checkpoint(folder / CHECKPOINT, state, now, run=run)
            if stopping:
                stop.deliver()
        if take_step.average is not None:
            take_step.average.apply()
        return log


class _Logged(TypedDict):
    """The numbers of every entry of a log."""

    epoch: int
    step: int
    loss: float
    seconds: float


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the log of a run; empty if it has not logged anything.

    Raise DamagedFileError if it does not match its checksum, and InputError if an entry is impossible.
    """
    path = folder / LOG
    if not path.exists():
        return []
    log: list[dict[str, Any]] = read_lines(path)
    read_record(list[_Logged], log, path, remedy="delete the folder to train again")
    for number, entry in enumerate(log, start=1):
        if entry["epoch"] != number:
            raise InputError(f"{path} has no entry for epoch {number}; delete the folder to train again")
        for name, value in entry.items():
            if name.endswith("accuracy") and not (type(value) in (int, float) and 0 <= value <= 1):
                raise InputError(f"{path} has {name} {value} at epoch {number}, outside 0 to 1; delete the folder")
    return log


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


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the optimizer with weight decay on matrices only, not on biases, norms, tokens and positions."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.betas[0])
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, betas=recipe.betas)


def _dropout_seed(seed: int, step: int, processes: Processes) -> int:
    """Return the seed of torch's own generator at a step, from which dropout and drop-path draw."""
    return (seed * SEED_STRIDE + step * processes.count + processes.rank) % 2**63

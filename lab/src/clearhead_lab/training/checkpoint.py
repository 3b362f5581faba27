"""The state of a training run on disk: weights, their average, optimizer state and position, in one safetensors file.

The file has a checksum and is replaced atomically, so a run that is killed while it writes finds the checkpoint before.
The checkpoint before the last one stays too, for a disk that damages the last. Tensors are whole and named by the
parameter, so that a run may continue on another number of processes.

The average is the exponential moving average of the weights (Polyak and Juditsky 1992; DeiT uses it).
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clearhead.errors import InputError
from clearhead.records import read_record
from clearhead.storage import DamagedFileError, parse_json, read_tensors, write_tensors
from clearhead_lab.training.distributed import ALONE, Processes, copy_into, whole_tensor


class WeightAverage:
    """The average of the weights over steps, with weight decay^k for the weights k steps ago.

    `torch.optim.swa_utils.AveragedModel` copies the whole module, which a module shared between processes refuses.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names, self._weights = [list(x) for x in zip(*model.named_parameters(), strict=True)]
        self.values: list[Tensor] = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights."""
        torch._foreach_lerp_(self.values, self._weights, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def apply(self) -> None:
        """Give the model the averaged weights."""
        for weight, value in zip(self._weights, self.values, strict=True):
            weight.copy_(value)

    @torch.no_grad()
    def _exchange(self) -> None:
        for weight, value in zip(self._weights, self.values, strict=True):
            kept = weight.detach().clone()
            weight.copy_(value)
            value.copy_(kept)


REMEDY = "delete it to train again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The position of a run: finished steps and epochs; loss sum and seconds of the current epoch."""

    step: int = 0
    epoch: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.step < self.epoch or self.seconds < 0:
            raise InputError(f"expected a position of at least 0; got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The contents of a checkpoint: model, optimizer and average of the weights, with the processes that share them."""

    model: nn.Module
    optimizer: Optimizer
    average: WeightAverage | None = None
    processes: Processes = ALONE


def save_checkpoint(path: Path, state: State, progress: Progress, *, run: dict[str, Any]) -> None:
    """Write the state, and keep the one before it. All processes call it, and the first writes.

    run: identifies the run; a run with other settings does not continue from this checkpoint
    """
    tensors = {name: whole_tensor(tensor) for name, tensor in _tensors(state)}
    if state.processes.first:
        metadata = {"progress": json.dumps(asdict(progress)), "run": json.dumps(run, sort_keys=True)}
        write_tensors(path, tensors, metadata=metadata, previous=_previous(path))


def load_checkpoint(path: Path, state: State, *, run: dict[str, Any], notice: Callable[[str], None]) -> Progress | None:
    """Load the state into model, optimizer and average. Return None, and change none, if there is no checkpoint.

    notice: receives one line if the last checkpoint does not match its checksum and the one before it is used

    Raise DamagedFileError if neither matches its checksum, and InputError if the checkpoint belongs to another run.
    """
    if not state.processes.first:
        state.processes.wait()  # the first may put the checkpoint before into place
    stored = _read(path, run=run, notice=notice)
    if state.processes.first:
        state.processes.wait()
    if stored is None:
        return None
    tensors, progress = stored
    _prepare(state, tensors)
    for name, tensor in _tensors(state):
        if name not in tensors or (tensors[name].shape, tensors[name].dtype) != (tensor.shape, tensor.dtype):
            raise InputError(f"{path} cannot be read: it has no {name} of this model; delete it to train again")
    for name, tensor in _tensors(state):
        copy_into(tensor, tensors[name])
    return progress


def _read(
    path: Path, *, run: dict[str, Any], notice: Callable[[str], None]
) -> tuple[dict[str, Tensor], Progress] | None:
    try:
        tensors, metadata = read_tensors(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        try:
            tensors, metadata = read_tensors(_previous(path))
        except (FileNotFoundError, DamagedFileError):
            raise DamagedFileError(f"cannot continue the training: {error}") from None
        _previous(path).replace(path)  # or the next checkpoint would keep the damaged one
        step = _progress(metadata, _previous(path)).step
        notice(f"{path} was damaged; continuing from the checkpoint before it, at step {step}")
    progress = _progress(metadata, path)
    stored = read_record(dict[str, Any], _json(metadata, "run", path), path, remedy=REMEDY)
    expected = json.loads(json.dumps(run))
    if stored != expected:
        different = sorted(name for name in {*stored, *expected} if stored.get(name) != expected.get(name))
        raise InputError(
            f"{path} belongs to a run with other settings ({', '.join(different)}); choose another folder, or delete it"
        )
    return tensors, progress


def _progress(metadata: dict[str, str], path: Path) -> Progress:
    return read_record(Progress, _json(metadata, "progress", path), path, remedy=REMEDY)


def _json(metadata: dict[str, str], name: str, path: Path) -> Any:
    return parse_json(metadata.get(name, "null").encode(), path)


def _tensors(state: State) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the state with its name in the file, in the same order in all processes."""
    for name, tensor in state.model.state_dict().items():
        yield f"model.{name}", tensor
    for name, parameter in state.model.named_parameters():
        for key, tensor in sorted(state.optimizer.state.get(parameter, {}).items()):
            if isinstance(tensor, Tensor):  # SGD has None before the first step
                yield f"optimizer.{name}.{key}", tensor
    if state.average is not None:
        for name, tensor in zip(state.average.names, state.average.values, strict=True):
            yield f"average.{name}", tensor


def _prepare(state: State, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer the entries that it makes at its first step, for `load_checkpoint` to fill."""
    for name, parameter in state.model.named_parameters():
        prefix = f"optimizer.{name}."
        for key in [key.removeprefix(prefix) for key in tensors if key.startswith(prefix)]:
            if "." in key:
                continue  # of a parameter whose name begins with this one
            like = tensors[prefix + key]
            state.optimizer.state[parameter][key] = torch.zeros_like(
                parameter.detach() if like.ndim or parameter.ndim == 0 else like, dtype=like.dtype
            )


def _previous(path: Path) -> Path:
    return path.with_name(f"previous-{path.name}")

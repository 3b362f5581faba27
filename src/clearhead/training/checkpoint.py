"""The state of a training run on disk: weights, optimizer state and position, in one safetensors file with a checksum.

It is one file and is replaced atomically, so a run that is killed while it writes finds the checkpoint before. The
checkpoint before the last one stays too, for a disk that damages the last.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from clearhead.errors import InputError
from clearhead.storage import DamagedFileError, read_tensors, write_tensors

__all__ = ["Progress", "load_checkpoint", "save_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The position of a run: finished steps and epochs; loss sum and seconds of the current epoch."""

    step: int = 0
    epoch: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, *, run: dict[str, Any]
) -> None:
    """Write the state, and keep the one before it.

    run: identifies the run; a run with other settings does not continue from this checkpoint
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
    metadata = {"progress": json.dumps(asdict(progress)), "run": json.dumps(run, sort_keys=True)}
    write_tensors(path, tensors, metadata=metadata, previous=_previous(path))


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, *, run: dict[str, Any], notice: Callable[[str], None]
) -> Progress | None:
    """Load the state into model and optimizer. Return None, and change neither, if there is no checkpoint.

    notice: receives one line if the last checkpoint does not match its checksum and the one before it is used

    Raise DamagedFileError if neither matches its checksum, and InputError if the checkpoint belongs to another run.
    """
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
        step = json.loads(metadata["progress"])["step"]
        notice(f"{path} was damaged; continuing from the checkpoint before it, at step {step}")
    stored, expected = json.loads(metadata["run"]), json.loads(json.dumps(run))
    if stored != expected:
        different = sorted(name for name in {*stored, *expected} if stored.get(name) != expected.get(name))
        raise InputError(
            f"{path} belongs to a run with other settings ({', '.join(different)}); choose another folder, or delete it"
        )
    model.load_state_dict(_with_prefix(tensors, "model."))
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _with_prefix(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        states.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    return Progress(**json.loads(metadata["progress"]))


def _previous(path: Path) -> Path:
    return path.with_name(f"previous-{path.name}")


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

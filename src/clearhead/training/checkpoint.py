"""Where a run stands, on disk: weights, the optimizer's memory and the step, without pickles.

One safetensors file holds all of it, so that a run that is killed while it writes finds the file before.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from clearhead.errors import InputError

__all__ = ["Progress", "load_checkpoint", "save_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is: steps done, epochs done, the sum of the losses and the seconds of the epoch under way."""

    step: int = 0
    epoch: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, *, run: dict[str, Any]
) -> None:
    """Write the state. `run` says which run it belongs to; another run will not continue it."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for place, memory in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": tensor for name, tensor in memory.items()}
    state = {name: getattr(progress, name) for name in Progress.__dataclass_fields__}
    started = path.with_name(f".{path.name}")
    save_file(
        {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()},
        started,
        metadata={"progress": json.dumps(state), "run": json.dumps(run, sort_keys=True)},
    )
    started.replace(path)


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, *, run: dict[str, Any]) -> Progress | None:
    """Put the state into model and optimizer; None, and both as they are, where there is no checkpoint."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        written, progress = json.loads(metadata["run"]), Progress(**json.loads(metadata["progress"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"cannot continue from {path}: {error}; delete it to begin again") from None
    wanted = json.loads(json.dumps(run))
    if written != wanted:
        differing = sorted(name for name in {*written, *wanted} if written.get(name) != wanted.get(name))
        raise InputError(
            f"{path} is of another run, of which {', '.join(differing)} differ; name another folder, or delete it"
        )
    model.load_state_dict(_part(tensors, "model."))
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer.").items():
        place, _, key = name.partition(".")
        memory.setdefault(int(place), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})
    return progress


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

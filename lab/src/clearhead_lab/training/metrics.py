"""The metrics of a run as it goes: one JSON line for every few steps, and TensorBoard on request."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.storage import WriteError

METRICS = "metrics.jsonl"
EVERY = 20
"""Steps between two lines."""


class Metrics:
    """Appends lines to metrics.jsonl. Lines after `step`, of a run that was killed, are removed first."""

    def __init__(self, folder: Path, *, step: int, tensorboard: bool = False) -> None:
        self._path, self._time = folder / METRICS, time.perf_counter()
        self._losses: list[float] = []
        kept = [line for line in _lines(self._path) if _step(line) <= step]
        self._path.write_text("".join(f"{line}\n" for line in kept))
        self._writer = _tensorboard(folder, step) if tensorboard else None

    def add_step(self, step: int, *, loss: float, learning_rate: float) -> None:
        """Add a step; every twentieth writes a line with the mean loss and the rate since the last."""
        self._losses.append(loss)
        if step % EVERY == 0:
            seconds = time.perf_counter() - self._time
            values = {
                "loss": sum(self._losses) / len(self._losses),
                "learning_rate": learning_rate,
                "steps_per_second": round(len(self._losses) / seconds, 3),
            }
            self._write(step, values)
            self._losses, self._time = [], time.perf_counter()

    def add_epoch(self, step: int, results: Mapping[str, Any]) -> None:
        """Write the results of an evaluation."""
        self._write(step, {name: value for name, value in results.items() if isinstance(value, int | float)})
        self._losses, self._time = [], time.perf_counter()

    def _write(self, step: int, values: Mapping[str, int | float]) -> None:
        try:
            with self._path.open("a") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        except OSError as error:
            raise WriteError(
                f"cannot write {self._path}: {error.strerror or error}; free space, and the same command continues"
            ) from None
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _step(line: str) -> float:
    """Return the step of a line; a line that was cut when the run was killed comes after every step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("TensorBoard is not installed; pip install 'clearhead-lab[train]'") from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

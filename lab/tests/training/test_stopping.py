"""Signals during a training: the first ends it after its step, with a checkpoint."""

import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead_lab.training.batches import TensorBatches
from clearhead_lab.training.loop import stop_at_signals, train
from clearhead_lab.training.metrics import METRICS, Metrics
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
RECIPE = Recipe(epochs=2, batch_size=2, warmup=0.0)


def _train(folder: Path, *, stop_at: int = 0, number: int = signal.SIGINT) -> tuple[list[int], nn.Module]:
    torch.manual_seed(0)
    model, steps = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), []

    def progress(step: int, total: int, loss: float) -> None:
        steps.append(step)
        if step == stop_at:
            signal.raise_signal(number)
            steps.append(-1)  # the step goes on

    images = torch.arange(40, dtype=torch.uint8).view(10, 1, 2, 2)
    batches = TensorBatches(images, torch.arange(10) % 2, batch_size=2, seed=0)
    try:
        train(model, Classification(RECIPE), batches, recipe=RECIPE, folder=folder, progress=progress)
    except (KeyboardInterrupt, TimeoutError):
        steps.append(-2)
    return steps, model


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_run_after_its_step_with_a_checkpoint(tmp_path: Path, number: int) -> None:
    def terminate(*_: object) -> None:
        raise TimeoutError

    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, terminate)
    try:
        steps, _ = _train(tmp_path / "stopped", stop_at=3, number=number)
        assert signal.getsignal(signal.SIGTERM) is terminate, "the handler is put back"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == [1, 2, 3, -1, -2]
    continued, model = _train(tmp_path / "stopped")
    assert continued == [4, 5, 6, 7, 8, 9, 10]
    _, whole = _train(tmp_path / "whole")
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), whole.parameters(), strict=True))


def test_a_second_signal_does_not_wait() -> None:
    with stop_at_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_other_threads_set_no_handlers() -> None:
    seen: list[bool] = []

    def work() -> None:
        with stop_at_signals() as stop:
            seen.append(stop.requested or bool(stop.handlers))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_metrics_after_the_checkpoint_are_removed(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 20, "loss": 1.0}\n{"step": 40, "loss": 0.5}\n{"step": 60, "lo')
    metrics = Metrics(tmp_path, step=30)
    assert path.read_text() == '{"step": 20, "loss": 1.0}\n'
    for step in range(31, 61):
        metrics.add_step(step, loss=float(step), learning_rate=0.1)
    lines = path.read_text().splitlines()
    assert '"step": 40, "loss": 35.5' in lines[1]
    assert '"step": 60, "loss": 50.5' in lines[2]
    metrics.add_epoch(60, {"accuracy": 0.5, "note": "text"})
    assert path.read_text().splitlines()[3] == '{"step": 60, "accuracy": 0.5}'


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, step=0, tensorboard=True)
    for step in range(1, 41):
        metrics.add_step(step, loss=float(step), learning_rate=0.1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(20, 10.5), (40, 30.5)]

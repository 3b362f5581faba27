"""Training with torch.compile: the losses and names of a training without it, also after an interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clearhead.numerics.precision import tolerance
from clearhead.storage import read_tensors
from clearhead_lab.models.native import load_native
from clearhead_lab.training.recipe_file import RecipeFile, read_recipe_file
from clearhead_lab.training.run import MODEL_FOLDER, prepare_run, run_recipe
from tests.once import once

RECIPE = """
task = "classification"
[data]
shift = 1
[model]
kind = "vision-transformer"
patch_size = 3
width = 10
layers = 3
heads = 2
mlp_width = 7
attention = ["softmax", "symmetric", {operator = "rpc", iterations = 2}]
[training]
epochs = 2
batch_size = 8
warmup = 0.5
optimizer = "sgd"
learning_rate = 0.1
label_smoothing = 0.1
mixup = 0.8
cutmix = 1.0
"""
STEPS = 6


class KilledError(Exception):
    pass


def _file(folder: Path, *changes: str) -> RecipeFile:
    path = folder / "tiny.toml"
    path.write_text(RECIPE)
    return read_recipe_file(str(path), changes)


def _data(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    path = folder / "images.npz"
    images = {name: rng.integers(0, 256, (n, 6, 6, 3), dtype=np.uint8) for name, n in (("x_train", 29), ("x_test", 11))}
    np.savez(path, **images, y_train=np.arange(29) % 5, y_test=np.arange(11) % 5)
    return path


@once
def test_a_compiled_training_has_the_losses_names_and_checkpoints_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, compiled = _data(tmp_path), []

    def compile_recorded(module: nn.Module, *, to: Callable[..., Any] = torch.compile) -> Any:
        compiled.append(module)
        # The default backend takes half a minute to compile C++. Draws are outside: a step is one graph.
        return to(module, fullgraph=True, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", compile_recorded)
    losses: list[float] = []

    def progress(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        if len(compiled) == 1 and step == 5:
            raise KilledError

    plain = run_recipe(_file(tmp_path), data, tmp_path / "plain", progress=progress)
    expected, losses = losses, []
    assert not compiled
    assert len(expected) == len(set(expected)) == STEPS
    file = _file(tmp_path, "training.compile=true")
    with pytest.raises(KilledError):
        run_recipe(file, data, tmp_path / "compiled", progress=progress)
    trained = run_recipe(file, data, tmp_path / "compiled", progress=progress)
    assert len(compiled) == 2
    assert losses[5:7] == losses[3:5], "from the checkpoint at the end of the first epoch, with the same bits"
    # Steps of SGD of this size do not amplify rounding errors; each step adds its own.
    close = STEPS * tolerance(torch.float32, terms=10)
    assert [*losses[:5], losses[7]] == pytest.approx(expected, rel=close)

    stored = [read_tensors(tmp_path / name / "checkpoint.safetensors")[0].keys() for name in ("plain", "compiled")]
    assert stored[0] == stored[1]
    models = [load_native(run.folder / MODEL_FOLDER).eval() for run in (plain, trained)]
    for name, weight in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], weight, rtol=close, atol=close)
    # The evaluation in the log is that of the model in the folder.
    again = prepare_run(_file(tmp_path), data).task.evaluate(models[1])
    assert {name: trained.log[-1][name] for name in again} == again

"""The training loop: it learns, it is a function of its recipe, and it continues where it was killed."""

import dataclasses
import errno
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.storage import DamagedFileError, WriteError, lock_folder, read_tensors, write_lines, write_tensors
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.batches import TensorBatches, random_changes
from clearhead_lab.training.evaluation import measure_accuracy
from clearhead_lab.training.loop import read_log, train
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification
from tests.faults.damage import DAMAGES, damage
from tests.once import once

CONFIG = VisionTransformerConfig(
    image_size=6, patch_size=3, channels=1, classes=2, width=10, layers=2, heads=5, mlp_width=11
)
RECIPE = Recipe(epochs=3, batch_size=7, learning_rate=5e-3, warmup=1.0, label_smoothing=0.1, seed=5)


class KilledError(Exception):
    pass


def _data(n: int = 37) -> tuple[Tensor, Tensor]:
    """Images that are bright on the left or on the right half."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (n,), generator=generator)
    images = torch.randint(0, 90, (n, 1, 6, 6), generator=generator, dtype=torch.uint8)
    for i, label in enumerate(labels):
        images[i, :, :, 3 * int(label) : 3 * int(label) + 3] += 150
    return images, labels


def _run(folder: Path, *, recipe: Recipe = RECIPE, die_at: int | None = None, **options: Any) -> VisionTransformer:
    images, labels = _data()
    model = VisionTransformer(CONFIG, generator=torch.Generator().manual_seed(3))

    def progress(step: int, steps: int, loss: float) -> None:
        if step == die_at:
            raise KilledError

    def evaluate(trained: nn.Module) -> dict[str, Any]:
        accuracy = measure_accuracy(trained, images, labels, batch_size=11)
        return {"right": accuracy.right, "weight": float(trained.head.weight.detach().double().square().sum())}

    augment = options.pop("augment", random_changes)
    batches = TensorBatches(images, labels, batch_size=recipe.batch_size, seed=recipe.seed, augment=augment)
    options = {"checkpoint_every": 2, "progress": progress, **options}
    train(model, Classification(recipe, evaluate), batches, recipe=recipe, folder=folder, **options)
    return model


def _facts(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in read_log(folder)]


def _same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one.parameters(), other.parameters(), strict=True))


@dataclasses.dataclass(frozen=True)
class Whole:
    """A run that was not killed, and its folder."""

    model: VisionTransformer
    folder: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    return Whole(_run(folder), folder)


# 5 steps to an epoch, a checkpoint at every even step: killed before the first, off one, on one, and as an epoch ends.
@pytest.mark.parametrize("die_at", [1, 4, 7, 10, 14])
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(tmp_path: Path, whole: Whole, die_at: int) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", die_at=die_at)
    steps: list[int] = []
    continued = _run(tmp_path / "killed", progress=lambda step, steps_, loss: steps.append(step))
    saved = max(step for step in (0, 2, 4, 5, 6, 8, 10, 12, 14) if step < die_at)
    assert steps == list(range(saved + 1, 16))
    assert _same(whole.model, continued)
    assert _facts(tmp_path / "killed") == _facts(whole.folder)


def test_control_a_run_without_its_optimizer_state_differs(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", die_at=8)
    monkeypatch.setattr("clearhead_lab.training.checkpoint._prepare", lambda state, tensors: None)
    assert not _same(whole.model, _run(tmp_path / "killed"))


def test_only_the_seed_is_random(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = _run(tmp_path / "a")
    torch.manual_seed(2)
    assert _same(first, _run(tmp_path / "b"))
    other = dataclasses.replace(RECIPE, seed=6)
    assert not _same(first, _run(tmp_path / "c", recipe=other))
    # The order of the images is random too.
    assert not _same(_run(tmp_path / "d", augment=None), _run(tmp_path / "e", augment=None, recipe=other))


@once
def test_training_reaches_the_possible_accuracy(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, epochs=30)
    _run(tmp_path, recipe=recipe, augment=None)
    log = read_log(tmp_path)
    assert [entry["epoch"] for entry in log] == list(range(1, 31))
    assert log[-1]["right"] == 37
    assert log[-1]["loss"] < log[0]["loss"]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    finished = _run(tmp_path)
    before = (tmp_path / "log.jsonl").read_text()

    def never(*_: Any) -> None:
        raise AssertionError

    again = _run(tmp_path, progress=never)
    assert _same(finished, again)
    assert (tmp_path / "log.jsonl").read_text() == before


def test_another_recipe_does_not_continue_the_run(tmp_path: Path) -> None:
    _run(tmp_path, describe={"sizes": (2, 3)})
    _run(tmp_path, describe={"sizes": (2, 3)})
    with pytest.raises(ValueError, match=r"run with other settings \(learning_rate, seed\); choose another folder"):
        _run(tmp_path, recipe=dataclasses.replace(RECIPE, seed=6, learning_rate=1.0), describe={"sizes": (2, 3)})
    with pytest.raises(ValueError, match=r"other settings \(sizes\)"):
        _run(tmp_path, describe={"sizes": (2, 5)})


CHECKPOINTS = ("checkpoint.safetensors", "previous-checkpoint.safetensors")


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("files", [CHECKPOINTS, ("log.jsonl",)], ids=["checkpoints", "log"])
def test_damaged_files_are_not_used(tmp_path: Path, whole: Whole, files: Sequence[str], kind: str) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    intact = {file: (tmp_path / "run" / file).read_bytes() for file in files}
    for seed in range(10):
        for file in files:
            (tmp_path / "run" / file).write_bytes(intact[file])
            damage(tmp_path / "run" / file, kind, seed)
        with pytest.raises(DamagedFileError, match="damaged"):
            _run(tmp_path / "run")
        if "log.jsonl" in files:
            with pytest.raises(DamagedFileError, match=r"log.jsonl does not match its checksum"):
                read_log(tmp_path / "run")


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_replaced_by_the_one_before_it(tmp_path: Path, whole: Whole, kind: str) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    damage(tmp_path / "run" / CHECKPOINTS[0], kind, 0)
    notices: list[str] = []
    steps: list[int] = []
    continued = _run(tmp_path / "run", notice=notices.append, progress=lambda step, steps_, loss: steps.append(step))
    path = tmp_path / "run" / CHECKPOINTS[0]
    assert notices == [f"{path} was damaged; continuing from the checkpoint before it, at step 14"]
    assert steps == [15]
    assert _same(whole.model, continued)
    assert _facts(tmp_path / "run") == _facts(whole.folder)
    # Both are intact again.
    path.unlink()
    path.with_name(CHECKPOINTS[1]).rename(path)
    assert _same(whole.model, _run(tmp_path / "run", notice=notices.append))
    assert len(notices) == 1


def test_the_previous_checkpoint_is_a_copy_where_a_file_has_one_name(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    _run(tmp_path)
    copied, linked = (read_tensors(folder / CHECKPOINTS[1])[0] for folder in (tmp_path, whole.folder))
    assert copied.keys() == linked.keys()
    assert all(torch.equal(copied[name], linked[name]) for name in linked)


def test_a_deleted_checkpoint_starts_the_run_again(tmp_path: Path, whole: Whole) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    (tmp_path / "run" / CHECKPOINTS[0]).unlink()
    steps: list[int] = []
    _run(tmp_path / "run", progress=lambda step, steps_, loss: steps.append(step))
    assert steps[0] == 1


def test_a_training_that_goes_on_counts_the_seconds_before(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "run", die_at=4)
    path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, metadata = read_tensors(path)
    progress = {**json.loads(metadata["progress"]), "seconds": 1000.0}
    write_tensors(path, tensors, metadata={**metadata, "progress": json.dumps(progress)})
    _run(tmp_path / "run")
    first, *others = read_log(tmp_path / "run")
    assert first["seconds"] >= 1000
    assert all(entry["seconds"] < 1000 for entry in others)


LOGGED = {"step": 1, "loss": 0.5, "seconds": 0.1}


def test_a_log_that_cannot_be_true_is_refused(tmp_path: Path) -> None:
    first, second = {**LOGGED, "epoch": 1, "test accuracy": 0.7}, {**LOGGED, "epoch": 2}
    wrong: list[tuple[Any, str]] = [
        ({**second, "test accuracy": 7.2556}, r"test accuracy 7.2556 at epoch 2, outside 0 to 1"),
        ({**second, "test accuracy": True}, r"test accuracy True at epoch 2, outside 0 to 1"),
        ({**second, "epoch": 3}, "no entry for epoch 2"),
        ({**second, "seconds": "1"}, r"1.seconds is '1', expected a number"),
        ({"epoch": 2}, "1.step is missing"),
    ]
    for entry, message in wrong:
        write_lines(tmp_path / "log.jsonl", [first, entry])
        with pytest.raises(InputError, match=message):
            read_log(tmp_path)


def test_a_checkpoint_without_its_log_is_refused(tmp_path: Path, whole: Whole) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").unlink()
    with pytest.raises(InputError, match=r"log.jsonl has 0 epochs, but checkpoint.safetensors is at epoch 3"):
        _run(tmp_path / "run")


def test_what_is_logged_after_the_checkpoint_is_logged_again(tmp_path: Path, whole: Whole) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", die_at=12)
    write_lines(tmp_path / "killed" / "log.jsonl", [*read_log(tmp_path / "killed"), {**LOGGED, "epoch": 3}])
    seen: list[int] = []

    def progress(*_: Any) -> None:
        seen.append(len(read_log(tmp_path / "killed")))

    assert _same(whole.model, _run(tmp_path / "killed", progress=progress))
    assert seen[0] == 2
    assert _facts(tmp_path / "killed") == _facts(whole.folder)


def test_the_log_is_replaced_and_never_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the end of an epoch leaves log and checkpoint as they were."""
    with pytest.raises(KilledError):
        _run(tmp_path, die_at=12)
    before = {name: (tmp_path / name).read_bytes() for name in ("log.jsonl", *CHECKPOINTS)}

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"cannot write .*: No space left on device; free space"):
        _run(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert {path.name for path in tmp_path.iterdir()} == {*before, "metrics.jsonl"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    unfinished = tmp_path / ".checkpoint.safetensors.4711"
    unfinished.write_bytes(b"of a writer that runs, or that was killed")
    with lock_folder(tmp_path), pytest.raises(InputError, match="is in use by another run"):
        _run(tmp_path)
    assert unfinished.exists()
    others = [tmp_path / name for name in (".checkpoint.safetensors.mine", "checkpoint.safetensors.4711")]
    for path in others:
        path.touch()
    _run(tmp_path)
    assert not unfinished.exists()
    assert all(path.exists() for path in others)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+; use a lower learning rate"):
        _run(tmp_path, recipe=dataclasses.replace(RECIPE, learning_rate=1e30, epochs=9, clip=1e30))


@pytest.mark.parametrize(("field", "value"), [("epochs", 0), ("batch_size", 0), ("warmup", 3.0), ("warmup", -1.0)])
def test_invalid_recipes_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"expected (a warmup|epochs and batch_size) of at least"):
        dataclasses.replace(RECIPE, **{field: value})


def test_the_average_is_evaluated_saved_and_returned(tmp_path: Path) -> None:
    averaged = dataclasses.replace(RECIPE, ema=0.9)
    images, labels = _data()
    plain, model = _run(tmp_path / "plain"), _run(tmp_path / "averaged", recipe=averaged)
    assert not _same(plain, model)
    last = _facts(tmp_path / "averaged")[-1]
    assert last["right"] == measure_accuracy(model, images, labels).right
    assert last["weight"] == float(model.head.weight.detach().double().square().sum())
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", recipe=averaged, die_at=9)
    assert _same(model, _run(tmp_path / "killed", recipe=averaged))
    # The training itself does not see the average.
    stored = [read_tensors(tmp_path / name / CHECKPOINTS[0])[0] for name in ("plain", "averaged")]
    names = [name for name in stored[0] if name.startswith("model.")]
    assert all(torch.equal(stored[0][name], stored[1][name]) for name in names)
    assert [entry["loss"] for entry in _facts(tmp_path / "averaged")] == [e["loss"] for e in _facts(tmp_path / "plain")]


def test_dropout_is_a_function_of_seed_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "CONFIG", dataclasses.replace(CONFIG, drop_path=0.5))
    draws: list[float] = []

    def progress(*_: Any) -> None:
        draws.append(float(torch.rand(())))  # continues the generator from which the step drew

    torch.manual_seed(4)
    VisionTransformer(CONFIG, generator=torch.Generator())
    before = torch.random.get_rng_state()
    torch.manual_seed(4)
    whole = _run(tmp_path / "whole", progress=progress)
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's generator is as it was"
    assert len(set(draws)) == len(draws) == 15
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", die_at=9)
    torch.manual_seed(5)
    assert _same(whole, _run(tmp_path / "killed"))

"""The training loop: it learns, it is a function of its recipe, and it continues where it was killed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead.training.augmentation import shifted_and_mirrored
from clearhead.training.evaluation import measure_accuracy
from clearhead.training.loop import Recipe, read_log, train
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
        return {"right": accuracy.right}

    train(model, images, labels, recipe=recipe, folder=folder, evaluate=evaluate,
          **{"augment": shifted_and_mirrored, "checkpoint_every": 2, "progress": progress, **options})  # fmt: skip
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


def test_a_run_that_lost_its_optimizer_would_show(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", die_at=8)
    monkeypatch.setattr(torch.optim.AdamW, "load_state_dict", lambda self, state: None)
    assert not _same(whole.model, _run(tmp_path / "killed"))


def test_the_seed_and_nothing_else_is_chance(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = _run(tmp_path / "a")
    torch.manual_seed(2)
    assert _same(first, _run(tmp_path / "b"))
    other = dataclasses.replace(RECIPE, seed=6)
    assert not _same(first, _run(tmp_path / "c", recipe=other))
    # The order of the images is chance too.
    assert not _same(_run(tmp_path / "d", augment=None), _run(tmp_path / "e", augment=None, recipe=other))


@once
def test_it_learns_what_can_be_learned(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match="of another run, of which learning_rate, seed differ; name another folder"):
        _run(tmp_path, recipe=dataclasses.replace(RECIPE, seed=6, learning_rate=1.0), describe={"sizes": (2, 3)})
    with pytest.raises(ValueError, match="of which sizes differ"):
        _run(tmp_path, describe={"sizes": (2, 5)})


def test_a_broken_checkpoint_is_said_in_one_line(tmp_path: Path) -> None:
    _run(tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"cannot continue from .*checkpoint.safetensors: .*; delete it to begin"):
        _run(tmp_path)


def test_a_half_written_log_line_is_dropped(tmp_path: Path, whole: Whole) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "killed", die_at=12)
    with (tmp_path / "killed" / "log.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    assert _same(whole.model, _run(tmp_path / "killed"))
    lines = (tmp_path / "killed" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+; take a lower learning rate"):
        _run(tmp_path, recipe=dataclasses.replace(RECIPE, learning_rate=1e30, epochs=9, clip=1e30))


@pytest.mark.parametrize(("field", "value"), [("epochs", 0), ("batch_size", 0), ("warmup", 3.0), ("warmup", -1.0)])
def test_recipes_that_are_none(field: str, value: float) -> None:
    with pytest.raises(ValueError, match="expected a"):
        dataclasses.replace(RECIPE, **{field: value})

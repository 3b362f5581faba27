"""Times of steps: every variant once a round, ratios within rounds, and stored times."""

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch

from clearhead.operators.named import Symmetric
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.robustness import step_time
from clearhead_lab.experiments.robustness.step_time import (
    StepTimes,
    load_step_times,
    measure_step_times,
    store_step_times,
)
from clearhead_lab.models.vit import VisionTransformerConfig
from clearhead_lab.training.loop import Stepper
from clearhead_lab.training.recipe import Recipe

CONFIG = VisionTransformerConfig(
    image_size=6, patch_size=3, channels=1, classes=3, width=10, layers=2, heads=5, mlp_width=7
)
CONFIGS = {"plain": CONFIG, "other": dataclasses.replace(CONFIG, attention=Symmetric())}
RECIPE = Recipe(epochs=1, batch_size=11, warmup=0.0)


def test_a_ratio_is_taken_within_its_round() -> None:
    # The machine is ten times as slow in the second round; `other` takes two or three times as long.
    times = StepTimes(key={}, seconds={"plain": (1.0, 10.0, 1.0, 1.0), "other": (2.0, 20.0, 3.0, 2.0)})
    ratio = times.ratio("other", to="plain")
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.25)
    assert times.ratio("plain", to="plain").high == 1


def test_every_round_takes_one_real_step_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, float, int]] = []
    real = Stepper.__call__

    def counted(self: Stepper, *args: torch.Tensor, learning_rate: float) -> float:
        loss = real(self, *args, learning_rate=learning_rate)
        taken.append((id(self), loss, torch.get_num_threads()))
        return loss

    monkeypatch.setattr(Stepper, "__call__", counted)
    reported: list[tuple[int, int]] = []
    torch.set_num_threads(2)
    try:
        times = measure_step_times(
            CONFIGS, RECIPE, rounds=5, progress=lambda done, total: reported.append((done, total))
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert reported == [(n, 7) for n in range(1, 8)]
    rounds = [{stepper for stepper, *_ in taken[i : i + 2]} for i in range(0, 14, 2)]
    assert all(len(steppers) == 2 for steppers in rounds)
    assert len({taken[i][0] for i in range(0, 14, 2)}) == 2  # not always the same one first
    assert {threads for *_, threads in taken} == {1}
    assert {name: len(seconds) for name, seconds in times.seconds.items()} == {"plain": 5, "other": 5}
    assert all(second > 0 for seconds in times.seconds.values() for second in seconds)
    losses = [loss for stepper, loss, _ in taken if stepper == taken[0][0]]
    assert losses[-1] < losses[0]


def test_warm_up_rounds_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)) ** 2)
    times = measure_step_times({"plain": CONFIG}, RECIPE, rounds=3)
    first = 2 * step_time.WARM_UP
    assert times.seconds["plain"] == tuple(float((n + 1) ** 2 - n**2) for n in (first, first + 2, first + 4))


def test_stored_times_are_for_the_same_models(tmp_path: Path) -> None:
    notices: list[str] = []
    request = Request(out=tmp_path, notice=notices.append)

    def load(configs: dict[str, VisionTransformerConfig] = CONFIGS, recipe: Recipe = RECIPE, rounds: int = 2) -> object:
        return load_step_times(tmp_path, configs, recipe, rounds=rounds, request=request)

    assert load() is None
    times = measure_step_times(CONFIGS, RECIPE, rounds=2)
    store_step_times(tmp_path, times)
    assert load() == times
    normalised = {name: dataclasses.replace(config, pixel_mean=(0.1,)) for name, config in CONFIGS.items()}
    assert load(normalised) == times
    wider = {name: dataclasses.replace(config, mlp_width=13) for name, config in CONFIGS.items()}
    assert load(wider) is None
    assert load(recipe=dataclasses.replace(RECIPE, batch_size=13)) is None
    assert load(rounds=3) is None
    assert notices == []
    for damaged in ("{", "[]", json.dumps({"key": times.key})):
        (tmp_path / step_time.TIMES).write_text(damaged)
        assert load() is None
    assert len(notices) == 3

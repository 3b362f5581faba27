"""Table 13: sizes, times and memory of variants."""

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead.stored_json import read_json
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import cost, measured_cost
from clearhead_lab.experiments.kernel_pca.cost import COST, Costs, ratio
from clearhead_lab.experiments.kernel_pca.measured_cost import (
    WARM_UP,
    forward_seconds,
    peak_bytes,
    peak_memory,
    step_seconds,
)
from clearhead_lab.models.catalogue import ModelSize, measure_size
from clearhead_lab.models.transformer_block import config_as_json
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.loop import Stepper
from clearhead_lab.training.recipe import Recipe

CONFIG = VisionTransformerConfig(
    image_size=8, patch_size=2, channels=1, classes=3, width=8, layers=2, heads=2, mlp_width=16
)


def test_peak_memory_counts_tensors_while_they_exist() -> None:
    x, y = torch.ones(1000), torch.ones(3, 1000)

    def chain() -> None:
        for _ in range(4):
            (x + 1).exp()

    assert peak_bytes(chain) == 2 * 4000  # x + 1 and its exponential; those of the round before are gone
    assert peak_bytes(lambda: x.add_(1)) == 0
    assert peak_bytes(lambda: y[1].view(10, 100)) == 0
    assert peak_bytes(lambda: [x + 1, x + 2, y + 1]) == 5 * 4000


def test_peak_memory_sees_the_backward_pass() -> None:
    weight, x = nn.Parameter(torch.ones(50, 20)), torch.ones(7, 20)

    def step() -> None:
        (x @ weight.T).sum().backward()
        weight.grad = None

    gradient = 4 * 50 * 20
    with torch.no_grad():
        assert peak_bytes(lambda: torch.sum(x @ weight.T)) == 4 * (7 * 50 + 1)
    assert gradient <= peak_bytes(step) < 2 * gradient


def test_a_training_step_needs_more_memory_than_inference_and_twice_the_images_more() -> None:
    models = {"plain": config_as_json(CONFIG)}
    one, two = (peak_memory(models=models, batch_size=size)["plain"] for size in (4, 8))
    assert one["training"] > 2 * one["inference"]
    assert two["inference"] == pytest.approx(2 * one["inference"], rel=0.1)


def test_forward_passes_are_timed_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    real = VisionTransformer.forward

    def forward(self: nn.Module, images: torch.Tensor) -> torch.Tensor:
        modes.append((self.training, torch.is_grad_enabled(), len(images)))
        return real(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(VisionTransformer, "forward", forward)
    seconds = forward_seconds(models={"a": config_as_json(CONFIG), "b": config_as_json(CONFIG)}, batch_size=3, rounds=2)
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert modes == [(False, False, 3)] * 2 * (2 + WARM_UP)


def test_every_round_takes_one_real_step_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, float, int]] = []
    real = Stepper.__call__

    def counted(self: Stepper, *args: torch.Tensor, learning_rate: float) -> float:
        loss = real(self, *args, learning_rate=learning_rate)
        taken.append((id(self), loss, torch.get_num_threads()))
        return loss

    monkeypatch.setattr(Stepper, "__call__", counted)
    models = {"plain": config_as_json(CONFIG), "other": config_as_json(CONFIG)}
    recipe = json.loads(json.dumps(dataclasses.asdict(Recipe(epochs=1, batch_size=11))))
    torch.set_num_threads(2)
    try:
        seconds = step_seconds(models=models, recipe=recipe, rounds=5)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    rounds = [{stepper for stepper, *_ in taken[i : i + 2]} for i in range(0, 14, 2)]
    assert all(len(steppers) == 2 for steppers in rounds)
    assert len({taken[i][0] for i in range(0, 14, 2)}) == 2  # not always the same one first
    assert {threads for *_, threads in taken} == {1}
    assert {name: len(each) for name, each in seconds.items()} == {"plain": 5, "other": 5}
    losses = [loss for stepper, loss, _ in taken if stepper == taken[0][0]]
    assert losses[-1] < losses[0]


def test_warm_up_rounds_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)) ** 2)
    seconds = measured_cost.interleave({"plain": lambda: None}, rounds=3)
    first = 2 * WARM_UP
    assert seconds == {"plain": [float((n + 1) ** 2 - n**2) for n in (first, first + 2, first + 4)]}


def test_a_ratio_is_taken_within_its_round() -> None:
    # The machine is ten times as slow in the second round; `other` takes two or three times as long.
    seconds = {"plain": (1.0, 10.0, 1.0, 1.0), "other": (2.0, 20.0, 3.0, 2.0)}
    found = ratio(seconds, "other", to="plain")
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.25)
    assert ratio(seconds, "plain", to="plain").high == 1


def _costs(title: str, forward: dict[str, tuple[float, ...]], *, steps: bool) -> Costs:
    return Costs(
        title=title,
        sizes={name: ModelSize(parameters=1000, multiply_adds=2_000_000) for name in forward},
        forward=forward,
        memory={name: {"training": 3_000_000, "inference": 1_000_000} for name in forward},
        steps=forward if steps else None,
    )


def test_the_report_compares_rpc_with_both_baselines(tmp_path: Path) -> None:
    seconds = {"softmax": (1.0, 10.0), "symmetric": (0.5, 5.0), "RPC, all layers": (0.75, 7.5)}
    results = [
        _costs("Small ViT, 65 tokens", seconds, steps=True),
        _costs("DeiT-tiny, 197 tokens", seconds, steps=False),
    ]
    report = COST.report(results, Request(out=tmp_path))
    assert "1.50 times that of symmetric attention and 0.75 times that of softmax attention" in report.headline
    small, deit = (table for _, table in report.sections if not isinstance(table, str))
    assert [field.title for field in small if "step" in field.title] == ["training step"]
    assert not [field for field in deit if "step" in field.title]
    by_title = {field.title: list(field.cells) for field in deit}
    assert by_title["forward pass"] == ["1.00 [1.00, 1.00]", "0.50 [0.50, 0.50]", "0.75 [0.75, 0.75]"]
    assert by_title["forward pass relative to symmetric"][2] == "1.50 [1.50, 1.50]"
    assert by_title["memory, training"] == ["3 MB"] * 3
    assert [heading for heading, _ in report.sections][::3] == ["Claimed", "Why they differ"]
    figure = report.figures["cost.svg"]()
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == [
        "Training step, Small ViT, 65 tokens", "Forward pass, Small ViT, 65 tokens",
        "Forward pass, DeiT-tiny, 197 tokens",
    ]  # fmt: skip


def test_variants_are_measured_once_with_their_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    variants = {name: cost.STUDY.variants[name] for name in ("softmax", "symmetric", "RPC, all layers")}
    monkeypatch.setattr(cost, "STUDY", dataclasses.replace(cost.STUDY, variants=variants))

    def forward(*, models: dict[str, object], batch_size: int, rounds: int) -> dict[str, list[float]]:
        calls.append(("forward", batch_size))
        return {name: [1.0] * rounds for name in models}

    def memory(*, models: dict[str, object], batch_size: int) -> dict[str, dict[str, int]]:
        calls.append(("memory", batch_size))
        return {name: {"training": 2, "inference": 1} for name in models}

    def steps(*, models: dict[str, object], recipe: dict[str, int], rounds: int) -> dict[str, list[float]]:
        calls.append(("steps", recipe["batch_size"]))
        return {name: [1.0] * rounds for name in models}

    for name, function in (("forward_seconds", forward), ("peak_memory", memory), ("step_seconds", steps)):
        monkeypatch.setattr(cost, name, function)
    COST.run(Request(out=tmp_path))
    COST.measure(Request(out=tmp_path, scale="paper"), tmp_path / "paper-cost")
    assert calls == [
        ("forward", 2), ("memory", 2), ("forward", 64), ("memory", 64), ("steps", 64), ("steps", 16),
    ]  # fmt: skip
    facts = read_json(tmp_path / "paper-cost" / "result.json")["facts"]
    sizes = {name: facts[name]["sizes"] for name in ("Small ViT, 65 tokens", "DeiT-tiny, 197 tokens")}
    named = {"softmax": "deit-tiny", "symmetric": "deit-tiny-symmetric", "RPC, all layers": "deit-tiny-rpc-all"}
    for variant, name in named.items():
        size = measure_size(name)
        assert sizes["DeiT-tiny, 197 tokens"][variant] == {
            "parameters": size.parameters, "multiply_adds": size.multiply_adds,
        }  # fmt: skip
    small = sizes["Small ViT, 65 tokens"]
    assert small["softmax"]["parameters"] - small["symmetric"]["parameters"] == 4 * (64 * 64 + 64)
    assert small["RPC, all layers"]["multiply_adds"] > small["symmetric"]["multiply_adds"]


def test_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    outcome = COST.run(Request(out=tmp_path, scale="paper", dry_run=True))
    assert outcome.headline.startswith("dry run: 7 variants")
    assert not (tmp_path / "paper-cost" / "measured").exists()

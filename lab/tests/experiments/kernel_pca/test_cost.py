"""Table 13: sizes, times and memory of variants."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead.stored_json import read_json
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import cost
from clearhead_lab.experiments.kernel_pca.cost import COST, Costs, forward_seconds, peak_bytes, peak_memory
from clearhead_lab.experiments.robustness import step_time
from clearhead_lab.experiments.robustness.step_time import StepTimes
from clearhead_lab.experiments.study import SOFTMAX
from clearhead_lab.models.catalogue import ModelSize, measure_size
from clearhead_lab.models.transformer_block import config_as_json
from clearhead_lab.models.vit import VisionTransformerConfig

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
    real = cost.VisionTransformer.forward

    def forward(self: nn.Module, images: torch.Tensor) -> torch.Tensor:
        modes.append((self.training, torch.is_grad_enabled(), len(images)))
        return real(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(cost.VisionTransformer, "forward", forward)
    seconds = forward_seconds(models={"a": config_as_json(CONFIG), "b": config_as_json(CONFIG)}, batch_size=3, rounds=2)
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert modes == [(False, False, 3)] * 2 * (2 + step_time.WARM_UP)


def _costs(title: str, forward: dict[str, tuple[float, ...]], *, steps: bool) -> Costs:
    times = StepTimes(key={}, seconds=forward)
    return Costs(
        title=title,
        sizes={name: ModelSize(parameters=1000, multiply_adds=2_000_000) for name in forward},
        forward=times,
        memory={name: {"training": 3_000_000, "inference": 1_000_000} for name in forward},
        steps=times if steps else None,
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

    def steps(configs: dict[str, object], *args: object) -> StepTimes:
        return StepTimes(key={}, seconds=dict.fromkeys(configs, (1.0,)))

    for name, function in (("forward_seconds", forward), ("peak_memory", memory), ("_step_times", steps)):
        monkeypatch.setattr(cost, name, function)
    COST.run(Request(out=tmp_path))
    COST.measure(Request(out=tmp_path, scale="paper"), tmp_path / "paper-cost")
    assert calls == [("forward", 2), ("memory", 2), ("forward", 64), ("memory", 64)]
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


def test_a_dry_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "STUDY", dataclasses.replace(cost.STUDY, variants=SOFTMAX))
    outcome = COST.run(Request(out=tmp_path, scale="paper", dry_run=True))
    assert outcome.headline.startswith("dry run: 1 variants")
    assert not (tmp_path / "paper-cost" / "measured").exists()

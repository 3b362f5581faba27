"""Studies of attention variants: their recipes at both scales, their runs, tables and dry runs."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearhead.errors import InputError
from clearhead.operators.named import RPC, ClampedKeys, Scaled, Softmax, Symmetric
from clearhead.report.tables import Table
from clearhead_lab.experiments import study
from clearhead_lab.experiments.estimates import Floor
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import classification, scaled_training
from clearhead_lab.experiments.study import Study, compared, measured_table, train_study, variants_named
from clearhead_lab.training.evaluation import measure_accuracy
from clearhead_lab.training.loop import DivergedError
from clearhead_lab.training.recipe_file import layer_operators

TINY = """
task = "classification"
[data]
take = 8
rows = 8
[model]
kind = "vision-transformer"
patch_size = 2
width = 4
layers = 2
heads = 2
mlp_width = 3
[training]
epochs = 2
batch_size = 4
warmup = 0.5
"""


CHANCE = Floor(measure="x", value=0.1, name="chance")


def _cells(table: Table) -> dict[str, list[str]]:
    return {field.title: list(field.cells) for field in table}


def test_variants_are_the_papers() -> None:
    operators = {name: layer_operators(changes["attention"], layers=2) for name, changes in study.VARIANTS.items()}
    assert operators.pop("scaled") == (Scaled(), Scaled())
    assert operators == {
        "softmax": (Softmax(), Softmax()),
        "symmetric": (Symmetric(), Symmetric()),
        "clamped keys": (ClampedKeys(strength=4.0), Symmetric()),
        "RPC, layer 0": (RPC(iterations=4, strength=4.0), Symmetric()),
        "RPC, all layers": (RPC(iterations=2, strength=3.0),) * 2,
        "asymmetric RPC, layer 0": (RPC(iterations=4, strength=4.0, queries="given"), Softmax()),
    }
    assert list(study.variants_named("symmetric", "softmax")) == ["symmetric", "softmax"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """Return a request for tiny data, with both studies on a tiny recipe."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        x_train=rng.integers(0, 256, (12, 4, 4, 3), dtype=np.uint8), y_train=np.arange(12) % 2,
        x_test=rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8), y_test=np.arange(6) % 2,
    )  # fmt: skip
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    for module in (classification, scaled_training):
        monkeypatch.setattr(module, "STUDY", dataclasses.replace(module.STUDY, small=str(recipe), seeds=2))
    return Request(out=tmp_path / "out", data=tmp_path / "images.npz", inputs=5)


def test_the_study_of_scaled_attention_writes_its_page_and_continues(tiny: Request) -> None:
    outcome = scaled_training.SCALED_TRAINING.run(tiny)
    page = (tiny.out / "paper-scaled-attention" / "table.md").read_text()
    for heading in ("## Claimed", "73.02", "## Measured", "## Differences from softmax", "## Why they differ"):
        assert heading in page
    assert "| scaled |" in page
    logs = outcome.facts["logs"]
    assert set(logs) == {f"{variant}, seed {seed}" for variant in ("softmax", "scaled") for seed in (0, 1)}
    assert all(len(log) == 2 and math.isfinite(log[-1]["test_loss"]) for log in logs.values())
    assert scaled_training.SCALED_TRAINING.run(tiny).facts["logs"] == logs
    assert (tiny.out / "paper-scaled-attention" / "training.svg").exists()


def test_studies_of_one_recipe_share_their_runs(tiny: Request) -> None:
    runs = {run.folder: run for run in train_study(scaled_training.STUDY, tiny)}
    times = {folder: (folder / "log.jsonl").stat().st_mtime_ns for folder in runs}
    shared = [run for run in train_study(classification.STUDY, tiny) if run.folder in runs]
    assert [run.variant for run in shared] == ["softmax", "softmax"]
    assert all(run.log == runs[run.folder].log for run in shared)
    assert all((folder / "log.jsonl").stat().st_mtime_ns == time for folder, time in times.items())
    longer = train_study(scaled_training.STUDY, dataclasses.replace(tiny, epochs=1))
    assert not {run.folder for run in longer} & set(runs)


def test_the_study_of_classification_attacks_every_run(tiny: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "BUDGETS", (1, 3, 6))
    outcome = classification.CLASSIFICATION.run(tiny)
    measured = outcome.facts["measured"]
    assert set(measured) == set(classification.STUDY.variants)
    for seeds in measured.values():
        assert set(seeds) == {"0", "1"}
        for values in seeds.values():
            assert set(values) == {"clean", *(f"{attack} {n}/255" for attack in ("FGSM", "PGD") for n in (1, 3, 6))}
            assert all(0 <= value <= 1 for value in values.values())
    page = (tiny.out / "paper-classification" / "table.md").read_text()
    assert "| RPC, layer 0 |" in page
    assert "## Differences from symmetric attention" in page
    assert (tiny.out / "paper-classification" / "attacks.svg").exists()


def test_attacks_lower_the_accuracy_of_a_model_that_has_one(tiny: Request, tmp_path: Path) -> None:
    alone = Study(small=str(tmp_path / "tiny.toml"), paper="", variants=variants_named("softmax"), seeds=1)
    run = train_study(alone, dataclasses.replace(tiny, epochs=40))[0]
    stored = np.load(tmp_path / "images.npz")
    np.savez(
        tmp_path / "seen.npz", x_train=stored["x_train"], y_train=stored["y_train"],
        x_test=stored["x_train"][:8], y_test=stored["y_train"][:8],
    )  # fmt: skip
    results = classification.attacked_accuracy(
        folder=str(run.folder), data=str(tmp_path / "seen.npz"), images=8, steps=5, seed=0, loss=0.0
    )
    clean = measure_accuracy(run.model(), torch.from_numpy(stored["x_train"][:8]).permute(0, 3, 1, 2),
                             torch.from_numpy(stored["y_train"][:8])).value  # fmt: skip
    assert clean >= 0.75
    assert results["PGD 6/255"] <= results["PGD 1/255"] <= clean


def test_a_dry_run_needs_no_data_and_counts_the_iterations(tmp_path: Path) -> None:
    request = Request(out=tmp_path, scale="paper", dry_run=True)
    outcome = classification.CLASSIFICATION.run(request)
    page = (tmp_path / "paper-classification" / "table.md").read_text()
    assert "| softmax | 5,717,416 | 1.25 G | 375,300 |" in page
    assert "| RPC, all layers | 5,272,744 | 1.35 G |" in page
    assert "GPU hours" in outcome.headline
    with pytest.raises(InputError, match=r"name the data with --data \(ImageNet-1K as folders"):
        classification.CLASSIFICATION.run(dataclasses.replace(request, dry_run=False))


def test_a_diverged_run_is_named_and_left_out(tiny: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    real, notices = study.run_recipe, []

    def fragile(file: Any, *arguments: Any, **options: Any) -> Any:
        if file.recipe.seed == 1:
            raise DivergedError("the loss is nan at step 3")
        return real(file, *arguments, **options)

    monkeypatch.setattr(study, "run_recipe", fragile)
    request = dataclasses.replace(tiny, notice=notices.append)
    runs = train_study(scaled_training.STUDY, request)
    assert [(run.variant, run.seed) for run in runs] == [("softmax", 0), ("scaled", 0)]
    assert notices == [f"{variant}, seed 1: the loss is nan at step 3" for variant in ("softmax", "scaled")]


def test_tables_have_means_and_paired_differences() -> None:
    measured = {
        "a": {0: {"x": 0.5}, 1: {"x": 0.7}, 2: {"x": 0.6}},
        "b": {0: {"x": 0.6}, 1: {"x": 0.8}, 2: {"x": 0.7001}},
    }
    folder = Path()
    runs = [study.StudyRun(variant=v, seed=0, folder=folder, log=(), parameters=7) for v in measured]
    table = _cells(measured_table(runs, measured, {"x": "accuracy"}, floor=CHANCE))
    assert table["variant"] == ["a", "b"]
    assert table["accuracy"][0].startswith(".600 ±")
    differences = _cells(compared(measured, {"x": "accuracy"}, baseline="a", floor=CHANCE))
    assert differences["difference from a"][0].startswith(".100 ±")
    assert differences["verdict"] == ["higher"]
    assert float(differences["detectable"][0]) < 0.001


def test_nothing_is_computed_from_a_variant_that_did_not_train() -> None:
    """The numbers of a withdrawn page: mean IoU of a Segmenter on Oxford Pets, majority class .328."""
    measured = {
        "softmax": {0: {"x": 0.740, "y": 0.67}, 1: {"x": 0.750, "y": 0.68}, 2: {"x": 0.743, "y": 0.69}},
        "symmetric": {0: {"x": 0.690, "y": 0.64}, 1: {"x": 0.328, "y": 0.33}, 2: {"x": 0.677, "y": 0.62}},
        "RPC": {0: {"x": 0.335, "y": 0.33}, 1: {"x": 0.328, "y": 0.33}, 2: {"x": 0.331, "y": 0.33}},
    }
    titles = {"x": "clean", "y": "corrupted"}
    majority = Floor(measure="x", value=0.328, name="the majority class")
    runs = [study.StudyRun(variant=v, seed=0, folder=Path(), log=(), parameters=7) for v in measured]
    table = _cells(measured_table(runs, measured, titles, floor=majority))
    assert table["clean"][1:] == [".565 ± .510, did not train", ".331 ± .009, did not train"]
    assert table["corrupted"] == [".680 ± .025", "did not train", "did not train"]

    differences = _cells(compared(measured, titles, baseline="symmetric", floor=majority))
    assert differences["variant"] == ["softmax", "RPC"]
    assert differences["verdict"] == ["symmetric did not train", "did not train"]
    assert {*differences["difference from symmetric"], *differences["adjusted p"]} == {"-"}

    lower = dataclasses.replace(majority, value=0.3)  # a control: all but the variant with a failed seed exceed it
    control = _cells(compared(measured, titles, baseline="softmax", floor=lower))
    assert list(zip(control["variant"], control["measure"], control["verdict"], strict=True)) == [
        ("RPC", "clean", "lower"), ("RPC", "corrupted", "lower"), ("symmetric", "-", "did not train"),
    ]  # fmt: skip


def test_differences_without_spread_have_neither_interval_nor_p_value() -> None:
    measured = {"a": {0: {"x": 0.5}, 1: {"x": 0.7}}, "b": {0: {"x": 0.4}, 1: {"x": 0.6}}}
    table = _cells(compared(measured, {"x": "accuracy"}, baseline="a", floor=Floor(measure="x", value=-9.0, name="")))
    cells = {title: cells[0] for title, cells in table.items()}
    assert (cells["difference from a"], cells["detectable"], cells["adjusted p"]) == ("-.100", "-", "-")
    assert cells["verdict"] == "spread unknown"


def test_equal_seeds_start_variants_from_equal_weights(tiny: Request, tmp_path: Path) -> None:
    from clearhead_lab.training.run import prepare_run

    assert tiny.data is not None
    pair = Study(small=str(tmp_path / "tiny.toml"), paper="", variants=variants_named("symmetric", "RPC, layer 0"))
    weights = [prepare_run(pair.recipe(tiny, v, 3), tiny.data).model.state_dict() for v in pair.variants]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

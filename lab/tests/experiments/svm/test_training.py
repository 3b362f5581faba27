"""Margins of heads during the training of a real model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.theories.max_margin.on_heads.choices import Sampling
from clearhead_lab.data.image_sets import digits
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.models.vision import DIGITS_STUDY
from clearhead_lab.experiments.svm import training as svm_training
from clearhead_lab.experiments.svm.training import TRAINING, measure_heads
from clearhead_lab.training.evaluation import as_pixels
from clearhead_lab.training.run import prepare_run

FILE = DIGITS_STUDY.recipe(Request(out=Path()), "softmax", 0)
HEADS = FILE.model["layers"] * FILE.model["heads"]
SMALL = Sampling(inputs=3, queries=2, tokens=5, random=3, rotated=0, replacements=0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svm_training, "SAMPLING", SMALL)
    monkeypatch.setattr(svm_training, "IMAGES", 6)
    monkeypatch.setattr(svm_training, "MEASURED", (1,))


def test_every_head_has_its_norm_and_numbers_and_the_model_is_unchanged() -> None:
    images = digits()
    model = prepare_run(FILE, images).model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    numbers = measure_heads(model, as_pixels(images.test_images[:6]), seed=0)
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    for measure in ("norm", "ratio", "random ratio", "cosine", "Hebbian cosine", "saturated", "held out"):
        assert len(numbers[measure]) == HEADS
        assert np.isfinite(numbers[measure]).all()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "attention" in name:
                weight.mul_(2)
    # W is a product of two of them.
    larger = measure_heads(model, as_pixels(images.test_images[:6]), seed=0)
    assert np.median(np.array(larger["norm"]) / np.array(numbers["norm"])) == pytest.approx(4, rel=0.05)


def test_a_run_measures_heads_at_some_epochs_and_is_not_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "svm-training"
    outcome = TRAINING.run(Request(out=tmp_path, epochs=3, seeds=2))
    logs = outcome.facts["logs"]
    assert [[entry["epoch"] for entry in log] for log in logs["no decay"]] == [[1, 3], [1, 3]]
    assert all(len(entry["cosine"]) == HEADS for entry in logs["decay .05"][0])
    table = (folder / "table.md").read_text()
    assert "Rank correlation with |W|" in table
    assert table.count("| no decay |") == 3
    assert (folder / "picture.svg").read_text().startswith("<?xml")
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint.safetensors")}
    again = TRAINING.run(Request(out=tmp_path, epochs=3, seeds=2))
    assert json.dumps(again.facts) == json.dumps(outcome.facts)
    assert {path: path.stat().st_mtime_ns for path in written} == written

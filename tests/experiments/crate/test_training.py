"""CRATE beside a vision transformer: the tables and curves of a run, and that nothing is measured twice."""

import dataclasses
from pathlib import Path

import pytest

from clearhead.experiments.crate import training as crate_training
from clearhead.experiments.crate.runs import VIT
from clearhead.experiments.experiment import Request
from clearhead.models.crate import Form
from tests.experiments.crate.test_runs import PLAN, drawn

SMALL = dataclasses.replace(PLAN, patch_size=2, forms=(Form.RELEASED,), seeds=2)


def test_a_run_shows_every_model_layer_by_layer_beside_itself_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(out=tmp_path, epochs=1, inputs=5)
    outcome = crate_training._run("crate/small", drawn(), SMALL, request, tmp_path)
    assert set(outcome.facts["accuracy"]) == {"CRATE, released", VIT}
    assert all(set(by_seed) == {"0", "1"} for by_seed in outcome.facts["accuracy"].values())
    page = (tmp_path / "table.md").read_text()
    assert page.count("before training") >= 4
    for words in (
        "## Accuracy",
        "rate change",
        "non-zero entries after the MLP",
        "±",
        "| CRATE, released: this model |",
        f"| {VIT}: the same model before training |",
    ):
        assert words in page
    drawing = (tmp_path / "picture.svg").read_text()
    assert drawing.count("the same model before training") == 1  # once in the legend of all charts
    assert drawing.count(f">{VIT}: ") == drawing.count(">CRATE, released: ") == 4

    def no_measurement(*args: object, **others: object) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr(crate_training, "audit", no_measurement)
    again = crate_training._run("crate/small", drawn(), SMALL, request, tmp_path)
    assert again.headline == outcome.headline
    with pytest.raises(AssertionError, match="it measures"):
        crate_training._run("crate/small", drawn(), SMALL, dataclasses.replace(request, inputs=6), tmp_path)

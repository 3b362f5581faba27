"""CRATE compared with a vision transformer: the tables and curves of a run, and the cache of its audits."""

import dataclasses
from pathlib import Path

import pytest

from clearhead_lab.experiments.crate import training
from clearhead_lab.experiments.crate.training import VIT, variants
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN
from clearhead_lab.experiments.experiment import Experiment, Request
from clearhead_lab.experiments.study import in_memory
from clearhead_lab.models.crate import Form
from clearhead_lab.training.recipe import Recipe
from lab.tests.experiments.test_training_runs import SIZES, STUDY, random_images

SMALL = dataclasses.replace(
    STUDY,
    small=in_memory(Recipe(epochs=2, batch_size=11, warmup=0.0), patch_size=2, layers=2, heads=2),
    variants=variants(Form.RELEASED, **SIZES),
)
EXPERIMENT = Experiment(
    name="crate/small",
    title="CRATE compared with a vision transformer: random",
    reproduces="",
    cost="",
    measure=lambda request, folder: training.measure(random_images(), SMALL, request, folder),
    report=training.report,
)


def test_a_run_shows_every_model_layer_by_layer_with_its_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    request = Request(out=tmp_path, epochs=1, inputs=5, notice=notices.append)
    outcome = EXPERIMENT.run(request)
    assert set(outcome.facts["accuracy"]) == {"CRATE, released", VIT}
    assert all(set(by_seed) == {"0", "1"} for by_seed in outcome.facts["accuracy"].values())
    assert outcome.headline == f"CRATE, released {DID_NOT_TRAIN}; {VIT} {DID_NOT_TRAIN}"  # on labels at random
    assert outcome.remarks == (f"CRATE, released: {DID_NOT_TRAIN}", f"{VIT}: {DID_NOT_TRAIN}")
    folder = tmp_path / "crate-small"
    page = (folder / "table.md").read_text()
    assert page.count("before training") >= 4
    for words in (
        "--epochs 1 --inputs 5",
        "## Accuracy",
        "rate change",
        "non-zero entries after the MLP",
        "±",
        "| CRATE, released: this model |",
        f"| {VIT}: the same model before training |",
    ):
        assert words in page
    drawing = (folder / "picture.svg").read_text()
    assert drawing.count("the same model before training") == 1  # once in the legend of all charts
    assert drawing.count(f">{VIT}: ") == drawing.count(">CRATE, released: ") == 4

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(training, "audit", refuse)
    assert EXPERIMENT.run(request).headline == outcome.headline
    assert notices == []
    with pytest.raises(AssertionError, match="measured again"):
        EXPERIMENT.run(dataclasses.replace(request, inputs=6))
    path = folder / "vit-1" / "layers.json"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(AssertionError, match="measured again"):
        EXPERIMENT.run(request)
    assert notices == [f"{path} is damaged or has no checksum; measuring again"]

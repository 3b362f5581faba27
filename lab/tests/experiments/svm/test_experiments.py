"""The experiments on attention SVMs with small settings: what they write, print and cache."""

import dataclasses
import io
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from clearhead.report.columns import first_that_fits, print_columns
from clearhead_lab.experiments.experiment import Experiment, Outcome, Request
from clearhead_lab.experiments.svm import (
    convergence_type,
    drift,
    local_convergence,
    multi_token,
    optimisers,
    prompt,
    rank,
    regularisation_path,
    trajectories,
)


@dataclasses.dataclass(frozen=True)
class Small:
    """An experiment, the module whose constants make it small, and these."""

    experiment: Experiment
    module: ModuleType
    constants: dict[str, Any]


SMALL = {
    small.experiment.name: small
    for small in (
        Small(
            local_convergence.LOCAL_CONVERGENCE,
            local_convergence,
            {"STEPS": 20, "RECORDED": [10, 20], "SHOWN": (10, 20)},
        ),
        Small(convergence_type.CONVERGENCE_TYPE, convergence_type, {"STEPS": 20}),
        Small(rank.RANK, rank, {"SIZES": ((5, 5), (10, 5)), "WIDTHS": (1, 3)}),
        Small(multi_token.MULTI_TOKEN, multi_token, {"STEPS": 60}),
        Small(trajectories.TRAJECTORIES, trajectories, {"STEPS": 20, "RECORDED": [0, 10, 20]}),
        Small(prompt.PROMPT, prompt, {"STEPS": 100, "RECORDED": [0, 10, 100]}),
        Small(optimisers.OPTIMISERS, optimisers, {"STEPS": 20, "RECORDED": (10, 20)}),
        Small(regularisation_path.REGULARISATION_PATH, regularisation_path, {"RADII": (1.0, 2.0)}),
        Small(drift.DRIFT, drift, {"STEPS": 20, "RECORDED": (5, 10, 20), "SHOWN": (10, 20)}),
    )
}
SEEDS = {"svm/multi-token": 13}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, Path]]:
    """Every experiment run once, and its folder."""
    results = {}
    with pytest.MonkeyPatch.context() as patched:
        for name, small in SMALL.items():
            for constant, value in small.constants.items():
                patched.setattr(small.module, constant, value)
            out = tmp_path_factory.mktemp("runs")
            request = Request(out=out, seeds=_seeds(small.experiment))
            folder = small.experiment.folder(out)
            results[name] = small.experiment.run(request), folder
    return results


def _seeds(experiment: Experiment) -> int | None:
    return SEEDS.get(experiment.name, 2) if "seeds" in experiment.options else None


@pytest.mark.parametrize("name", SMALL)
def test_every_listed_file_is_written(name: str, outcomes: dict[str, tuple[Outcome, Path]]) -> None:
    outcome, folder = outcomes[name]
    assert all(file.is_file() for file in outcome.files)
    assert folder / "result.json" in outcome.files
    pictures = [file for file in outcome.files if file.suffix == ".svg"]
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 150_000
        shown = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
        assert not re.search(r"\bnan\b", " ".join(e.attrib.get("d", "") for e in shown.iter()))
    stored = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert stored["headline"] == outcome.headline
    assert stored["facts"]["command"].startswith(f"clearhead reproduce {name}")
    page = (folder / "table.md").read_text(encoding="utf-8")
    assert f"Made by `clearhead reproduce {name}" in page
    assert "nan" not in page
    assert "None" not in page


@pytest.mark.parametrize("width", [80, 40, 28])
@pytest.mark.parametrize("name", SMALL)
def test_the_printed_table_fits(name: str, width: int, outcomes: dict[str, tuple[Outcome, Path]]) -> None:
    outcome, _ = outcomes[name]
    console = Console(width=width, record=True, file=io.StringIO())
    columns = first_that_fits(outcome.tables, width=width)
    needed = sum(column.width for column in columns) + 2 * (len(columns) - 1)
    assert needed <= max(width, 40)
    print_columns(columns, console)
    lines = console.export_text().splitlines()
    assert len(lines) == 1 + len(columns[0].cells)
    if width >= 80:
        last = outcome.tables[0][-1].title
        assert last == columns[-1].title or name in ("svm/multi-token",)


@pytest.mark.parametrize(("name", "train"), [("svm/local-convergence", "train_by"), ("svm/multi-token", "train")])
def test_measurements_are_cached(name: str, train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SMALL[name]
    for constant, value in small.constants.items():
        monkeypatch.setattr(small.module, constant, value)
    request = Request(out=tmp_path, seeds=_seeds(small.experiment))
    reported: list[str] = []
    request = dataclasses.replace(request, progress=lambda what, done, total: reported.append(what))
    first = small.experiment.run(request)
    assert reported

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(small.module, train, refuse)
    again = small.experiment.run(request)
    assert again.headline == first.headline
    with pytest.raises(AssertionError, match="trained again"):
        small.experiment.run(dataclasses.replace(request, seed=1))


def test_local_convergence_counts_the_thresholds_that_are_met(outcomes: dict[str, tuple[Outcome, Path]]) -> None:
    outcome, folder = outcomes["svm/local-convergence"]
    near = outcome.facts["runs"]["W"]["cosines"]["Frobenius"][-1]
    mean = sum(near) / len(near)
    assert f"| W | Frobenius | {'.' if mean < 1 else ''}" in (folder / "table.md").read_text(encoding="utf-8")
    assert outcome.facts["met"]["W to Frobenius"] is (mean >= 0.99)
    assert mean < 0.99  # after twenty steps
    assert f"{sum(outcome.facts['met'].values())} of 4 thresholds met" in outcome.headline


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "STEPS", 300)
    monkeypatch.setattr(prompt, "RECORDED", [0, 300])


def test_a_loss_that_saturates_hides_a_sequence(few_steps: None) -> None:
    logistic, correlation = (prompt.by_loss(loss)["cosines"][-1] for loss in (prompt.LOGISTIC, prompt.CORRELATION))
    assert logistic[-1] < 0.8
    assert min(correlation) > 0.98


def test_joint_training_leaves_out_sequences_that_do_not_support_the_head(few_steps: None) -> None:
    every, some = (prompt.jointly(height) for height in (1.0, 1.5))
    assert (every["support"], some["support"]) == ([True] * 3, [True, True, False])
    assert min(each[key][-1] for each in (every, some) for key in ("prompt", "head")) > 0.99
    assert every["prompt"][0] < 0.5


def test_trajectories_draw_the_tokens_and_both_directions(outcomes: dict[str, tuple[Outcome, Path]]) -> None:
    _, folder = outcomes["svm/trajectories"]
    for name, trained in (("picture-W.svg", "W"), ("picture-KQ.svg", "K, Q")):
        words = " ".join(ElementTree.fromstring((folder / name).read_text(encoding="utf-8")).itertext())
        assert f"Training {trained} in the plane" in words
        for label in ("sequence 1: selected token", "sequence 2: W z of the SVM", "bad tokens"):
            assert words.count(label) == 1  # once, in the legend of all panels


def test_the_page_has_every_experiment_and_small_pictures() -> None:
    folder = Path(__file__).parents[4] / "docs" / "experiments"
    page = (folder / "svm.md").read_text(encoding="utf-8")
    for name in SMALL:
        assert f"    clearhead reproduce {name} " in page
        assert f"Made by `clearhead reproduce {name}" in page
    pictures = re.findall(r"\]\((svm-[\w-]+\.svg)\)", page)
    assert len(pictures) == 11
    for picture in pictures:
        assert (folder / picture).stat().st_size < 150_000
        ElementTree.fromstring((folder / picture).read_text(encoding="utf-8"))

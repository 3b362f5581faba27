"""`clearhead rerun`: identical findings, findings that differ, and manifests that cannot be repeated."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from clearhead.audit.run import AuditError, audit
from clearhead.heads import Heads
from clearhead.report.folder import write_report
from clearhead.stored_json import read_json, write_json
from tests.as_shipped.conftest import Attending, Run, batches

FUNCTIONS = ("--model", "small_models:model", "--batches", "small_models:batches")
AUDIT = ("audit", "small_models:model", "--batches", "small_models:batches", "--theory", "symmetry", "--layers", "1")


def test_an_audit_is_repeated_to_the_last_bit_twice(command: Run, tmp_path: Path) -> None:
    done = command(*AUDIT)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\nrepeat    clearhead rerun clearhead-report/manifest.json\n")
    options = read_json(tmp_path / "clearhead-report" / "manifest.json")["options"]
    assert (options["theories"], options["layers"], options["seed"]) == (["symmetry"], "1", 0)
    for manifest in ("clearhead-report/manifest.json", "clearhead-report"):
        done = command("rerun", manifest, *FUNCTIONS)
        assert (done.code, done.err) == (0, "")
        assert done.out == "bit-identical: 3 findings\nreport    clearhead-rerun/index.html\n"


def test_what_differs_has_a_line_each_and_the_exit_code_is_one(command: Run, small: ModuleType) -> None:
    command(*AUDIT)
    small.model, small.batches = lambda: Attending(1), lambda: batches(5)
    done = command("rerun", "clearhead-report", "--out", "again", *FUNCTIONS)
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
    del stored["sha256"], stored["options"]["seed"]
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


def test_the_device_of_the_arithmetic_is_part_of_the_command(command: Run, tmp_path: Path) -> None:
    done = command(*AUDIT, "--device", "cpu:0")
    assert (done.code, done.err) == (0, "")
    folder = tmp_path / "clearhead-report"
    stored = read_json(folder / "manifest.json")
    assert stored["options"]["device"] == "cpu:0"
    assert command("rerun", "clearhead-report", *FUNCTIONS).code == 0
    assert read_json(tmp_path / "clearhead-rerun" / "manifest.json")["options"]["device"] == "cpu:0"
    stored["options"]["device"] = "meta"
    write_json(folder / "manifest.json", stored)
    done = command("rerun", "clearhead-report", *FUNCTIONS)
    assert (done.code, done.out) == (2, "")
    assert "theories cannot compute on the device 'meta'" in done.err
    del stored["options"]["device"]  # as in manifests of audits without the option
    write_json(folder / "manifest.json", stored)
    assert command("rerun", "clearhead-report", *FUNCTIONS).code == 0


def test_theories_compute_on_the_device(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    move = Heads.to

    def noted(heads: Heads, device: torch.device) -> Heads:
        devices.append(str(device))
        return move(heads, device)

    monkeypatch.setattr(Heads, "to", noted)
    for arguments in ((), ("--estimate",)):
        devices.clear()
        assert command(*AUDIT, *arguments, "--device", "cpu:0").code == 0
        assert set(devices) == {"cpu:0"}


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99", "", "cuda\nx"])
def test_a_device_that_is_not_here_is_refused_before_the_model_is_loaded(
    device: str, command: Run, small: ModuleType, tmp_path: Path
) -> None:
    small.model = lambda: pytest.fail("the model was loaded")
    for arguments in ((), ("--estimate",), ("--shard", "1/2")):
        done = command(*AUDIT, *arguments, "--device", device)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.startswith("clearhead: theories cannot compute on the device ")
        assert "; choose cpu" in done.err
    assert not (tmp_path / "clearhead-report").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_gpu_is_refused(command: Run) -> None:
    done = command(*AUDIT, "--device", "cuda")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("clearhead: theories cannot compute on the device 'cuda' (")
    assert done.err.endswith("); choose cpu\n")
    with pytest.raises(AuditError, match="cannot compute on the device 'cuda'"):
        audit(Attending(), batches(), theories=["symmetry"], device="cuda")

"""The line of an interrupted command says what is on disk."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.options import AuditOptions, Baseline
from clearhead.cli import audit_command
from clearhead.cli.audit_command import run_audit
from clearhead.cli.failure import RunInterruptedError, TerminatedError
from clearhead.cli.request import AuditRequest
from clearhead.report.folder import ReportFolder
from clearhead_lab.cli import reproduce_command

BAR: Any = SimpleNamespace(update=lambda *_: None, notice=lambda line: None)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def terminate(*_: Any, **__: Any) -> None:
    raise TerminatedError(signal.SIGTERM)


def _written_then_interrupted(folder: ReportFolder, record: Any) -> None:
    folder._move([])
    raise KeyboardInterrupt


@pytest.mark.parametrize("written", [False, True])
def test_an_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    options = AuditOptions(theories=("symmetry",), baseline=Baseline.NONE)
    request = AuditRequest(model="x", inputs=1, max_tokens=8, batch_size=1, options=options, out=tmp_path / "report")
    loaded = SimpleNamespace(model=None, name="x", encode=None, decode=None, draw_baseline=None, folder=None)
    inputs = SimpleNamespace(batches=[], name="", count=1, text=None)
    monkeypatch.setattr(audit_command, "_load", lambda *_: (loaded, inputs))
    monkeypatch.setattr(audit_command, "measure_part", (lambda *_, **__: None) if written else interrupt)
    monkeypatch.setattr(Checkpoint, "finish", lambda checkpoint, part: None)
    monkeypatch.setattr(ReportFolder, "write", _written_then_interrupted)
    outcome = f"the report in {tmp_path / 'report'} is complete" if written else "no report was written"
    with pytest.raises(RunInterruptedError) as caught:
        run_audit(request, BAR)
    assert str(caught.value) == f"interrupted; {outcome}"
    assert caught.value.exit_code == 130
    if not written:
        monkeypatch.setattr(audit_command, "measure_part", terminate)
        (tmp_path / "report").mkdir()
        (tmp_path / "report" / "shard-1-of-1.safetensors").touch()
        with pytest.raises(RunInterruptedError) as caught:
            run_audit(request, BAR)
        assert str(caught.value) == "ended by SIGTERM; the same command continues it"
        assert caught.value.exit_code == 143


@pytest.mark.parametrize("names", [(), (".lock",), (".lock", "log.jsonl")])
def test_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    def run(request: Any) -> None:
        for name in names:
            (tmp_path / "vit").mkdir(exist_ok=True)
            (tmp_path / "vit" / name).touch()
        raise KeyboardInterrupt

    experiment = SimpleNamespace(options=frozenset(), folder=lambda out: out / "vit", run=run)
    monkeypatch.setattr(reproduce_command, "find_experiment", lambda name: experiment)
    with pytest.raises(RunInterruptedError) as caught:
        reproduce_command.run_experiment("vit", out=tmp_path, seed=0, options={}, bar=BAR)
    continued = f"the same command continues from {tmp_path / 'vit'}"
    assert str(caught.value) == f"interrupted; {continued if len(names) == 2 else 'nothing was written'}"

"""Shards, merging and continuing, by the commands."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clearhead.storage import lock_folder
from tests.as_shipped.conftest import Run
from tests.as_shipped.test_command_line import SMALL
from tests.as_shipped.warm import SECONDS, WarmCommand, environment
from tests.once import once

AUDIT = ("audit", "small_models:model", "--batches", "small_models:batches", "--theory", "symmetry")
REPORT = {"index.html", "findings.json", "samples.safetensors", "manifest.json"}
ROUNDING = 1e-12

KILLED = """
import os, signal
from small import batches as all_batches

def batches():
    for number, batch in enumerate(all_batches()):
        if number == 2 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
        yield batch
"""


def findings(folder: Path) -> list[dict[str, Any]]:
    """Return the findings of a report."""
    return json.loads((folder / "findings.json").read_text())["findings"]


def assert_same(report: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Assert equal verdicts, and values that are equal to rounding."""
    assert len(report) == len(expected) > 5
    for finding, other in zip(report, expected, strict=True):
        assert finding["verdict"] == other["verdict"]
        assert finding["inputs"] == other["inputs"]
        assert finding["value"] == pytest.approx(other["value"], rel=ROUNDING, abs=ROUNDING)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_a_folder_has_one_writer_unless_they_are_shards(command: Run, tmp_path: Path) -> None:
    out, refused = tmp_path / "out", "out is in use by another run; wait until it ends, or choose another folder\n"
    shards = [(*AUDIT, "--out", "out", "--shard", f"{number}/2") for number in (1, 2)]
    with lock_folder(out):
        for words in ((*AUDIT, "--out", "out", "--seed", "5"), shards[0], ("merge", "parts", "--out", "out")):
            done = command(*words)
            assert (done.code, done.err.splitlines(keepends=True)[-1:]) == (2, [f"clearhead: {refused}"])
    assert not out.exists()
    with lock_folder(out, shared=True):
        assert [command(*words).code for words in shards] == [0, 0]
        assert command("merge", "out").err == f"clearhead: {refused}"
    assert command("merge", "out").code == 0
    with lock_folder(tmp_path / "compared"):
        assert command("compare", "out", "out", "--out", "compared").code == 2
    assert {path.name for path in out.iterdir()} == {*REPORT, "shard-1-of-2.safetensors", "shard-2-of-2.safetensors"}


def test_shards_are_written_and_merged(command: Run, tmp_path: Path) -> None:
    assert command(*AUDIT, "--out", "plain").code == 0
    done = command(*AUDIT, "--out", "parts", "--shard", "2/2")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "shard     parts/shard-2-of-2.safetensors",
        "measured  8 of 12 inputs",
        "merge     clearhead merge parts",
    ]
    missing = command("merge", "parts")
    assert missing.code == 2
    assert missing.err == (
        "clearhead: the audit lacks shard-1-of-2.safetensors; run clearhead audit with --shard 1/2\n"
    )
    assert command(*AUDIT, "--out", "parts", "--shard", "1/2").code == 0
    merged = command("merge", "parts", "--out", "merged")
    assert merged.code == 0
    assert "report    merged/index.html" in merged.out
    assert {path.name for path in (tmp_path / "merged").iterdir()} == REPORT
    assert_same(findings(tmp_path / "merged"), findings(tmp_path / "plain"))
    again = command("rerun", "plain", "--out", "again", "--model", AUDIT[1], *AUDIT[2:4])
    assert "bit-identical" in again.out
    assert command("merge", "parts").code == 0
    assert (tmp_path / "parts" / "index.html").exists()


def test_a_launcher_gives_the_shard(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ID", "7"), ("MIN", "5"), ("COUNT", "3")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert command(*AUDIT, "--shard", "auto").code == 0
    assert [path.name for path in (tmp_path / "clearhead-report").iterdir()] == ["shard-3-of-3.safetensors"]
    wrong = command(*AUDIT, "--shard", "4/3")
    assert (wrong.code, wrong.err) == (2, "clearhead: a shard is i/n with i from 1 to n, such as 2/4, not '4/3'\n")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCommand]:
    """Return the command in forked processes."""
    command = WarmCommand(tmp_path_factory.mktemp("warm"))
    yield command
    command.close()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a model, and with batches that end the process once."""
    (tmp_path / "small.py").write_text(SMALL)
    (tmp_path / "killed.py").write_text(KILLED)
    return tmp_path


SMALL_AUDIT = ("audit", "small:model", "--theory", "attention-sinks", "--theory", "symmetry", "--layers", "1")


@once
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_killed_audit_continues_and_finds_the_same(here: Path, warm: WarmCommand, name: str) -> None:
    killed = warm(*SMALL_AUDIT, "--batches", "killed:batches", here=here, SIGNAL=name)
    assert killed.returncode == (-signal.SIGKILL if name == "SIGKILL" else 128 + signal.SIGTERM)
    report = here / "clearhead-report"
    left = {".lock", ".shard-1-of-1.safetensors.lock"} if name == "SIGKILL" else set()  # nobody holds them
    assert {path.name for path in report.iterdir()} == {"shard-1-of-1.safetensors", *left}
    done = warm(*SMALL_AUDIT, "--batches", "killed:batches", here=here)
    assert (done.returncode, done.stderr) == (0, "continues an interrupted audit: 4 inputs were measured\n")
    assert {path.name for path in report.iterdir()} == REPORT
    plain = warm(*SMALL_AUDIT, "--batches", "killed:batches", "--out", "plain", here=here)
    assert plain.returncode == 0
    assert findings(report) == findings(here / "plain")


@once
def test_processes_of_torchrun_divide_the_audit_and_the_first_writes_the_report(here: Path, warm: WarmCommand) -> None:
    arguments = (*SMALL_AUDIT, "--batches", "small:batches")
    assert warm(*arguments, "--out", "plain", here=here).returncode == 0
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "clearhead", *arguments],
        cwd=here, env=environment(100), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (here / "clearhead-report").iterdir()} == REPORT
    assert_same(findings(here / "clearhead-report"), findings(here / "plain"))
    assert done.stdout.count("report    clearhead-report/index.html") == 1

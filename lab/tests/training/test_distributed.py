"""Training in one process and in two that torchrun starts: the same losses, and the same run after an interruption."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead.errors import InputError
from clearhead_lab.training.distributed import ALONE, Processes, copy_into, join_processes, whole_tensor
from lab.tests.training import processes_script
from tests.once import once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo is tested on Linux")
ROOT = Path(__file__).parents[3]


def _torchrun(folder: Path, sharding: str, *arguments: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            processes_script.__file__, str(folder), sharding, *arguments,
        ],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@once
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_train_as_one_and_continue_after_ctrl_c(tmp_path: Path, sharding: str) -> None:
    folder = tmp_path / sharding
    stopped = _torchrun(folder, sharding, "7")
    assert "130" in stopped.stderr, stopped.stderr
    assert not (folder / "vision.json").exists()
    first = json.loads((folder / "language.json").read_text())
    done = _torchrun(folder, sharding)
    assert done.returncode == 0, done.stderr
    for kind, start in (("language", 0), ("vision", 7)):
        alone, weights, log = processes_script.run(kind, tmp_path / "alone")
        assert len(set(alone)) == len(alone) == 20
        stored = first if kind == "language" else json.loads((folder / "vision.json").read_text())
        assert len(stored["losses"]) == 20 - start, "the run continues at the step after the signal"
        # Sums over rows in another order differ by rounding, which 20 steps amplify.
        assert stored["losses"] == pytest.approx(alone[start:], abs=1e-5)
        for ours, theirs in zip(log, stored["log"], strict=True):
            measure = "right" if kind == "vision" else "perplexity"
            assert theirs[measure] == pytest.approx(ours[measure], rel=1e-4)
        final = torch.load(folder / f"{kind}.pt", weights_only=True)
        assert final.keys() == weights.keys()
        assert all(torch.allclose(final[name], weights[name], atol=1e-4) for name in weights)


def test_rows_of_processes_are_the_batch_in_order() -> None:
    rows = torch.arange(12)
    parts = [rows[Processes(rank=rank, count=3, sharding="ddp").rows(12)] for rank in range(3)]
    assert torch.equal(torch.cat(parts), rows)
    with pytest.raises(InputError, match="a batch_size that 3 processes divide; got 13"):
        Processes(rank=0, count=3, sharding="ddp").rows(13)


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with join_processes("fsdp") as processes:
        assert processes == ALONE
        assert processes.first
        module = nn.Linear(2, 2)
        assert processes.wrap(module, module) is module
    with pytest.raises(InputError, match="expected sharding among ddp, fsdp; got 'tensor'"), join_processes("tensor"):  # type: ignore[arg-type]
        pass


def test_whole_tensors_are_copied() -> None:
    target, source = torch.zeros(3), torch.arange(3.0)
    copy_into(target, source)
    assert torch.equal(whole_tensor(target), source)

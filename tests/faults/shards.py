"""Folders of shards as accidents and attackers leave them: each is merged as the audit is, or refused in one line.

`python tests/faults/shards.py` tries 100 and prints counts.
"""

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.audit.checkpoint import read_part
from clearhead.audit.part import Shard
from clearhead.audit.shards import audit_shard, merge_shards
from clearhead.audit.state_file import write_state
from clearhead.errors import ClearheadError
from clearhead.report.json_file import audit_as_json
from tests.faults.attempts import HangError, limited, try_all

COUNT, INPUTS, TOKENS, WIDTH = 3, 12, 7, 6
GOOD = {"same", "refused"}


def write_audits(folder: Path) -> None:
    """Write the shards of an audit, of the same audit with one shard less, and of one with another seed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, 2, 5, batch_first=True)).eval()
    batches = list(torch.randn(INPUTS, TOKENS, WIDTH).split(2))
    for name, count, seed in (("audit", COUNT, 0), ("count", COUNT - 1, 0), ("other", COUNT, 1)):
        for number in range(1, count + 1):
            audit_shard(model, batches, shard=f"{number}/{count}", folder=folder / name, theories="attention-sinks",
                        baseline=None, seed=seed)  # fmt: skip


def merged(folder: Path) -> dict[str, Any]:
    """Return the merged record without its times."""
    record = audit_as_json(merge_shards(folder))
    return {key: value for key, value in record.items() if key not in ("timing", "created")}


def _name(rng: random.Random, shard: Shard) -> str:
    """Return a name that is almost that of a shard."""
    number, count = shard.number, shard.count
    return rng.choice([
        f"shard-{number}-of-{count}-of-{count}.safetensors", f"shard-{number}-of-{count}-copy.safetensors",
        f"shard-{number}-of-{count} (1).safetensors", f"shard-+{number}-of-{count}.safetensors",
        f"shard-{COUNT + 1}-of-{count}.safetensors", f"shard-{number}-of-{COUNT + 1}.safetensors",
    ])  # fmt: skip


def _copied(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    shutil.copy(folder / shard.file_name, folder / _name(rng, shard))


def _renamed(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    other = Shard(shard.number % COUNT + 1, COUNT).file_name
    (folder / shard.file_name).rename(folder / rng.choice([_name(rng, shard), other]))


def _padded(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    zeros = "0" * rng.randrange(1, 4)
    name = rng.choice([f"shard-{zeros}{shard.number}-of-{COUNT}", f"shard-{shard.number}-of-{zeros}{COUNT}"])
    rng.choice([shutil.copy, shutil.move])(folder / shard.file_name, folder / f"{name}.safetensors")


def _of_another_count(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    file = rng.choice(sorted((audits / "count").iterdir()))
    shutil.copy(file, folder / rng.choice([file.name, shard.file_name]))


def _truncated(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    content = (folder / shard.file_name).read_bytes()
    (folder / shard.file_name).write_bytes(content[: rng.randrange(len(content))])


def _of_another_audit(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    shutil.copy(audits / "other" / shard.file_name, folder / shard.file_name)


def _overlapping(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    """Write a file with a valid checksum whose inputs are those of another shard, or more or fewer than its own."""
    part = read_part(folder / Shard(shard.number % COUNT + 1, COUNT).file_name)
    state: dict[str, Any] = {**part.state(), "shard": [shard.number, COUNT]}
    [only] = state["passes"]
    kind = rng.randrange(3)
    if kind == 1:
        only["inputs"] += rng.randrange(1, 5)
    elif kind == 2:
        state["sizes"] = [size + 1 for size in state["sizes"]]
    write_state(folder / shard.file_name, state)


def _none(rng: random.Random, folder: Path, shard: Shard, audits: Path) -> None:
    (folder / rng.choice(["notes.txt", "my-shard-1-of-3.safetensors"])).touch()


KINDS = {
    "copied": _copied, "renamed": _renamed, "zero-padded": _padded, "of another count": _of_another_count,
    "truncated": _truncated, "of another audit": _of_another_audit, "overlapping inputs": _overlapping,
    "unharmed": _none,
}  # fmt: skip


def outcome(seed: int, audits: Path, expected: dict[str, Any]) -> str:
    """Return how the case that the seed generates ends, with its kind if that is a fault: not one of `GOOD`."""
    kind = list(KINDS)[seed % len(KINDS)]
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shards"
        shutil.copytree(audits / "audit", folder)
        KINDS[kind](rng, folder, Shard(rng.randrange(1, COUNT + 1), COUNT), audits)
        try:
            with limited():
                result = "same" if merged(folder) == expected else "silent"
        except HangError:
            result = "hang"
        except ClearheadError as error:
            result = "refused" if "\n" not in str(error) else "several lines"
        except Exception as error:
            result = f"foreign {type(error).__name__}: {error}"
    if kind != "unharmed" and result == "same":
        result = "silent"
    return result if result in GOOD else f"{kind}: {result}"


def _prepare(folder: Path) -> Callable[[int], str]:
    write_audits(folder)
    expected = merged(folder / "audit")
    return lambda seed: outcome(seed, folder, expected)


if __name__ == "__main__":
    sys.exit(try_all(__doc__, _prepare, count=100, noun="folders of shards", good=GOOD))

"""Records with valid checksums and wrong content, drawn from a seed: each is refused in one line, or changes nothing.

`python tests/faults/wrong_records.py` tries 300 and prints counts. A value of a record is taken out, or is one of
another type, too large, too deep or no number; a file of tensors has others, or is none. A fault is a traceback,
several lines, a control character, more than 60 seconds, or "silent": a value of the wrong type is used.
"""

import copy
import functools
import hashlib
import io
import json
import math
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from rich.console import Console

from clearhead.audit.run import audit
from clearhead.audit.shards import audit_shard
from clearhead.calibration.results import Calibration
from clearhead.cli.calibrate_command import planted_table, published_table, random_table
from clearhead.cli.main import app
from clearhead.report.json_file import audit_as_json
from clearhead.storage import read_lines, sha256_of_file, write_lines
from clearhead.stored_json import read_json, write_json
from clearhead_lab.robustness.attack_page import render_attack
from clearhead_lab.robustness.attack_text import print_attack, print_differences
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.training.loop import read_log
from tests.as_shipped.conftest import Attending, batches
from tests.faults.attempts import HangError, limited, run, try_all, wrong_end
from tests.faults.hostile_reports import make_world
from tests.faults.shards import merged
from tests.faults.stored_damage import STATES
from tests.faults.stored_files import FILES, Dump, File, json_file, metadata_of

DEEP: Any = functools.reduce(lambda inner, _: [inner], range(100), 0)
WRONG: tuple[Any, ...] = (
    None, True, 7, -1, 0.5, 10**30, math.nan, math.inf, "x", "\x1b[2J\ud800", "", [], [1], ["x"], {}, {"x": 1}, DEEP,
)  # fmt: skip
GOOD = {"refused", "unchanged", "differences named", "read"}


# Files that are used as commands use them.


def _header(name: str, file: str, folder: Path) -> File:
    """Return the header of a file of tensors, which says what they are and where."""
    _, _, use = RECORDS[name](folder)
    path = folder / file
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")

    def dump(changed: Any) -> None:
        text = json.dumps(changed, separators=(",", ":")).encode()
        zeros = re.sub(rb'(?<="sha256":")[0-9a-f]{64}', b"0" * 64, text)
        written = len(text).to_bytes(8, "little") + zeros + content[end:]
        path.write_bytes(written.replace(b"0" * 64, hashlib.sha256(written).hexdigest().encode(), 1))

    return json.loads(content[8:end]), dump, use


def _calibration(folder: Path) -> File:
    tree, dump, _ = FILES["calibration"](folder)

    def use() -> object:
        made = Calibration.read(folder / "calibration.json")
        tables = planted_table(made), random_table(made), published_table(made)  # its settings are compared before
        return tables, [(made.sentence(key), made.counts(key), made.detectable(key)) for key in made.primary]

    return tree, dump, use


def _attack(folder: Path) -> File:
    tree, dump, _ = FILES["attack record"](folder)
    other = Robustness.from_dict(tree)

    def use() -> object:
        record = Robustness.from_dict(read_json(folder / "attack.json"))
        console = Console(file=io.StringIO(), width=100)
        print_attack(record, console)
        print_differences(other.differences(record), console, other=record.model)
        return console.file.getvalue(), render_attack(other.with_baseline(record)), str(record.to_pandas())  # type: ignore[attr-defined]

    return tree, dump, use


def _shards(folder: Path) -> File:
    for number in (1, 2):
        audit_shard(
            Attending(), batches(), shard=f"{number}/2", folder=folder, theories="attention-sinks", baseline=None
        )
    return *metadata_of(folder / "shard-2-of-2.safetensors", "tree"), lambda: merged(folder)


def _interrupted(folder: Path) -> File:
    """An audit that goes on, or starts again."""
    tree, dump, _ = FILES["shard"](folder)
    [path] = folder.iterdir()

    def use() -> object:
        record = audit(Attending(), batches(), theories=["symmetry"], baseline=None, checkpoint=path)
        return {key: value for key, value in audit_as_json(record).items() if key not in ("timing", "created")}

    return tree, dump, use


def _model(folder: Path) -> File:
    tree, dump, _ = FILES["model of Clearhead"](folder)
    return tree, dump, lambda: STATES["model of Clearhead"][1](folder)


def _position(folder: Path) -> File:
    _, _, read = FILES["checkpoint"](folder)
    return *metadata_of(folder / "checkpoint.safetensors", "progress"), read


def _log(folder: Path) -> File:
    STATES["training run"][0](folder)
    [path] = folder.glob("*.jsonl")
    return *_lines(path), lambda: read_log(folder)


def _lines(path: Path) -> tuple[Any, Dump]:
    return read_lines(path), lambda tree: write_lines(path, tree if isinstance(tree, list) else [tree])


def _checksums(folder: Path) -> File:
    write, read = STATES["prepared Hugging Face model"]
    write(folder)
    [path] = folder.glob("*checksums*")
    return *_lines(path), lambda: read(folder)


@functools.cache
def _report(folder: Path) -> Path:
    """Audit a small model twice. Return the folder of both reports."""
    with redirect_stderr(io.StringIO()):
        world = make_world(folder)
    shutil.copytree(world.report, world.root / "other")
    return world.root


def _of_report(name: str, command: tuple[str, ...], folder: Path) -> File:
    """Return a file of a report that a command reads."""
    root = _report(folder.parent / "report")
    path, manifest = root / "report" / name, root / "report" / "manifest.json"

    def use() -> object:
        os.chdir(root)
        return app(command, prog_name="clearhead", standalone_mode=False)

    def write(changed: Any) -> None:
        path.write_text(json.dumps(changed))

    if name == "manifest.json":
        return *json_file(path), use
    if name == "samples.safetensors":
        tree, write = metadata_of(path, "contents")
    else:
        tree = json.loads(path.read_text())
        tree |= _drawn(tree["theories"][0]["title"])

    def seal(changed: Any) -> None:
        write(changed)
        stored = read_json(manifest)
        stored["files"][name] = sha256_of_file(path)
        write_json(manifest, stored)

    return tree, seal, use


def _drawn(title: str) -> dict[str, Any]:
    """Return a curve and a picture, as other theories have them."""
    line = {"name": "C", "values": [0.5], "intervals": [{"low": 0.1, "high": 0.9}]}
    curve = {"theory": title, "title": "A", "quantity": "B", "layers": [0], "lines": [line]}
    picture = {"theory": title, "title": "A", "layer": 0, "bars": [[1.0, 0.5]], "part": [[0.5, None]]}
    return {"curves": [curve], "pictures": [picture]}


USES = {
    "compared": ("compare", "report", "other"),
    "repeated": ("rerun", "report", "--trust-paths"),
    **{
        kind: ("figure", "report", "--kind", kind, "--out", "x.svg")
        for kind in ("heatmap", "null", "depth", "spectrum")
    },
}

RECORDS: dict[str, Callable[[Path], File]] = {
    "calibration": _calibration, "attack record": _attack, "shards": _shards, "position of a training": _position,
    "interrupted audit": _interrupted, "log of a training": _log, "checksums": _checksums,
    "model of Clearhead": _model, **{name: FILES[name] for name in ("swap", "checkpoint", "cache")},
    "header of a shard": functools.partial(_header, "shards", "shard-1-of-2.safetensors"),
    "header of a checkpoint": functools.partial(_header, "checkpoint", "checkpoint.safetensors"),
    "header of a model": functools.partial(_header, "model of Clearhead", "model.safetensors"),
    "manifest, compared": functools.partial(_of_report, "manifest.json", USES["compared"]),
    "manifest, repeated": functools.partial(_of_report, "manifest.json", USES["repeated"]),
    "samples": functools.partial(_of_report, "samples.safetensors", USES["compared"]),
    **{f"findings, {name}": functools.partial(_of_report, "findings.json", use) for name, use in USES.items()},
}  # fmt: skip


def _walk(tree: Any, rng: random.Random) -> tuple[Any, Any]:
    """Return a random table or list of a tree, and one of its keys."""
    parent, key = tree, rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
    while parent[key] and isinstance(parent[key], dict | list) and rng.random() < 0.75:
        parent = parent[key]
        key = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    return parent, key


def changed(tree: Any, rng: random.Random) -> tuple[Any, str, bool]:
    """Return a record with a wrong value, what is wrong, and whether it must be noticed where it is used."""
    tree = copy.deepcopy(tree)
    if rng.random() < 0.04:
        value = rng.choice(WRONG)
        return value, f"all: {str(value)[:30]!r}", _class(value) != _class(tree)
    parent, key = _walk(tree, rng)
    if isinstance(parent, dict) and rng.random() < 0.2:
        del parent[key]
        return tree, f"no {key}", False
    before, value = parent[key], rng.choice(WRONG)
    parent[key] = value
    return tree, f"{key}: {str(before)[:30]!r} is {str(value)[:30]!r}", _is_wrong(before, value)


def _is_wrong(before: Any, value: Any) -> bool:
    if before is None:
        return False
    unlike = value is not None and _class(before) != _class(value)
    return unlike or value is DEEP or (isinstance(value, int) and abs(value) >= 2**63)


def _class(value: Any) -> type:
    return float if type(value) is int else type(value)


def outcome(folder: Path, made: dict[str, tuple[File, str]], seed: int) -> str:
    """Return how the record of a seed is used: one of `GOOD`, or a description of the fault."""
    name, rng = list(RECORDS)[seed % len(RECORDS)], random.Random(seed)
    if name not in made:
        (folder / name).mkdir()
        file = RECORDS[name](folder / name)
        file[1](file[0])
        code, out, err = _used(file[2])
        assert code == 0, err
        made[name] = file, out
    (tree, dump, use), expected = made[name]
    wrong, change, noticeable = changed(tree, rng)
    try:
        dump(wrong)
        code, out, err = _used(use)
    except HangError:
        return f"{name}, {change}: hang"
    finally:
        dump(tree)
    if faults := wrong_end(code, err):
        return f"{name}, {change}: {faults[0]}"
    result = "refused" if code == 2 else "differences named" if code else "unchanged" if out == expected else "read"
    return f"{name}, {change}: silent" if noticeable and result == "read" else result


def _used(use: Callable[[], object]) -> tuple[int, str, str]:
    def command() -> object:
        result = use()
        return result if isinstance(result, int) else print(result)

    with limited():
        return run(command)


def prepare(folder: Path) -> Callable[[int], str]:
    """Return the function that tries a seed."""
    made: dict[str, tuple[File, str]] = {}
    return lambda seed: outcome(folder, made, seed)


if __name__ == "__main__":
    sys.exit(try_all(__doc__, prepare, count=300, noun="records", good=GOOD))

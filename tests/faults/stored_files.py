"""Every kind of file that Clearhead writes and reads back, as a tree of plain values that an attack may change.

A file that is written again has a checksum that fits.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead._swap.notes import as_json
from clearhead.audit.checkpoint import read_part
from clearhead.audit.run import audit
from clearhead.audit.stored import read_audit
from clearhead.calibration.results import Calibration
from clearhead.loading.model import load_model
from clearhead.report.folder import write_report
from clearhead.storage import read_tensors, sha256_of_file, write_tensors
from clearhead.stored_json import read_json, write_json
from clearhead_lab.experiments.cache import cached
from clearhead_lab.experiments.models.sceptr import load_variant, variants
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import AttackResult
from clearhead_lab.training.recipe_file import read_recipe_file
from clearhead_lab.training.run import build_model
from tests.as_shipped.conftest import Attending, batches
from tests.faults.stored_damage import STATES

__all__ = ["FILES", "Dump", "File", "json_file", "metadata_of", "write_sealed"]

Dump = Callable[[Any], None]
File = tuple[Any, Dump, Callable[[], Any]]
"""The values of a file, a function that writes others, and one that reads them back."""


def write_sealed(path: Path, tree: Any) -> None:
    """Write JSON with a checksum that fits, also what Clearhead would not write."""
    if isinstance(tree, dict):
        content = json.dumps(tree, sort_keys=True, separators=(",", ":"))
        tree = {**tree, "sha256": hashlib.sha256(content.encode()).hexdigest()}
    path.write_text(json.dumps(tree))


def json_file(path: Path) -> tuple[Any, Dump]:
    return read_json(path), lambda tree: write_sealed(path, tree)


def metadata_of(path: Path, key: str) -> tuple[Any, Dump]:
    tensors, metadata = read_tensors(path)

    def dump(tree: Any) -> None:
        write_tensors(path, tensors, metadata={**metadata, key: json.dumps(tree)})

    return json.loads(metadata[key]), dump


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(8, 2, 11, batch_first=True)


def _swap(folder: Path) -> File:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", clearhead.SwapWarning)
        model = _model()
        clearhead.swap(model, "rpc")
        clearhead.save_swaps(model, folder)
    return *json_file(folder / "clearhead-swap.json"), lambda: [
        as_json(swap) for swap in clearhead.load_swaps(_model(), folder)
    ]


def _recipe(folder: Path) -> File:
    text = (resources.files("clearhead_lab") / "recipes" / "vit-cifar-10-small.toml").read_text()
    pieces, path = re.split(r'("[^"\n]*")', text), folder / "recipe.toml"

    def dump(tree: list[str]) -> None:
        path.write_text("".join(p if i % 2 == 0 or p.startswith('"') else f'"{p}"' for i, p in enumerate(tree)))

    return pieces, dump, lambda: build_model(read_recipe_file(str(path)), image_size=4, channels=1, classes=2)


def _calibration(folder: Path) -> File:
    path = folder / "calibration.json"
    path.write_bytes((resources.files("clearhead.calibration") / "shipped.json").read_bytes())
    return *json_file(path), lambda: Calibration.read(path)


def _checkpoint(folder: Path) -> File:
    write, read = STATES["training run"]
    write(folder)
    return *metadata_of(folder / "checkpoint.safetensors", "run"), lambda: read(folder)


def _native_model(folder: Path) -> File:
    write, _ = STATES["model of Clearhead"]
    write(folder)
    [path] = folder.glob("*.json")
    return *json_file(path), lambda: load_model(str(folder), max_tokens=8)


def _shard(folder: Path) -> File:
    path = folder / "shard-1-of-1.safetensors"

    def interrupted() -> Iterator[torch.Tensor]:
        yield from batches()
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        audit(Attending(), interrupted(), theories=["symmetry"], baseline=None, checkpoint=path)
    return *metadata_of(path, "tree"), lambda: read_part(path)


def _cache(folder: Path) -> File:
    path = folder / "result.json"

    def read() -> Any:
        return cached(path, _result, {"name": "x"}, notice=lambda line: None)

    read()
    return *json_file(path), read


def _result(name: str) -> dict[str, str]:
    return {"name": name, "file": "x.json"}


def _attack(folder: Path) -> File:
    result = AttackResult(attack="pgd", title="PGD", eps=0.1, predicted=(0, 1), largest_change=0.1)
    made = Robustness(
        model="m", data="d", suite="fast", protocol="pixels", budgets=(0.1,), labels=(0, 1), clean=(0, 1),
        results=(result,),
        settings={"attacks": {"pgd": {"title": "PGD"}}},
    )  # fmt: skip
    write_json(folder / "attack.json", made.to_dict())
    return *json_file(folder / "attack.json"), lambda: Robustness.from_dict(read_json(folder / "attack.json"))


def _findings(folder: Path) -> File:
    write_report(audit(Attending(), batches(), theories=["symmetry"], baseline=None), folder)
    path = folder / "findings.json"

    def dump(tree: Any) -> None:
        path.write_text(json.dumps(tree))
        manifest = read_json(folder / "manifest.json")
        manifest["files"]["findings.json"] = sha256_of_file(path)
        write_json(folder / "manifest.json", manifest)

    return json.loads(path.read_text()), dump, lambda: read_audit(folder)


def _variants(folder: Path) -> File:
    path = folder / "variants.json"

    def read() -> None:
        for variant in variants(folder):
            load_variant(folder, variant)

    tree = {"SCEPTR": {"tokeniser": "CdrTokeniser", "data": "x.csv"}}
    return tree, lambda tree: path.write_text(json.dumps(tree)), read


FILES: dict[str, Callable[[Path], File]] = {
    "swap": _swap, "recipe": _recipe, "calibration": _calibration, "checkpoint": _checkpoint,
    "model of Clearhead": _native_model, "shard": _shard, "cache": _cache, "attack record": _attack,
    "findings": _findings, "fetched variants": _variants,
}  # fmt: skip

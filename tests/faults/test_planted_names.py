"""Whatever a stored file names, reading it back imports no module and opens no other file.

Each text and each key of a file in turn becomes a function that could be imported, or the path of a file that exists;
the checksum fits. Reports have a family of their own (`hostile_reports.py`).
"""

import copy
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import clearhead
from clearhead.audit.checkpoint import read_part
from clearhead.audit.run import audit
from clearhead.audit.stored import read_audit
from clearhead.calibration.results import Calibration
from clearhead.loading.model import load_model
from clearhead.loading.objects import LoadError, load_object
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
from tests.once import once

pytestmark = once

MOST = 60
"""Places of a file that are tried one by one; more are tried all at once."""
Dump = Callable[[Any], None]


class Watched:
    """The module `planted`, which could be imported, and a file that could be opened. `touched` says what was."""

    active: "Watched | None" = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "planted.py").write_text("load = None\n")
        self.file, self.opened = folder / "secret.safetensors", False
        save_file({"x": torch.zeros(1)}, self.file)
        os.utime(self.file, (0, self.file.stat().st_mtime))
        self.texts = ("planted:load", "planted.load", str(self.file), str(self.file.with_suffix("")))

    @property
    def touched(self) -> set[str]:
        """The names of what was imported or opened."""
        # safetensors opens files unseen by Python. The time of the last access is kept by most file systems.
        opened = self.opened or self.file.stat().st_atime != 0
        return {"planted"} & set(sys.modules) | ({"secret"} if opened else set())


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Note that the file is opened while a test runs."""
    watched = Watched.active
    if watched is not None and event == "open" and isinstance(arguments[0], str) and arguments[0] == str(watched.file):
        watched.opened = True


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Watch imports and opened files."""
    if not hasattr(note, "hooked"):
        sys.addaudithook(note)
        note.hooked = True
    made = Watched(tmp_path / "planted")
    monkeypatch.syspath_prepend(str(made.file.parent))
    Watched.active = made
    yield made
    Watched.active = None
    sys.modules.pop("planted", None)


def planted(tree: Any, text: str) -> Iterator[Any]:
    """Yield the tree with each of its texts and keys replaced in turn, and with all texts."""
    places = list(_places(tree))
    for path, is_key in places[:MOST]:
        changed = copy.deepcopy(tree)
        parent = changed
        for step in path[:-1]:
            parent = parent[step]
        if is_key:
            parent[text] = parent.pop(path[-1])
        else:
            parent[path[-1]] = text
        yield changed
    changed = copy.deepcopy(tree)
    for path, is_key in places:
        parent = changed
        for step in path[:-1]:
            parent = parent[step]
        if not is_key:
            parent[path[-1]] = text
    yield changed


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        if isinstance(tree, dict):
            yield (*path, key), True
        if isinstance(value, str):
            yield (*path, key), False
        yield from _places(value, (*path, key))


def _json(path: Path) -> tuple[Any, Dump]:
    return read_json(path), lambda tree: write_json(path, tree)


def _metadata(path: Path, key: str) -> tuple[Any, Dump]:
    tensors, metadata = read_tensors(path)

    def dump(tree: Any) -> None:
        write_tensors(path, tensors, metadata={**metadata, key: json.dumps(tree)})

    return json.loads(metadata[key]), dump


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(8, 2, 11, batch_first=True)


def _swap(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", clearhead.SwapWarning)
        model = _model()
        clearhead.swap(model, "rpc")
        clearhead.save_swaps(model, folder)
    return *_json(folder / "clearhead-swap.json"), lambda: clearhead.load_swaps(_model(), folder)


def _recipe(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    text = (resources.files("clearhead_lab") / "recipes" / "vit-cifar-10-small.toml").read_text()
    pieces, path = re.split(r'("[^"\n]*")', text), folder / "recipe.toml"

    def dump(tree: list[str]) -> None:
        path.write_text("".join(p if i % 2 == 0 or p.startswith('"') else f'"{p}"' for i, p in enumerate(tree)))

    return pieces, dump, lambda: build_model(read_recipe_file(str(path)), image_size=4, channels=1, classes=2)


def _calibration(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    path = folder / "calibration.json"
    path.write_bytes((resources.files("clearhead.calibration") / "shipped.json").read_bytes())
    return *_json(path), lambda: Calibration.read(path)


def _checkpoint(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    write, read = STATES["training run"]
    write(folder)
    return *_metadata(folder / "checkpoint.safetensors", "run"), lambda: read(folder)


def _native_model(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    write, _ = STATES["model of Clearhead"]
    write(folder)
    [path] = folder.glob("*.json")
    return *_json(path), lambda: load_model(str(folder), max_tokens=8)


def _shard(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    path = folder / "shard-1-of-1.safetensors"

    def interrupted() -> Iterator[torch.Tensor]:
        yield from batches()
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        audit(Attending(), interrupted(), theories=["symmetry"], baseline=None, checkpoint=path)
    return *_metadata(path, "tree"), lambda: read_part(path)


def _cache(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    path = folder / "result.json"

    def read() -> Any:
        return cached(path, _result, {"name": "x"}, notice=lambda line: None)

    read()
    return *_json(path), read


def _result(name: str) -> dict[str, Any]:
    return {"name": name, "file": "x.json"}


def _attack(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    result = AttackResult(attack="pgd", title="PGD", eps=0.1, predicted=(0, 1), largest_change=0.1)
    made = Robustness(
        model="m", data="d", suite="fast", protocol="pixels", budgets=(0.1,), labels=(0, 1), clean=(0, 1),
        results=(result,),
        settings={"attacks": {"pgd": {"title": "PGD"}}},
    )  # fmt: skip
    write_json(folder / "attack.json", made.to_dict())
    return *_json(folder / "attack.json"), lambda: Robustness.from_dict(read_json(folder / "attack.json"))


def _findings(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    write_report(audit(Attending(), batches(), theories=["symmetry"], baseline=None), folder)
    path = folder / "findings.json"

    def dump(tree: Any) -> None:
        path.write_text(json.dumps(tree))
        manifest = read_json(folder / "manifest.json")
        manifest["files"]["findings.json"] = sha256_of_file(path)
        write_json(folder / "manifest.json", manifest)

    return json.loads(path.read_text()), dump, lambda: read_audit(folder)


def _variants(folder: Path) -> tuple[Any, Dump, Callable[[], Any]]:
    path = folder / "variants.json"

    def read() -> None:
        for variant in variants(folder):
            load_variant(folder, variant)

    tree = {"SCEPTR": {"tokeniser": "CdrTokeniser", "data": "x.csv"}}
    return tree, lambda tree: path.write_text(json.dumps(tree)), read


FILES: dict[str, Callable[[Path], tuple[Any, Dump, Callable[[], Any]]]] = {
    "swap": _swap, "recipe": _recipe, "calibration": _calibration, "checkpoint": _checkpoint,
    "model of Clearhead": _native_model, "shard": _shard, "cache": _cache, "attack record": _attack,
    "findings": _findings, "fetched variants": _variants,
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_no_stored_file_names_code_or_another_file(kind: str, tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "stored").mkdir()
    tree, dump, read = FILES[kind](tmp_path / "stored")
    dump(tree)
    if kind != "fetched variants":  # whose weights are not here
        read()
    tried = 0
    for text in watched.texts:
        for changed in planted(tree, text):
            dump(changed)
            with suppress(Exception):  # what it may raise has tests of its own
                read()
            assert watched.touched == set(), (text, changed)
            tried += 1
    assert tried > 4


def test_a_variant_with_a_path_for_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "variants.json").write_text('{"../x": {"tokeniser": "CdrTokeniser", "data": "x.csv"}}')
    with pytest.raises(LoadError, match=r"names '../x', which is no variant"):
        variants(tmp_path)


def test_control_a_reader_that_imports_or_opens_is_noticed(watched: Watched) -> None:
    load_object(watched.texts[0])
    watched.file.read_bytes()
    assert watched.touched == {"planted", "secret"}

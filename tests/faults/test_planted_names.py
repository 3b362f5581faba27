"""Whatever a stored file names, reading it back imports no module and opens no other file.

Each text and each key of a file in turn becomes a function that could be imported, or the path of a file that exists;
the checksum fits. Reports have a family of their own (`hostile_reports.py`).
"""

import copy
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from clearhead.loading.objects import LoadError, load_object
from clearhead_lab.experiments.models.sceptr import variants
from tests.faults.stored_files import FILES
from tests.once import once

pytestmark = once

MOST = 60
"""Places of a file that are tried one by one; more are tried all at once."""


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

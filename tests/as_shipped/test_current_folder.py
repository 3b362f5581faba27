"""No code of a model folder runs, also when it is the current folder. `python tests/faults/current_folder.py`: all."""

import os
import random
import sys
from pathlib import Path

import pytest

from clearhead.cli.import_path import allow_current_folder, never_import_from, remove_from_import_path
from clearhead.errors import InputError
from tests.faults.current_folder import NAMES, imported_names, make_model_folder, poison

KNOWN = ("psutil", "zstandard", "brotli", "colorama", "kernels", "triton", "librosa", "soundfile")
"""Names that ran once."""


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    make_model_folder(folder)
    poison(folder, sorted({*KNOWN, *random.Random(0).sample(NAMES, 10)}))
    return folder


def test_the_list_of_module_names_is_long_enough() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 150
    assert set(KNOWN) < set(NAMES)


@pytest.mark.parametrize(
    ("command", "start"),
    [("audit", "script"), ("doctor", "module"), ("reproduce", "the folder in PYTHONPATH"),
     ("doctor", "empty entry of PYTHONPATH")],
)  # fmt: skip
def test_no_module_of_the_current_folder_is_imported(model_folder: Path, command: str, start: str) -> None:
    assert imported_names(model_folder, command, start) == (set(), 0)


def test_the_probe_notices_an_import(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISON_LOG", str(model_folder / "log"))
    monkeypatch.syspath_prepend(str(model_folder))
    with pytest.raises(ImportError):
        import zstandard  # noqa: F401
    assert (model_folder / "log").read_text() == "zstandard\n"


def test_an_entry_is_removed_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    others = ["/somewhere/else", str(tmp_path.parent)]
    monkeypatch.setattr(sys, "path", ["", others[0], ".", str(tmp_path), f"{tmp_path}/link/", others[1]])
    remove_from_import_path("")
    assert sys.path == others


def test_installed_packages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    monkeypatch.setattr(sys, "path", [str(installed)])
    monkeypatch.chdir(installed)
    remove_from_import_path("")
    assert sys.path == [str(installed)]


def test_the_current_folder_comes_last_and_never_if_it_is_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "inside").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    for current in ("model", "model/inside"):
        monkeypatch.chdir(tmp_path / current)
        never_import_from(os.path.relpath(tmp_path / "model"))
        with pytest.raises(
            InputError, match=r"cannot import own.code:batches: the current folder belongs to the model"
        ):
            allow_current_folder(["json:loads", "own.code:batches"])
        allow_current_folder(["json:loads"])
        assert sys.path == before
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model" / "code.py").touch()
    with pytest.raises(InputError, match=r"cannot import model.code:batches: it is in the folder of the model"):
        allow_current_folder(["model.code:batches"])
    sys.path[:] = before
    allow_current_folder(["own.code:batches"])
    assert sys.path == [*before, str(tmp_path)]

"""The instrument without its laboratory: what is missing is named in one line, and everything else works.

And with other packages, whose commands and loaders are found like those of the laboratory.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import registry
from clearhead.cli.commands import LABORATORY
from clearhead.loading.model import LOADERS, MARKER, Loader, baseline_draw, load_model
from clearhead.loading.objects import LoadError
from tests.as_shipped.conftest import Run

OWN = {"audit", "merge", "rerun", "compare", "calibrate", "figure", "doctor"}
PLUGIN = """
import torch
from clearhead.loading.model import Loader

def hello(name: str, *, loud: bool = False) -> None:
    "Say hello."
    print(name.upper() if loud else name)

def load(folder):
    return torch.nn.Linear(3, 5), None

def draw(model):
    return (lambda seed: torch.nn.Linear(3, 5)) if type(model) is torch.nn.Linear else None

LOADER = Loader(reads=lambda folder: (folder / "linear").exists(), load=load, draw=draw)
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every entry point, as if only Clearhead itself were installed."""
    monkeypatch.setattr(registry, "installed", lambda group, path: ())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a package with these entry points."""

    def install(entries: str) -> None:
        info = tmp_path / "site" / "others-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entries)
        (tmp_path / "site" / "others.py").write_text(PLUGIN)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        monkeypatch.delitem(sys.modules, "others", raising=False)

    return install


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", LABORATORY)
def test_a_command_of_the_laboratory_says_how_to_install_it(command: Run, name: str) -> None:
    for arguments in ((name,), (name, "anything", "--help")):
        ended = command(*arguments)
        assert ended.code == 2
        assert f"clearhead {name}" in ended.err
        assert "pip install clearhead-lab" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.usefixtures("alone")
def test_other_unknown_commands_are_unknown(command: Run) -> None:
    ended = command("trein")
    assert (ended.code, "clearhead-lab" in ended.err) == (2, False)


@pytest.mark.usefixtures("alone")
def test_the_instrument_has_seven_commands(command: Run) -> None:
    listed = [line.split()[0] for line in command("--help").out.partition("Commands:")[2].splitlines() if line.strip()]
    assert set(listed) == OWN


def test_the_laboratory_adds_its_commands(command: Run) -> None:
    listed = command("--help").out.partition("Commands:")[2]
    assert all(f"\n  {name} " in listed for name in (*OWN, *LABORATORY))


@pytest.mark.usefixtures("alone")
def test_a_folder_of_the_laboratory_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({MARKER: "vision-transformer"}))
    with pytest.raises(LoadError, match="pip install clearhead-lab"):
        load_model(str(tmp_path), max_tokens=8)
    assert baseline_draw(torch.nn.Linear(2, 3), "linear") is None


def test_names_that_moved_say_where() -> None:
    for name in ("attack", "Robustness"):
        with pytest.raises(AttributeError, match=f"clearhead_lab.{name}"):
            getattr(clearhead, name)


def test_an_audit_neither_needs_nor_imports_the_laboratory() -> None:
    code = (
        "import sys; sys.modules['clearhead_lab'] = None\n"
        "import torch, clearhead as ch\n"
        "layer = torch.nn.TransformerEncoderLayer(24, 4, 29, batch_first=True)\n"
        "x = torch.randn(5, 13, 24, generator=torch.Generator().manual_seed(0))\n"
        "record = ch.audit(layer, [x], theories=['symmetry'])\n"
        "print(len(record.findings), len(record.to_dict()['findings']), bool(str(record)), record._repr_html_()[:5])\n"
        "print([name for name in sys.modules if name.startswith('clearhead_lab.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-2:] == ["4 4 True <div>", "[]"]


def test_a_package_adds_a_command(package: Callable[[str], None], command: Run) -> None:
    package("[clearhead.commands]\nhello = others:hello\nbroken = others:missing\naudit = others:hello\n")
    assert command("hello", "you", "--loud").out == "YOU\n"
    listed = command("--help")
    assert "Say hello." in listed.out
    assert "broken of others" in listed.err
    assert "audit of others is not used" in listed.err
    ended = command("broken")
    assert (ended.code, "broken of others" in ended.err) == (2, True)
    assert "Test theories" in command("audit", "--help").out  # no package replaces a command of Clearhead


def test_a_package_adds_a_loader(package: Callable[[str], None], tmp_path: Path) -> None:
    package("[clearhead.loaders]\nlinear = others:LOADER\n")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(LoadError):
        load_model(str(folder), max_tokens=8)
    (folder / "linear").touch()
    loaded = load_model(str(folder), max_tokens=8)
    assert isinstance(loaded.model, torch.nn.Linear)
    assert loaded.draw_baseline is not None
    (folder / "config.json").write_text('{"model_type": "bert"}')  # a folder of transformers is no loader's
    with pytest.raises(LoadError):
        load_model(str(folder), max_tokens=8)
    assert isinstance(LOADERS.get("linear"), Loader)

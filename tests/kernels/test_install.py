"""Installation always succeeds: with the kernel if it compiles, otherwise with a one-line notice."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clearhead.kernels.build import CHECKSUM, LIBRARY, SOURCES
from tests.kernels.small_sources import needs_compiler, write_sources
from tests.once import once

pytest.importorskip("hatchling", reason="hatchling, which builds wheels, is not installed here")

pytestmark = once
ROOT = Path(__file__).parents[2]
PLACE = f"clearhead/kernels/{LIBRARY}"
WHEEL = "from hatchling.build import build_wheel as make; make('made')"
# What hatchling calls for an editable installation; the package that writes the link is not needed for it.
EDITABLE = """
import sys; sys.path.insert(0, ".")
from hatch_build import KernelHook
from hatchling.bridge.app import Application
data = {"force_include": {}}
KernelHook(".", {}, None, None, "made", "wheel", Application()).initialize("editable", data)
assert data == {"force_include": {}}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return the source tree of a small clearhead."""
    tree = tmp_path / "tree"
    room = tree / "src" / PLACE
    room.parents[1].mkdir(parents=True)
    write_sources(room.parent)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    shutil.copy(SOURCES.parent / "__init__.py", room.parents[1])
    shutil.copy(SOURCES / "build.py", room.parent)
    return tree


def run(code: str, tree: Path, **environment: str) -> str:
    """Return the output of the build."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=os.environ | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def wheel(tree: Path) -> tuple[str, set[str]]:
    (made,) = (tree / "made").iterdir()
    with zipfile.ZipFile(made) as archive:
        return made.name.removesuffix(".whl"), {name for name in archive.namelist() if "kernels" in name}


@needs_compiler
def test_a_wheel_with_the_kernel_is_for_this_platform(tree: Path) -> None:
    assert "kernel" not in run(WHEEL, tree)
    name, files = wheel(tree)
    assert "-py3-none-" in name
    assert not name.endswith("-any")
    assert {PLACE, PLACE.replace(LIBRARY, CHECKSUM)} <= files
    assert not (tree / "src" / PLACE).exists()


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"CXX": "/nonexistent"}, "compiled kernel, slower: CXX is /nonexistent"),
        ({"CXX": "/bin/false"}, "compiled kernel, slower: /bin/false does not compile"),
        ({"CLEARHEAD_NO_KERNEL": "1"}, "compiled kernel: CLEARHEAD_NO_KERNEL is set"),
    ],
)
def test_a_wheel_without_the_kernel_is_for_every_platform(tree: Path, environment: dict[str, str], why: str) -> None:
    (tree / "src" / PLACE).write_text("an old one")
    (tree / "src" / PLACE).with_name(CHECKSUM).write_text("an old one")
    said = run(WHEEL, tree, **environment)
    assert why in said
    assert said.count("kernel") <= 2  # the cause may name the command that builds it
    name, files = wheel(tree)
    assert name.endswith("-py3-none-any")
    assert not [name for name in files if LIBRARY in name]
    assert PLACE.replace(LIBRARY, "variant.cpp") in files  # so that it can be built later


def test_a_failed_kernel_build_does_not_stop_the_installation(tree: Path) -> None:
    (tree / "src" / PLACE).with_name("build.py").write_text("import surely_not_there")
    assert "without its compiled kernel, slower: No module named 'surely_not_there'" in run(WHEEL, tree)
    assert wheel(tree)[0].endswith("-py3-none-any")


@needs_compiler
def test_an_editable_installation_has_the_kernel_in_the_source_folder(tree: Path) -> None:
    assert run(EDITABLE, tree) == ""
    assert (tree / "src" / PLACE).exists()
    assert (tree / "src" / PLACE).with_name(CHECKSUM).exists()


def test_an_editable_installation_without_a_compiler(tree: Path) -> None:
    assert "without its compiled kernel" in run(EDITABLE, tree, CXX="/nonexistent")
    assert not (tree / "src" / PLACE).exists()

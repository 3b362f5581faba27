"""Every planted bug can still be planted: its text occurs once in its file, and its tests exist.

A fast check of the lists only. `python tests/faults/inject.py` runs the tests on each bug.
"""

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PACKAGE = ROOT / "src" / "clearhead"


@pytest.fixture
def inject() -> Iterator[ModuleType]:
    """The module of the command, imported the way the command imports it: from its own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("inject")


def test_each_text_occurs_once_and_is_changed(inject: ModuleType) -> None:
    texts = {file: (PACKAGE / file).read_text() for file in {fault.file for fault in inject.FAULTS}}
    counts = {(fault.name, fault.file): texts[fault.file].count(fault.right) for fault in inject.FAULTS}
    assert {key: count for key, count in counts.items() if count != 1} == {}
    assert [fault.name for fault in inject.FAULTS if fault.right == fault.wrong] == []


def test_names_are_unique(inject: ModuleType) -> None:
    names = Counter(fault.name for fault in inject.FAULTS)
    assert [name for name, count in names.items() if count > 1] == []


def test_the_tests_of_each_bug_exist(inject: ModuleType) -> None:
    paths = {path.partition("::")[0] for fault in inject.FAULTS for path in fault.tests}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    named = {path for fault in inject.FAULTS for path in fault.tests if "::" in path}
    functions = {path: path.split("::")[1].partition("[")[0] for path in named}
    texts = {path: (ROOT / path.partition("::")[0]).read_text() for path in named}
    assert [path for path in sorted(named) if f"def {functions[path]}(" not in texts[path]] == []
    assert [fault.name for fault in inject.FAULTS if not fault.tests] == []


def test_each_list_of_bugs_is_part_of_the_command(inject: ModuleType) -> None:
    for path in FOLDER.glob("*_faults.py"):
        faults = getattr(importlib.import_module(path.stem), path.stem.upper())
        assert set(faults) <= set(inject.FAULTS), path.name

"""Registries: own units first, others by entry points or by `register`. Names import nothing and have one unit."""

import sys
from pathlib import Path
from typing import Any

import pytest

from clearhead.errors import InputError
from clearhead.registry import PackageWarning, Registry

OWN = {"second": "own_words:SECOND", "first": "own_words:FIRST"}


def _expected(name: str, unit: Any) -> str:
    return "" if isinstance(unit, str) else "a word"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[str]:
    """A registry with two own units, and a package that adds to it."""
    (tmp_path / "own_words.py").write_text("FIRST, SECOND = 'one', 'two'\n")
    (tmp_path / "other_words.py").write_text("WORD, NUMBER = 'three', 3\n")
    info = tmp_path / "others-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 2.5\n")
    entries = {"third": "WORD", "first": "WORD", "number": "NUMBER"}
    lines = [f"{name} = other_words:{value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("[tests.words]\n" + "".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_words", "other_words"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Registry("tests.words", "word", _expected, OWN)


def test_own_units_come_first_in_their_order_and_names_import_nothing(words: Registry[str]) -> None:
    assert words.names() == ["second", "first", "number", "third"]
    assert not {"own_words", "other_words"} & set(sys.modules)
    assert words.get("second") == "two"
    assert "other_words" not in sys.modules


def test_what_cannot_be_used_is_reported_with_its_package(words: Registry[str]) -> None:
    loaded = words.all()
    assert loaded.units == {"second": "two", "first": "one", "third": "three"}
    taken, wrong = loaded.failures
    assert "first of others" in taken
    assert "clearhead has" in taken
    assert "number of others" in wrong
    assert "is not a word" in wrong
    for name, cause in {"number": "not a word", "fourth": "installed: second, first, number, third"}.items():
        with pytest.raises(InputError, match=cause):
            words.get(name)


def test_a_unit_has_the_package_that_it_comes_from(words: Registry[str]) -> None:
    sources = {name: words.source(name) for name in words.names()}
    assert (sources["third"].package, sources["third"].version) == ("others", "2.5")
    assert sources["first"].package == "clearhead"
    assert sources["first"].version


def test_a_registered_unit_is_one_more_and_replaces_none(words: Registry[str]) -> None:
    words.register("fourth", "four")
    assert words.get("fourth") == words.all().units["fourth"] == "four"
    assert words.names()[-1] == "fourth"
    assert words.source("fourth").package == ""
    for name in ("first", "third", "fourth"):
        with pytest.raises(InputError, match=f"word {name} already"):
            words.register(name, "another")
    with pytest.raises(InputError, match="not a word"):
        words.register("fifth", 5)  # type: ignore[arg-type]
    assert words.get("second") == "two"


def test_a_use_warns_of_what_is_left_out(words: Registry[str]) -> None:
    with pytest.warns(PackageWarning) as caught:
        assert dict(words.usable()) == dict(words.all().units)
    assert [str(warning.message) for warning in caught] == list(words.all().failures)
    with pytest.warns(PackageWarning, match="first of others is not used: clearhead has"):
        assert words.get("first") == "one"


def test_units_of_others_may_come_first(words: Registry[str]) -> None:
    first = Registry("tests.words", "word", _expected, OWN, others_first=True)
    first.register("fourth", "four")
    assert list(first.all().units) == ["third", "fourth", "second", "first"]
    assert [first.is_own(name) for name in first.all().units] == [False, False, True, True]
    assert "third" in first
    assert "fifth" not in first

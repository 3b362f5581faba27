"""What is kept is taken again only while nothing that it hangs on has changed."""

import json
from pathlib import Path

import pytest

from clearhead.experiments import cache as module
from clearhead.experiments.cache import kept

made: list[int] = []


def make(*, number: int) -> dict[str, int]:
    made.append(number)
    return {"twice": 2 * number}


def test_the_same_is_made_once(tmp_path: Path) -> None:
    made.clear()
    path = tmp_path / "folder" / "it.json"
    for _ in range(2):
        assert kept(path, make, {"number": 3}, rooms=("numerics",)) == {"twice": 6}
    assert made == [3]
    assert kept(path, make, {"number": 5}, rooms=("numerics",)) == {"twice": 10}
    assert made == [3, 5]


def test_other_code_makes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    path = tmp_path / "it.json"
    kept(path, make, {"number": 3}, rooms=("numerics",))
    monkeypatch.setattr(module, "of_code", lambda room: f"other {room}")
    kept(path, make, {"number": 3}, rooms=("numerics",))
    assert made == [3, 3]


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"key": 1}'])
def test_a_broken_file_is_made_again(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "it.json"
    path.write_text(broken)
    assert kept(path, make, {"number": 3}, rooms=()) == {"twice": 6}
    assert json.loads(path.read_text())["found"] == {"twice": 6}


def test_what_json_changes_is_given_alike_both_times(tmp_path: Path) -> None:
    def pairs(*, upto: int) -> tuple[tuple[int, int], ...]:
        return tuple((i, i) for i in range(upto))

    found = [kept(tmp_path / "it.json", pairs, {"upto": 2}, rooms=()) for _ in range(2)]
    assert found == [[[0, 0], [1, 1]]] * 2

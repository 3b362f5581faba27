"""`clearhead verify`: the theories are shown while their theorems are checked."""

import pytest

from clearhead_lab.cli.verify_command import check_theorems
from clearhead_lab.theorems import table as theorems
from tests.cli.test_progress import Recorder


def test_verify_shows_each_theory_before_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Recorder()
    checked: list[str] = []

    def of(title: str) -> list[object]:
        assert len(bar.updates) == len(checked) + 1, "the phase is shown first"
        checked.append(title)
        return []

    titles = ("one", "two\x1b[2J")
    monkeypatch.setattr(theorems, "THEOREMS", {title: lambda title=title: of(title) for title in titles})
    assert check_theorems(bar) == []
    assert checked == list(titles)
    assert bar.updates == [("checking theorems: one", 0, 2), ("checking theorems: two?[2J", 1, 2)]

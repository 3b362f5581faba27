"""Theorem checks in a terminal of any width and as JSON values, and when a check holds."""

import dataclasses
import json
import math
import re

import pytest

from clearhead_lab.cli.verify_command import print_checks
from clearhead_lab.theorems.table import print_theorems, theorems_as_json
from clearhead_lab.theorems.theorem import TheoremCheck
from tests.report.test_terminal import WIDTHS, printed

THEOREM = TheoremCheck(
    source="someone",
    statement="left equals right",
    residual=1e-15,
    residual_single=1e-7,
    tolerance=1e-13,
    tolerance_single=1e-5,
    control="left with a wrong index",
    control_residual=0.1,
    citation="section 1",
)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"residual": 1e-12}, False),
        ({"residual_single": 1e-4}, False),
        ({"control_residual": 1e-4}, False),
        ({"residual": math.nan}, False),
        ({"control_residual": math.nan}, False),
    ],
    ids=str,
)
def test_a_theorem_holds_if_its_residuals_are_small_and_its_control_is_not(change: dict, holds: bool) -> None:
    assert dataclasses.replace(THEOREM, **change).holds is holds


@pytest.fixture(scope="session")
def theorems() -> list[TheoremCheck]:
    """Seven statements that hold and one that does not."""
    sound = TheoremCheck(
        source="Teo and Nguyen 2024, Proposition 1",
        statement="Attention outputs are projections of the queries onto the principal axes of the keys",
        residual=3.1e-15,
        residual_single=2.2e-6,
        tolerance=1e-12,
        tolerance_single=1e-4,
        control="values drawn at random",
        control_residual=0.83,
        citation="Teo and Nguyen 2024",
    )
    return [
        *[dataclasses.replace(sound, source=f"Source {i}") for i in range(7)],
        dataclasses.replace(sound, residual=0.5),
    ]


@pytest.fixture(scope="session")
def unchecked(theorems: list[TheoremCheck]) -> list[TheoremCheck]:
    """The same, and one statement whose package is missing."""
    nan = float("nan")
    last = dataclasses.replace(
        theorems[0],
        source="Source 8",
        residual=nan,
        residual_single=nan,
        control_residual=nan,
        missing="scikit-learn",
    )
    return [*theorems, last]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(unchecked, width):
    long = [dataclasses.replace(check, source="encoder.layers." * 20) for check in unchecked]
    for checks in (unchecked, long):
        assert max(map(len, printed(lambda c, checks=checks: print_theorems(checks, c), width).splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_theorems_show_everything_at_every_width(theorems, width):
    text = printed(lambda c: print_theorems(theorems, c), width)
    words = " ".join(text.split())
    assert words.count("values drawn at random") == len(theorems)
    assert words.count("Attention outputs are projections of the queries onto the principal axes of the keys") == 8
    assert words.count("3e-15 (1e-12)") == 7
    assert words.count("2e-6 (1e-4)") == 8
    assert words.count(".83") == 8
    assert len(re.findall(r"\bNO\b", text)) == 1
    assert len(re.findall(r"\byes\b", text)) == 7
    assert text.splitlines()[-1] == "7 hold, 1 do not hold"


@pytest.mark.parametrize("width", [*WIDTHS, 400])
def test_what_was_not_checked_is_not_a_failure(unchecked, width):
    text = printed(lambda c: print_theorems(unchecked, c), width)
    assert " ".join(text.split()).count("not checked: needs scikit-learn") == 1
    assert len(re.findall(r"\bNO\b", text)) == 1
    assert text.splitlines()[-1] == "7 hold, 1 do not hold, 1 not checked"


def test_verify_fails_for_what_does_not_hold_and_not_for_what_was_not_checked(unchecked, capsys):
    *sound, wrong, missing = unchecked
    for theorems, passed in (([*sound, missing], True), ([*sound, wrong], False), ([*sound, wrong, missing], False)):
        assert print_checks(theorems, as_json=False) is passed
        assert print_checks(theorems, as_json=True) is passed
    assert "not checked" in capsys.readouterr().out
    assert not missing.holds


def test_no_theorems_are_counted_as_zero():
    assert printed(lambda c: print_theorems([], c), 80) == "0 hold, 0 do not hold\n"


def test_theorems_are_counted(theorems):
    made = theorems_as_json(theorems)
    assert (made["hold"], made["do_not_hold"]) == (7, 1)
    assert [t["holds"] for t in made["theorems"]] == [True] * 7 + [False]
    assert made["not_checked"] == 0


def test_a_theorem_that_was_not_checked_neither_holds_nor_fails(unchecked):
    made = theorems_as_json(unchecked)
    assert (made["hold"], made["do_not_hold"], made["not_checked"]) == (7, 1, 1)
    assert made["theorems"][-1]["holds"] is None
    assert made["theorems"][-1]["missing"] == "scikit-learn"
    assert made["theorems"][-1]["residual"] is None
    assert json.loads(json.dumps(made, allow_nan=False)) == made

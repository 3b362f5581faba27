"""Tables of results: their numbers, and what a narrow terminal loses first."""

import pytest

from clearhead.report.columns import first_that_fits
from clearhead.report.tables import (
    Field,
    as_columns,
    as_markdown,
    decimals,
    estimate,
    mean_of,
    over_runs,
    percentage,
    plus_minus,
    significant,
)

FIELDS = [
    Field(title="way of training", short="trained", cells=["W", "K, Q"], text=True),
    Field(title="cosine", cells=[".993 ± .005", ".859 ± .022"], narrow=[".993", ".859"]),
    Field(title="at 100 steps", short="100", cells=[".724 ± .039", ".847 ± .033"], narrow=[".724", ".847"], rank=1),
    Field(title="reference", short="ref.", cells=[".996", ".861"], rank=2),
]


@pytest.mark.parametrize(
    ("width", "titles", "cells"),
    [
        (60, ["trained", "cosine", "100", "ref."], [".993 ± .005", ".724 ± .039"]),
        (35, ["trained", "cosine", "100", "ref."], [".993 ± .005", ".724"]),
        (28, ["trained", "cosine", "100"], [".993 ± .005", ".724"]),
        (26, ["trained", "cosine", "100"], [".993 ± .005", ".724"]),
        (25, ["trained", "cosine", "100"], [".993", ".724"]),
        (20, ["trained", "cosine"], [".993"]),
        (5, ["trained", "cosine"], [".993"]),
    ],
)
def test_narrow_terminals_lose_intervals_before_columns(width: int, titles: list[str], cells: list[str]) -> None:
    columns = first_that_fits(as_columns(FIELDS), width=width)
    assert [column.title for column in columns] == titles
    assert [str(column.cells[0]).strip() for column in columns[1 : 1 + len(cells)]] == cells


def test_the_page_has_every_column() -> None:
    assert as_markdown(FIELDS).splitlines()[0] == "| way of training | cosine | at 100 steps | reference |"
    assert as_markdown(FIELDS).splitlines()[2] == "| W | .993 ± .005 | .724 ± .039 | .996 |"


def test_numbers_are_short_and_correct() -> None:
    assert [decimals(v) for v in (0.9934, 1.0, 0.9999, -0.25, 12.3456, 0.0, None)] == [
        ".993", "1.000", "1.000", "-.250", "12.346", ".000", "-",
    ]  # fmt: skip
    assert percentage([True] * 3 + [False]) == "75 [30, 95]"
    assert percentage([]) == "-"
    assert over_runs([None, None]) is None
    mean = over_runs([0.2, None, 0.4])
    assert mean == estimate([0.2, 0.4])
    assert (mean_of(mean), mean_of(None)) == (".300", "-")
    assert plus_minus(mean) == ".300 ± 1.271"
    assert plus_minus(over_runs([0.2])) == ".200"
    assert plus_minus(over_runs([380.0, 390.0])) == "385.0 ± 63.5"


def test_small_numbers_keep_significant_digits() -> None:
    assert significant(over_runs([1.23456e-7])) == "1.23e-07"
    # The interval of two numbers a and b is 12.706 |a - b| / 2 to both sides.
    assert significant(over_runs([1e-5, 3e-5])) == "2e-05 ± 0.00013"
    assert significant(None) == "-"

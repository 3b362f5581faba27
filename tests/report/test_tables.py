"""Tables of results: their numbers, and what a narrow terminal loses first."""

import pytest

from clearhead.report.columns import first_that_fits
from clearhead.report.tables import Field, as_columns, as_markdown, percentage

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


def test_a_percentage_has_its_interval() -> None:
    assert percentage([True] * 3 + [False]) == "75 [30, 95]"
    assert percentage([]) == "-"

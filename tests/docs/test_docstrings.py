"""Docstrings become reStructuredText for the reference."""

import importlib
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).parents[2] / "docs" / "extensions"


def _converted(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.syspath_prepend(EXTENSIONS)
    return list(importlib.import_module("docstrings").converted(text.splitlines()))


def test_code_names_and_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"""Return `x` of a*b and |c|.

.. math:: o_i = \sum_j w_{ij} v_j

keep: receives `y`, so that
    memory stays
first, last: ends of a_b

More text."""
    assert _converted(text, monkeypatch) == [
        r"Return ``x`` of a\*b and \|c\|.",
        "",
        r".. math:: o_i = \sum_j w_{ij} v_j",
        "",
        ":keep: receives ``y``, so that",
        "    memory stays",
        r":first, last: ends of a\_b",
        "",
        "",
        "More text.",
    ]


def test_indented_lines_are_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _converted("It computes\n\n    out = a * b\n\nand more.", monkeypatch) == [
        "It computes", "", "::", "", "    out = a * b", "", "and more.",
    ]  # fmt: skip

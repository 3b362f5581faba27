"""Mutants are planted where their function has the fragment, wherever it is and however it is written."""

import ast
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutants.__main__ import DOES_NOT_APPLY, all_mutants, run
from tests.mutants.mutant import DoesNotApplyError, Mutant, Sources
from tests.once import once

pytestmark = once

SAMPLE = '''
    """A module."""
    LIMIT = 7

    class Judge:
        def verdict(self, value: float, least: float = 3) -> str:
            """Return a word.

          The second line of a docstring is indented less.
            """
            with open(self.name):  # a comment
                if value > least and value < LIMIT:
                    return 'above'
            return "below"

    def verdict(value):  # stays as it is
        return value>1
    '''


def planted(folder: Path, where: str, right: str, wrong: str, source: str = SAMPLE, file: str = "a/judging.py") -> str:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(source).lstrip())
    place, text = Sources(folder).plant(Mutant("name", where, right, wrong, ()))
    assert place.path == path
    assert path.read_text() == dedent(source).lstrip()  # planting writes nothing
    return text


def same(text: str, expected: str) -> bool:
    return ast.dump(ast.parse(text)) == ast.dump(ast.parse(dedent(expected)))


@pytest.mark.parametrize("right", ["value > least and value < LIMIT", "((value>least)\n and # why\n value < LIMIT)"])
def test_formatting_makes_no_difference(tmp_path: Path, right: str) -> None:
    text = planted(tmp_path, "judging:Judge.verdict", right, "value > least")
    assert same(text, SAMPLE.replace("value > least and value < LIMIT", "value > least"))
    assert "# stays as it is" in text


@pytest.mark.parametrize(
    ("where", "right", "wrong", "before", "after"),
    [
        ("judging:Judge.verdict", 'return "above"', "pass", "return 'above'", "pass"),
        ("judging:Judge.verdict", "with open(self.name): ...", "if True: ...", "with open(self.name):", "if True:"),
        ("judging:Judge.verdict", "def verdict(self, value: float, least: float=3) -> str: ...",
         "def verdict(self, value: float, least: float=5) -> str: ...", "= 3", "= 5"),
        ("judging:Judge.verdict", "return 'below'", "", 'return "below"', ""),
        ("judging:Judge", "value > least", "value >= least", "value > least", "value >= least"),
        ("judging:", "LIMIT = 7", "LIMIT = 8", "LIMIT = 7", "LIMIT = 8"),
        ("a.judging:verdict", "value > 1", "value < 1", "value>1", "value<1"),
    ],
)  # fmt: skip
def test_expressions_and_statements(
    tmp_path: Path, where: str, right: str, wrong: str, before: str, after: str
) -> None:
    assert same(planted(tmp_path, where, right, wrong), SAMPLE.replace(before, after))


def test_a_function_is_found_in_another_module(tmp_path: Path) -> None:
    text = planted(tmp_path, "judging:Judge.verdict", "value > least", "True", file="other/package/words.py")
    assert same(text, SAMPLE.replace("value > least", "True"))


@pytest.mark.parametrize(
    ("where", "right", "reason"),
    [
        ("judging:Judge.decide", "value > least", "does not exist"),  # a renamed function
        ("judging:Judge.verdict", "value > most", "0 of 1"),  # a rewritten one
        ("judging:Judge", "value", "0 of 1"),  # more than once
        ("judging.css", "color", "does not exist"),
    ],
)
def test_what_is_not_there_does_not_apply(tmp_path: Path, where: str, right: str, reason: str) -> None:
    with pytest.raises(DoesNotApplyError, match=reason):
        planted(tmp_path, where, right, "False")
    outcome, remark = run(Mutant("name", where, right, "False", ()), Sources(tmp_path), dry=True)
    assert outcome == DOES_NOT_APPLY
    assert reason in remark


def test_the_module_decides_between_functions_of_one_name(tmp_path: Path) -> None:
    planted(tmp_path, "judging:verdict", "value > 1", "False", file="a/other.py")
    planted(tmp_path, "judging:verdict", "value > 1", "False")
    with pytest.raises(DoesNotApplyError, match="2 of 2"):
        planted(tmp_path, "elsewhere:verdict", "value > 1", "False")


def test_other_languages_are_edited_as_text(tmp_path: Path) -> None:
    source = "p { color: red; }\n"
    assert planted(tmp_path, "report/page.css", "red", "blue", source, "a/report/page.css") == source.replace(
        "red", "blue"
    )


def test_the_lists_can_be_planted() -> None:
    mutants = all_mutants()
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    assert [mutant.name for mutant in mutants if mutant.right == mutant.wrong or not mutant.tests] == []
    for mutant in mutants:
        if ":" in mutant.where:
            ast.parse(mutant.right), ast.parse(mutant.wrong)

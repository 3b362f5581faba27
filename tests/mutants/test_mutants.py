"""Mutants are planted where their function has the fragment, wherever it is and however it is written."""

import ast
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

import tests.mutants.__main__ as command
from tests.mutants.__main__ import DOES_NOT_APPLY, KILLED, SURVIVED, all_mutants, changed, run
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
    with pytest.raises(DoesNotApplyError, match="0 of 1"):
        planted(tmp_path, "report/page.css", "r", "b", source, "a/report/page.css")


def test_changed_functions(tmp_path: Path) -> None:
    sources = []
    for folder, method in (("before", "value > least"), ("after", "value >= least"), ("same", "(value>least)")):
        text = dedent(SAMPLE).replace("value > least", method)
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "judging.py").write_text(text)
        sources.append(Sources(tmp_path / folder))
    method = Mutant("method", "judging:Judge.verdict", "'above'", "''", ())
    rewritten = Mutant("rewritten", "judging:Judge.verdict", "value > least", "True", ())
    function = Mutant("function", "judging:verdict", "value > 1", "True", ())
    before, after, same = sources
    assert changed([method, rewritten, function], before, after) == [method, rewritten]
    assert changed([method, rewritten, function], before, same) == []


def test_an_interrupted_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"first": (KILLED, "test"), "second": (SURVIVED, "file"), "third": (DOES_NOT_APPLY, "renamed")}
    log = tmp_path / "log.tsv"
    log.write_text("killed\tfirst\ttest\n")
    monkeypatch.setattr(command, "all_mutants", lambda: [Mutant(name, "m:f", "1", "2", ()) for name in outcomes])
    monkeypatch.setattr(command, "run", lambda mutant, sources, dry: outcomes[mutant.name])
    monkeypatch.setattr(command, "FOLDERS", [])
    monkeypatch.setattr("sys.argv", ["mutants", "--log", str(log)])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 1
    *rows, counts = capsys.readouterr().out.splitlines()
    assert [row.split()[-2] for row in rows] == ["second", "third"]
    assert counts == "1 killed, 1 SURVIVED, 1 does not apply"
    assert [line.split("\t")[1] for line in log.read_text().splitlines()] == ["first", "second", "third"]
    monkeypatch.setattr("sys.argv", ["mutants", "--only", "first", "third"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 0  # what does not apply is no failure


def test_the_lists_can_be_planted() -> None:
    mutants = all_mutants()
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    assert [mutant.name for mutant in mutants if mutant.right == mutant.wrong or not mutant.tests] == []
    for mutant in mutants:
        if ":" in mutant.where:
            ast.parse(mutant.right), ast.parse(mutant.wrong)

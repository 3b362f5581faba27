"""The table of signs with small settings: the counts, and that they are right."""

import json
from pathlib import Path

import pytest

from clearhead.report.tables import as_markdown
from clearhead_lab.experiments.crate import sign_table
from clearhead_lab.experiments.crate.sign_table import ROWS, SIGN_TABLE, STEPS, count_signs
from clearhead_lab.experiments.experiment import Outcome, Request


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("signs")
    request = Request(out=folder, seeds=2)
    return SIGN_TABLE.run(request), SIGN_TABLE.folder(folder)


def signs(outcome: Outcome, title: str) -> dict[str, str]:
    """The cells of one row by column."""
    step, *others = outcome.tables[0]
    row = [str(cell) for cell in step.cells].index(title)
    return {str(column.title): str(column.cells[row]) for column in others}


def test_signs_are_those_of_the_reference(outcome: tuple[Outcome, Path]) -> None:
    result, _ = outcome
    for row in ROWS:
        cells = signs(result, row.title)
        raw, unit = row.reference.split(", ")
        assert cells["raw"].endswith(raw), row
        if "released, Z + .1" not in row.title:  # there the change is small, and some trials go the other way
            assert cells["unit norm"].endswith(unit), row
    assert signs(result, "paper, κ = .1/a and .5/a")["raw"] == "24 of 24 down"
    assert signs(result, "first order, a s² < 1")["raw"] == "4 of 4 down"
    assert "in 6 of 6 cells" in result.remarks[1].replace("\n", " ")


def test_every_file_is_written_and_measurements_are_cached(
    outcome: tuple[Outcome, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, folder = outcome
    assert all(file.exists() for file in result.files)
    facts = json.loads((folder / "result.json").read_text())["facts"]
    assert set(facts["cells"]["isotropic, eps = 1"]["changes"]) == set(STEPS)
    assert "| released, Z + SSA | 36 of 36 up |" in (folder / "table.md").read_text()
    monkeypatch.setitem(sign_table.STEPS, "exact .1", lambda *_: pytest.fail("it was cached"))
    again = SIGN_TABLE.run(Request(out=folder.parent, seeds=2))
    assert again.headline == result.headline


def test_counts() -> None:
    assert count_signs([1.0, 2.0]) == "2 of 2 up"
    assert count_signs([-1.0, -1.0, 3.0]) == "2 of 3 down, 1 up"
    assert count_signs([-1.0, 0.0]) == "1 of 2 down"
    assert count_signs([1e-13, -1e-13]) == "unchanged"
    assert as_markdown(sign_table.cell_table({"a": {"ratio": [1.0], "changes": {s: {"raw": [0.5]} for s in STEPS}}}))

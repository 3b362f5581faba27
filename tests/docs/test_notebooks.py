"""The notebooks run from top to bottom, and what they show is what they stored."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.once import once

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def _run(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307


@once
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_shows_what_it_stored(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    shown = 0
    for cell in cells:
        value = _run("".join(cell["source"]), names)
        printed = capsys.readouterr().out
        stored = cell["outputs"]
        assert bool(printed) == any(output["output_type"] == "stream" for output in stored)
        assert (value is not None) == any(output["output_type"] == "execute_result" for output in stored)
        assert not any(output["output_type"] == "error" for output in stored)
        for output in stored:
            if "text/html" in output.get("data", {}):
                first = "".join(output["data"]["text/html"]).partition(">")[0]
                assert value._repr_html_().startswith(first)
                shown += 1
    assert shown or path.stem != "audit-a-model"


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3

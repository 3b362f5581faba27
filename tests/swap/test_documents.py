"""The code of docs/swapping.md runs."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "swapping.md"


@pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")
def test_the_code_of_the_swapping_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    shared: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), shared)
    assert (tmp_path / "config.json").is_file()

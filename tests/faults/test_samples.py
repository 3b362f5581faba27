"""A sample of what the commands of this folder try: hostile folders and damaged files."""

import shutil
from pathlib import Path

import pytest

from tests.faults.current_folder import make_model_folder
from tests.faults.hostile_folders import outcome
from tests.faults.stored_damage import STATES, outcomes
from tests.once import once


@once
def test_hostile_folders_are_loaded_or_refused(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    make_model_folder(tmp_path / "original")
    for seed in range(1000, 1010):
        shutil.copytree(tmp_path / "original", tmp_path / "folder")
        assert outcome(tmp_path / "folder", seed) in ("loaded", "refused")
        shutil.rmtree(tmp_path / "folder")


@once
@pytest.mark.parametrize("state", STATES)
def test_no_damage_is_silent(state: str, tmp_path: Path) -> None:
    results = outcomes(state, tmp_path / "state", count=3)
    assert results["silent"] == 0
    assert results["refused"] + results["older"] > 0.8 * results.total()

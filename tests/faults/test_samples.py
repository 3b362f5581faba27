"""A sample of what the commands of this folder try, 5 % or more of each: `make faults` runs all of it."""

import dataclasses
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest

from clearhead.storage import lock_folder
from tests.faults.current_folder import make_model_folder
from tests.faults.degenerate_numbers import GOOD, KINDS, cases
from tests.faults.degenerate_numbers import outcome as outcome_of_numbers
from tests.faults.degenerate_subjects import SUBJECTS, public_names
from tests.faults.hostile_folders import outcome
from tests.faults.hostile_reports import make_world, name_planted_batches
from tests.faults.hostile_reports import outcome as outcome_of_report
from tests.faults.interruptions import KINDS as INTERRUPTIONS
from tests.faults.interruptions import (
    REFUSED,
    exit_code,
    final_state,
    interrupt_until_done,
    run_training,
    start_training,
)
from tests.faults.shards import GOOD as MERGED_OR_REFUSED
from tests.faults.shards import merged, write_audits
from tests.faults.shards import outcome as outcome_of_shards
from tests.faults.stored_damage import STATES, outcomes
from tests.once import once

pytestmark = once


def test_hostile_folders_are_loaded_or_refused(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    make_model_folder(tmp_path / "original")
    for seed in range(1000, 1010):
        shutil.copytree(tmp_path / "original", tmp_path / "folder")
        assert outcome(tmp_path / "folder", seed) in ("loaded", "refused")
        shutil.rmtree(tmp_path / "folder")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_hostile_reports_run_nothing_and_are_refused_or_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_world(tmp_path / "original")
    results = [outcome_of_report(tmp_path / "original", tmp_path / "world", seed) for seed in range(1000, 1016)]
    assert set(results) == {"refused", "repeated"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_control_a_command_that_believes_the_report_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_world(tmp_path / "original")
    monkeypatch.setattr("clearhead.cli.rerun_command.confirm", lambda stored, report, typed: stored)
    monkeypatch.setattr("clearhead.cli.compare_command.confirm", lambda stored, report, typed: stored)
    monkeypatch.setattr("tests.faults.hostile_reports.ATTACKS", (name_planted_batches,) * 2)
    results = (outcome_of_report(tmp_path / "original", tmp_path / "world", seed) for seed in range(8))
    assert any(result.startswith("executed") for result in results)


@pytest.mark.parametrize("state", STATES)
def test_no_damage_is_silent(state: str, tmp_path: Path) -> None:
    results = outcomes(state, tmp_path / "state", count=10)
    assert results["silent"] == 0
    assert results["refused"] + results["older"] > 0.8 * results.total()


def test_every_public_function_is_tried_with_degenerate_numbers() -> None:
    assert public_names() <= set(SUBJECTS)


def test_degenerate_numbers_give_the_right_number_or_an_error() -> None:
    pairs = [(name, kind) for name in SUBJECTS for kind in KINDS]
    chosen = random.Random(0).sample(pairs, len(pairs) // 20)
    faults = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed, (name, kind) in enumerate(chosen):
            results = [outcome_of_numbers(name, kind, operands) for _, operands in cases(name, kind, seed)]
            faults += [f"{name}, {kind}, seed {seed}: {result}" for result in results if result not in GOOD]
    assert faults == []


def test_control_a_function_that_loses_nan_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name, kind = "softmax_attention", "one NaN"
    subject = SUBJECTS[name]
    losing = dataclasses.replace(subject, compute=lambda **operands: subject.compute(**operands).nan_to_num())
    monkeypatch.setitem(SUBJECTS, name, losing)
    results = {outcome_of_numbers(name, kind, operands) for _, operands in cases(name, kind, 0)}
    assert results == {"a number where the definition is not finite"}


def test_folders_of_shards_are_merged_as_the_audit_is_or_refused(tmp_path: Path) -> None:
    write_audits(tmp_path)
    expected = merged(tmp_path / "audit")
    results = [outcome_of_shards(seed, tmp_path, expected) for seed in range(1000, 1008)]
    assert [case for case in results if case not in MERGED_OR_REFUSED] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_interrupted_trainings_end_as_others_do(tmp_path: Path) -> None:
    run_training(tmp_path / "whole")
    expected = final_state(tmp_path / "whole")
    for seed, kind in enumerate(INTERRUPTIONS):
        interrupt_until_done(tmp_path / kind, kind, seed, seconds=0.3)
        assert final_state(tmp_path / kind) == expected
    with lock_folder(tmp_path / "held"):
        assert exit_code(start_training(tmp_path / "held")) == REFUSED

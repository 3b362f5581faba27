"""A sample of what the commands of this folder try, 5 % or more of each: `make faults` runs all of it."""

import dataclasses
import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clearhead.storage import lock_folder
from tests.faults.current_folder import make_model_folder
from tests.faults.degenerate_numbers import GOOD, KINDS, cases
from tests.faults.degenerate_numbers import outcome as outcome_of_numbers
from tests.faults.degenerate_subjects import SUBJECTS, public_names
from tests.faults.hostile_folders import outcome
from tests.faults.hostile_inputs import CASES
from tests.faults.hostile_inputs import KINDS as INPUTS
from tests.faults.hostile_inputs import outcome as outcome_of_input
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
from tests.faults.wrong_records import GOOD as USED_OR_REFUSED
from tests.faults.wrong_records import RECORDS, prepare
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_hostile_inputs_are_read_or_refused(tmp_path: Path) -> None:
    results = [outcome_of_input(tmp_path / "world", seed) for seed in random.Random(0).sample(range(len(CASES)), 12)]
    assert set(results) <= {"read", "refused"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_control_inputs_of_a_reader_that_believes_files_are_faults(tmp_path: Path) -> None:
    def outcomes(name: str, change: str, read: Callable[[Path], object]) -> str:
        kind = next(dataclasses.replace(kind, read=read) for kind in INPUTS if kind.name == name)
        return outcome_of_input(tmp_path / "world", 0, (kind, change))

    def of_objects(path: Path) -> object:
        with np.load(path, allow_pickle=True) as stored:
            return stored["x_train"]

    assert "executed" in outcomes("images.npz", "!objects", of_objects)
    assert "silent" in outcomes("sound.wav", "!rate", Path.read_bytes)
    assert "traceback" in outcomes("table.jsonl", "!deep", lambda path: json.loads(path.read_text()))
    assert "traceback" in outcomes("text.txt", "!half of a pair", Path.read_text)
    assert "more memory" in outcomes("text.txt", "!too big", lambda path: bytearray(3 * 2**30))


def test_wrong_records_are_refused_or_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    attempt = prepare(tmp_path)
    assert {attempt(seed) for seed in range(1000, 1000 + 2 * len(RECORDS))} <= USED_OR_REFUSED


@pytest.mark.parametrize("name", ["cache", "log of a training"])
def test_control_records_that_are_believed_are_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("clearhead.stored_json", "clearhead_lab.training.loop"):
        monkeypatch.setattr(f"{module}.read_record", lambda kind, stored, *args, **options: stored)
    monkeypatch.setattr("tests.faults.wrong_records.RECORDS", {name: RECORDS[name]})
    attempt = prepare(tmp_path)
    results = [attempt(seed) for seed in range(30)]
    assert any("silent" in result or "traceback" in result for result in results)


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

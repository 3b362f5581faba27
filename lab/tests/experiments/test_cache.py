"""The cache of experiments: a result is used only while nothing it depends on has changed, and never if damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.storage import tensor_fingerprint
from clearhead.stored_json import read_json, write_json
from clearhead_lab.experiments import cache
from clearhead_lab.experiments.cache import cached, load_cached, measure_cells, store
from clearhead_lab.experiments.experiment import Request

computed: list[int] = []
notices: list[str] = []


@pytest.fixture(autouse=True)
def empty() -> None:
    computed.clear()
    notices.clear()


def measure(*, number: int) -> dict[str, int]:
    computed.append(number)
    return {"twice": 2 * number}


def run(path: Path, number: int = 3, packages: tuple[str, ...] = ("numerics",)) -> Any:
    return cached(path, measure, {"number": number}, packages=packages, notice=notices.append)


def test_a_result_is_computed_once_for_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "it.json"
    assert [run(path), run(path)] == [{"twice": 6}] * 2
    assert computed == [3]
    assert run(path, 5) == {"twice": 10}
    assert computed == [3, 5]
    assert notices == []


def test_other_code_computes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "it.json")
    monkeypatch.setattr(cache, "code_fingerprint", lambda package: f"other {package}")
    run(tmp_path / "it.json")
    assert computed == [3, 3]


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"key": 1}', "[" * 100_000])
def test_a_file_without_a_checksum_is_computed_again_with_a_notice(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "it.json"
    path.write_text(damaged)
    assert run(path) == {"twice": 6}
    assert notices == [f"{path} is damaged or has no checksum; measuring again"]
    assert read_json(path)["result"] == {"twice": 6}


def test_no_flipped_bit_is_used(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    run(path, packages=())
    stored = path.read_bytes()
    for position in range(0, len(stored), 3):
        path.write_bytes(stored[:position] + bytes([stored[position] ^ 1]) + stored[position + 1 :])
        assert run(path, packages=()) == {"twice": 6}
        path.write_bytes(stored)
    assert len(notices) > 0.25 * len(stored)
    assert len(computed) == 1 + len(notices)


def test_an_edited_result_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    run(path)
    path.write_text(path.read_text().replace('"twice": 6', '"twice": 72556'))
    assert run(path) == {"twice": 6}
    assert len(notices) == 1


def test_a_file_of_another_writer_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    write_json(path, {"other": 1})
    assert run(path) == {"twice": 6}
    assert computed == [3]


def test_results_are_the_same_from_the_cache_and_computed(tmp_path: Path) -> None:
    def pairs(*, count: int) -> tuple[tuple[int, int], ...]:
        return tuple((i, i) for i in range(count))

    results = [cached(tmp_path / "it.json", pairs, {"count": 2}, notice=notices.append) for _ in range(2)]
    assert results == [[[0, 0], [1, 1]]] * 2


def test_none_is_cached_as_a_result(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    assert load_cached(path, {"a": 1}, notice=notices.append) is None
    assert store(path, {"a": (1, 2)}, None) is None
    assert load_cached(path, {"a": (1, 2)}, notice=notices.append) == {"key": {"a": [1, 2]}, "result": None}
    assert load_cached(path, {"a": (1, 3)}, notice=notices.append) is None


def test_cells_are_cached_one_by_one(tmp_path: Path) -> None:
    reported: list[tuple[str, int, int | None]] = []
    request = Request(out=tmp_path, seed=4, progress=lambda *step: reported.append(step), notice=notices.append)
    names = ["K, Q, d = 5", "tokens / 0.5"]
    cells = measure_cells(
        measure, lambda request: {name: {"number": request.seed + i} for i, name in enumerate(names)}, packages=()
    )
    assert cells(request, tmp_path) == {names[0]: {"twice": 8}, names[1]: {"twice": 10}}
    assert reported == [(names[0], 0, 2), (names[1], 1, 2)]
    assert sorted(path.name for path in (tmp_path / "measured").iterdir()) == ["K-Q-d-5.json", "tokens-0.5.json"]
    (tmp_path / "measured" / "K-Q-d-5.json").write_text("{")
    cells(request, tmp_path)
    assert computed == [4, 5, 4]
    assert json.loads((tmp_path / "measured" / "K-Q-d-5.json").read_text())["sha256"]


def test_fingerprints_see_every_entry_the_shape_and_the_dtype() -> None:
    x = torch.arange(6.0)
    others = (x.view(2, 3), x.double(), x + torch.eye(6)[5] * 1e-6, x.flip(0))
    prints = {tensor_fingerprint([each]) for each in (x, *others)} | {tensor_fingerprint([x], source="other")}
    assert len(prints) == 6
    assert tensor_fingerprint([x]) == tensor_fingerprint([x.clone()])
    same_bytes = torch.zeros(3), torch.zeros(3, dtype=torch.int32)
    assert tensor_fingerprint(same_bytes[:1]) != tensor_fingerprint(same_bytes[1:])

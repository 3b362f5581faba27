"""Audits in shards, merged, interrupted and continued, equal the plain audit."""

import copy
import dataclasses
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from clearhead.audit import checkpoint as checkpoints
from clearhead.audit.finishing import finish_audit
from clearhead.audit.measuring import measure_part
from clearhead.audit.part import Shard, history_start
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import AuditError, audit, options_and_baseline
from clearhead.audit.shards import audit_shard, merge_parts, merge_shards, read_shards, shard_from_environment
from clearhead.errors import InputError
from clearhead.report.json_file import audit_as_json
from clearhead.storage import lock_file
from tests.once import once

HEADS, WIDTH, VOCABULARY = 2, 3, 41
INPUTS, BATCH, LAYERS = 14, 3, (1,)
EVERYTHING: dict[str, Any] = {
    "theories": ("max-margin", "coding-rate", "symmetry", "attention-sinks"),
    "layers": LAYERS,
    "claims": "all",
    "decode": lambda ids: " ".join(f"word{i}" for i in ids),
}
ROUNDING = 1e-12
"""Sums are added in another order."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Return two random layers with large scores, so that some attention is saturated."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=7, initializer_range=1.0, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def batches_of(inputs: int = INPUTS) -> list[dict[str, torch.Tensor]]:
    """Return inputs of different lengths, padded. The last but one is too short for max margin."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (inputs, 9), generator=generator)
    lengths = torch.randint(6, 10, (inputs, 1), generator=generator)
    lengths[-2] = 2
    mask = (torch.arange(9) < lengths).long()
    return [{"input_ids": i, "attention_mask": m} for i, m in zip(ids.split(BATCH), mask.split(BATCH), strict=True)]


@pytest.fixture(scope="module")
def plain(model: nn.Module) -> AuditRecord:
    """Return the audit in one process."""
    return audit(model, batches_of(), **EVERYTHING)


def assert_same(record: AuditRecord, expected: AuditRecord) -> None:
    """Assert equal verdicts and texts, and numbers that are equal to rounding."""
    first, second = audit_as_json(record), audit_as_json(expected)
    for values in (first, second):
        for key in ("timing", "created"):
            values.pop(key)
    _assert_alike(first, second, "record")
    assert [s.values.tobytes() for s in record.samples] == [s.values.tobytes() for s in expected.samples]
    assert record.texts == expected.texts
    assert [shown.tokens for shown in record.shown] == [shown.tokens for shown in expected.shown]
    assert _arrays(record) == _arrays(expected)
    assert record.manifest is not None
    assert expected.manifest is not None
    assert record.manifest.differences(expected.manifest) == []


def _arrays(record: AuditRecord) -> list[bytes]:
    layers = [layer for shown in record.shown for layer in shown.layers]
    return [array.tobytes() for layer in layers for array in (layer.weights, *(p.bars for p in layer.pictures))]


def _assert_alike(value: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert value.keys() == expected.keys(), where
        for key in expected:
            _assert_alike(value[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(value) == len(expected), where
        for index, (a, b) in enumerate(zip(value, expected, strict=True)):
            _assert_alike(a, b, f"{where}[{index}]")
    elif isinstance(expected, float) and math.isfinite(expected):
        assert value == pytest.approx(expected, rel=ROUNDING, abs=ROUNDING), where
    else:
        assert value == expected or value != value, where


def write_shards(folder: Path, model: nn.Module, count: int, **options: Any) -> None:
    """Write all shards, the last one first."""
    for number in range(count, 0, -1):
        audit_shard(model, batches_of(), shard=f"{number}/{count}", folder=folder, **options)


@once
@pytest.mark.parametrize("count", [2, 7])
def test_merged_shards_equal_the_plain_audit(count: int, model: nn.Module, plain: AuditRecord, tmp_path: Path) -> None:
    """Also with more shards than batches, where some have no inputs."""
    write_shards(tmp_path, model, count, **EVERYTHING)
    merged = merge_shards(tmp_path)
    assert_same(merged, plain)
    assert (merged.fidelity, merged.whole_model) == (plain.fidelity, plain.whole_model)
    assert max(finding.inputs for finding in merged.findings) == INPUTS
    assert 2 in {finding.inputs for finding in merged["max-margin"].findings}, "groups over two shards"


class Stop(KeyboardInterrupt):
    """An interrupt that a test makes."""


def save_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the checkpoint after every batch, however long that takes."""
    monkeypatch.setattr(checkpoints, "PAUSE", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", math.inf)


class Stopping:
    """Batches that are interrupted once, before the batch number `after` of all that were read."""

    def __init__(self, batches: list[Any], after: int) -> None:
        self._batches, self._left = batches, after

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if self._left == 0:
                self._left = -1
                raise Stop
            self._left -= 1
            yield batch


@once
@pytest.mark.parametrize("shard", ["1/1", "2/2"])
def test_an_audit_that_is_interrupted_at_every_few_batches_equals_the_plain_audit(
    shard: str, model: nn.Module, plain: AuditRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the model's own run and in those of the baseline."""
    save_every_batch(monkeypatch)
    options = EVERYTHING
    count = Shard.parse(shard).count
    if count == 2:
        audit_shard(model, batches_of(), shard="1/2", folder=tmp_path, **options)
    interrupts = 0
    for after in (8, 4, 13, 7, 16, 22, 10**6):
        batches: Any = Stopping(batches_of(), after)
        try:
            if count == 1:
                record = audit(model, batches, checkpoint=tmp_path / "sums", **options)
            else:
                audit_shard(model, batches, shard=shard, folder=tmp_path, **options)
                record = merge_shards(tmp_path)
            break
        except Stop:
            interrupts += 1
    assert interrupts >= 3
    assert_same(record, plain)
    assert not (tmp_path / "sums").exists()


SHORT: dict[str, Any] = {"theories": "attention-sinks", "baseline": None, "layers": LAYERS}


def test_a_checkpoint_of_another_audit_is_reported_and_not_used(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_every_batch(monkeypatch)
    lines: list[str] = []
    file = tmp_path / "sums"

    def run(batches: Any, **options: Any) -> AuditRecord:
        chosen, baseline = options_and_baseline({**SHORT, **options})
        checkpoint = checkpoints.Checkpoint(file)
        part = measure_part(model, batches, chosen, baseline=baseline, checkpoint=checkpoint, notice=lines.append)
        return finish_audit([part])

    with pytest.raises(Stop):
        run(Stopping(batches_of(), 2))
    assert_same(run(batches_of(), seed=1), audit(model, batches_of(), **SHORT, seed=1))
    assert lines == [
        "the saved part of an audit is of another one (seed of the controls: 0, now 1); the audit starts again"
    ]
    file.write_bytes(file.read_bytes()[:-1])
    run(batches_of())
    assert "does not match its checksum" in lines[-1]
    with pytest.raises(AuditError, match="other inputs"):
        run(batches_of()[1:])
    file.unlink()
    with pytest.raises(Stop):
        run(Stopping(batches_of(), 3))
    with pytest.raises(AuditError, match="other inputs"):
        run(batches_of()[1:])
    lines.clear()
    run(batches_of())
    assert lines == ["continues an interrupted audit: 9 inputs were measured"]


def test_shards_that_are_missing_unfinished_or_of_another_audit_are_named(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shards"):
        merge_shards(tmp_path)
    write_shards(tmp_path, model, 3, **SHORT)
    second, third = tmp_path / "shard-2-of-3.safetensors", tmp_path / "shard-3-of-3.safetensors"
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(InputError, match=r"lacks shard-2-of-3\.safetensors.*--shard 2/3"):
        merge_shards(tmp_path)
    second.write_bytes(kept[:-1])
    with pytest.raises(InputError, match=r"shard-2-of-3\.safetensors .*checksum"):
        merge_shards(tmp_path)
    second.write_bytes(kept)
    audit_shard(model, batches_of(), shard="3/3", folder=tmp_path, **{**SHORT, "seed": 4})
    with pytest.raises(InputError, match=r"shard-3-of-3\.safetensors .*shard-1-of-3.*: 0, now 4"):
        merge_shards(tmp_path)
    third.unlink()
    with pytest.raises(Stop):
        audit_shard(model, Stopping(batches_of(), 5 + 4), shard="3/3", folder=tmp_path, **SHORT)
    with pytest.raises(InputError, match=r"shard-3-of-3\.safetensors .*not finished"):
        merge_shards(tmp_path)
    audit_shard(model, batches_of(), shard="1/2", folder=tmp_path, **SHORT)
    with pytest.raises(InputError, match="of 2 and of 3"):
        merge_shards(tmp_path)


@pytest.mark.parametrize("name", ["shard-1-of-2-of-2", "shard-01-of-2", "shard-1-of-02", "shard-3-of-3"])
def test_a_shard_that_was_copied_or_renamed_is_refused_by_name(name: str, model: nn.Module, tmp_path: Path) -> None:
    write_shards(tmp_path, model, 2, **SHORT)
    file = tmp_path / "shard-1-of-2.safetensors"
    copied = tmp_path / f"{name}.safetensors"
    shutil.copy(file, copied)
    with pytest.raises(InputError, match=f"{re.escape(str(copied))} .*shard-1-of-2.safetensors"):
        merge_shards(tmp_path)
    file.unlink()
    with pytest.raises(InputError, match=re.escape(str(copied))):
        merge_shards(tmp_path)


def test_a_shard_that_is_given_twice_is_refused_by_name(model: nn.Module, tmp_path: Path) -> None:
    write_shards(tmp_path, model, 2, **SHORT)
    parts = read_shards(tmp_path)
    with pytest.raises(InputError, match=r"shard-2-of-2\.safetensors is there twice"):
        merge_parts([*parts, read_shards(tmp_path)[1]])


@pytest.mark.parametrize("change", ["the inputs of another shard", "more inputs", "other batches"])
def test_a_shard_that_does_not_cover_the_inputs_of_its_number_is_refused(
    change: str, model: nn.Module, tmp_path: Path
) -> None:
    inputs = 12  # every shard has as many
    for number in (1, 2):
        audit_shard(model, batches_of(inputs), shard=f"{number}/2", folder=tmp_path, **SHORT)
    first, second = read_shards(tmp_path)
    if change == "the inputs of another shard":
        second = dataclasses.replace(first, shard=second.shard)
    elif change == "more inputs":
        second.audited.inputs += 1
    else:
        second.sizes = [size + 1 for size in second.sizes]
    with pytest.raises(InputError, match=r"shard-2-of-2\.safetensors .*inputs 7 to 12 of 12.*--shard 2/2"):
        merge_parts([read_shards(tmp_path)[0], second])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_a_checkpoint_has_one_writer_and_shards_one_each(model: nn.Module, tmp_path: Path) -> None:
    file, second = tmp_path / "sums", tmp_path / "shard-2-of-2.safetensors"
    with lock_file(file), pytest.raises(InputError, match=f"{re.escape(str(file))} is in use"):
        audit(model, batches_of(), checkpoint=file, **SHORT)
    with lock_file(second):
        with pytest.raises(InputError, match=f"{re.escape(str(second))} is in use"):
            audit_shard(model, batches_of(), shard="2/2", folder=tmp_path, **SHORT)
        audit_shard(model, batches_of(), shard="1/2", folder=tmp_path, **SHORT)
    assert [path.name for path in tmp_path.iterdir()] == ["shard-1-of-2.safetensors"]


@pytest.mark.parametrize("change", ["weights", "data", "theories"])
def test_a_shard_of_another_model_or_other_inputs_is_refused(change: str, model: nn.Module, tmp_path: Path) -> None:
    audit_shard(model, batches_of(), shard="1/2", folder=tmp_path, **SHORT)
    changed, batches, options = copy.deepcopy(model), batches_of(), dict(SHORT)
    if change == "weights":
        with torch.no_grad():
            next(iter(changed.parameters()))[0, 0] += 1e-6
    elif change == "data":
        batches[-1]["input_ids"][0, 0] += 1
    else:
        options["theories"] = ("attention-sinks", "symmetry")
    audit_shard(changed, batches, shard="2/2", folder=tmp_path, **options)
    with pytest.raises(InputError, match=f"shard-2-of-2.*shard-1-of-2.*{change}"):
        merge_shards(tmp_path)


def test_batches_that_cannot_be_divided_are_refused(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="a list"):
        audit_shard(model, iter(batches_of()), shard="1/2", folder=tmp_path, **SHORT)

    class Changing:
        reads = 0

        def __iter__(self) -> Iterator[Any]:
            self.reads += 1
            for batch in batches_of():
                yield {**batch, "input_ids": (batch["input_ids"] + self.reads) % VOCABULARY}

    with pytest.raises(AuditError, match="changed"):
        audit_shard(model, Changing(), shard="1/2", folder=tmp_path, **SHORT)


def test_every_batch_is_in_one_shard() -> None:
    for total in (0, 1, 7, 36):
        for count in (1, 2, 5, 11):
            batches = [batch for i in range(count) for batch in Shard(i + 1, count).batches(total)]
            assert batches == list(range(total))
            sizes = [len(Shard(i + 1, count).batches(total)) for i in range(count)]
            assert max(sizes) - min(sizes) <= 1


def test_the_history_of_a_batch_is_the_inputs_before_it() -> None:
    assert history_start([4, 4, 4, 4, 4, 4], 4) == 1
    assert history_start([5, 5, 5, 5], 3) == 0
    assert history_start([20, 1, 1], 2) == 0
    assert history_start([4, 4], 1) == history_start([4, 4], 0) == history_start([], 0) == 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "0", "WORLD_SIZE": "3"}, Shard(1, 3)),
        ({"RANK": "2", "WORLD_SIZE": "3", "SLURM_ARRAY_TASK_ID": "9"}, Shard(3, 3)),
        ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_COUNT": "2"}, Shard(2, 2)),
    ],
)
def test_a_launcher_gives_the_shard(environment: dict[str, str], expected: Shard) -> None:
    assert shard_from_environment(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "launcher"),
        ({"RANK": "1"}, "launcher"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_MIN"),
        (
            {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "3"},
            "9 of 3",
        ),
    ],
)
def test_a_launcher_without_a_shard_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shard_from_environment(environment)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="i/n"):
        Shard.parse(text)

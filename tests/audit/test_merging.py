"""What each shard measures, and which shards are merged, in what order."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from clearhead.audit.checkpoint import read_part
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.audit.shards import audit_shard, merge_parts, merge_shards, read_shards
from clearhead.errors import InputError
from clearhead.storage import read_tensors
from clearhead.theories.catalogue import THEORIES
from clearhead.theories.example import Example, Random
from clearhead.theories.theory import Claim, Sample, Samples, Theory
from tests.as_shipped.conftest import Attending, batches
from tests.once import once

pytestmark = once
CLAIM = Claim(theory="t", statistic="process", statement="", formula="", citation="", predicted=1.0)
SHORT: dict[str, Any] = {"theories": "attention-sinks", "baseline": None}


def square_loss(output: Tensor, batch: Any) -> Tensor:
    """Return a loss."""
    return output.square().mean()


def other_loss(output: Tensor, batch: Any) -> Tensor:
    """Return another loss."""
    return output.abs().mean()


def write(folder: Path, count: int, inputs: list[Tensor] | None = None, **options: Any) -> None:
    """Write all shards of an audit."""
    for number in range(1, count + 1):
        audit_shard(Attending(), inputs or batches(), shard=f"{number}/{count}", folder=folder, **{**SHORT, **options})


def of_baseline(record: AuditRecord) -> list[float]:
    """Return what the baseline has at each head."""
    return [c.value for f in record.findings for c in f.controls if c.name == "the same head before training"]


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ({"control_inputs": 24}, {"control_inputs": 7}, "control inputs: 24, now 7"),
        ({"loss": square_loss, "claims": "all"}, {"loss": other_loss, "claims": "all"}, "loss: .*square_loss"),
    ],
)
def test_shards_with_other_options_are_refused(
    first: Mapping[str, Any], second: Mapping[str, Any], name: str, tmp_path: Path
) -> None:
    for number, options in ((1, first), (2, second)):
        audit_shard(Attending(), batches(), shard=f"{number}/2", folder=tmp_path, **{**SHORT, **options})
    with pytest.raises(InputError, match=f"shard-2-of-2.*shard-1-of-2.*{name}"):
        merge_shards(tmp_path)


def test_shards_are_merged_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """And not of their names: 10 is before 2."""
    inputs = [row[None] for batch in batches() for row in batch][:11]
    write(tmp_path, 11, inputs)
    merged, plain = merge_shards(tmp_path), audit(Attending(), inputs, **SHORT)
    assert [s.values.tolist() for s in merged.samples] == [s.values.tolist() for s in plain.samples]
    assert (merged.inputs, merged.tokens) == (plain.inputs, plain.tokens) == (11, 11 * 17)


def test_the_first_shard_alone_measures_the_whole_model(tmp_path: Path) -> None:
    write(tmp_path, 3, theories=["symmetry"])
    parts = [read_part(tmp_path / f"shard-{number}-of-3.safetensors") for number in (1, 2, 3)]
    assert [bool(part.whole_model) for part in parts] == [True, False, False]


def test_the_baseline_is_measured_on_as_many_inputs_with_shards_as_without(tmp_path: Path) -> None:
    inputs = batches() + batches(1)  # 24, and the baseline gets 12: the second of three shards has 4 of them
    options: dict[str, Any] = {"baseline": [Attending(1), Attending(2)], "baseline_for": ["attention-sinks"]}
    write(tmp_path, 3, inputs, **options)
    merged, plain = merge_shards(tmp_path), audit(Attending(), inputs, **{**SHORT, **options})
    trees = [read_tensors(tmp_path / f"shard-{number}-of-3.safetensors")[1]["tree"] for number in (1, 2, 3)]
    assert ['"baseline": 0' in tree for tree in trees] == [True, True, False]
    merged_values, values = (of_baseline(record) for record in (merged, plain))
    assert merged_values == pytest.approx(values, rel=1e-12)
    other = audit(Attending(), inputs[3:], **{**SHORT, **options})
    assert values != pytest.approx(of_baseline(other), rel=1e-3)


def test_machines_may_differ_and_are_both_named(tmp_path: Path) -> None:
    write(tmp_path, 2)
    first, second = read_shards(tmp_path)
    machine = {**second.manifest.machine, "processor": "another", "threads": 99}
    second.manifest = dataclasses.replace(second.manifest, machine=machine)
    merged = merge_parts([first, second])
    assert merged.manifest is not None
    assert str(merged.manifest.machine["processor"]).endswith("; another")
    assert str(merged.manifest.machine["threads"]).endswith("; 99")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_layers_are_divided_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker for all would be as slow as none."""

    def measure(example: Example, rng: Random) -> Samples:
        return {CLAIM: Sample(value=np.full(example.q.shape[0], float(os.getpid())), controls={})}

    theory = Theory(key="t", title="t", claims=(CLAIM,), measure=measure)
    monkeypatch.setattr(THEORIES, "_registered", {})
    THEORIES.register("t", theory)
    record = audit(Attending(), batches(), theories=["t"], baseline=None, workers=2)
    by_layer = {finding.layer: finding.value for finding in record.findings}
    assert len({*by_layer.values(), float(os.getpid())}) == 3

import copy
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import clearhead
from clearhead.audit.checksums import BatchChecksum, config_checksum, source_checksum, text_checksum, weight_checksums
from clearhead.audit.manifest import Manifest
from clearhead.audit.record import AuditRecord
from clearhead.errors import InputError
from clearhead.report.folder import write_report
from clearhead.storage import sha256_of_file
from clearhead.stored_json import read_json
from tests.audit.test_record import record

__all__ = ["record"]


def test_an_audit_from_python_has_a_manifest_without_a_command(record: AuditRecord) -> None:
    manifest = record.manifest
    assert manifest is not None
    assert set(manifest.weights) == {"layers.0.weight", "layers.1.weight"}
    assert manifest.dtype == {"float64": 2}
    assert (manifest.command, manifest.tokenizer, manifest.text, manifest.config) == (None,) * 4
    assert manifest.versions["torch"] == torch.__version__
    assert manifest.versions["clearhead"] == clearhead.__version__
    assert manifest.machine["threads"] == torch.get_num_threads()
    assert manifest.seeds == {"controls": 0}
    assert set(manifest.plugins) == {"kernel-pca", "symmetry"}
    assert Manifest.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest


def test_the_manifest_is_written_with_the_checksums_of_the_other_files(record: AuditRecord, tmp_path: Path) -> None:
    written = write_report(record, tmp_path)
    assert written.manifest == tmp_path / "manifest.json"
    stored = read_json(written.manifest)
    assert Manifest.from_dict(stored) == record.manifest
    assert set(stored["files"]) == {path.name for path in tmp_path.iterdir()} - {"manifest.json"}
    assert all(sha256_of_file(tmp_path / name) == checksum for name, checksum in stored["files"].items())


def test_everything_that_differs_has_a_line(record: AuditRecord) -> None:
    before = record.manifest
    assert before is not None
    assert before.differences(before) == []
    after = dataclasses.replace(
        before,
        weights={**before.weights, "layers.1.weight": "0" * 64},
        config="1" * 64,
        data="2" * 64,
        versions={**before.versions, "torch": "0.1", "jax": "7"},
        machine={**before.machine, "threads": 31},
        seeds={"controls": 3},
        plugins={"symmetry": before.plugins["symmetry"]},
        swaps={"layers.0": "rpc"},
        dtype={"float32": 2},
        command={"name": "audit"},
    )
    lines = before.differences(after)
    for start in (
        "weights: 1 of 2 tensors differs: layers.1.weight",
        "config: another content (SHA-256 none, now 111111111111)",
        "data: another content",
        f"torch: {torch.__version__}, now 0.1",
        "jax: none, now 7",
        f"threads: {before.machine['threads']}, now 31",
        "seed of the controls: 0, now 3",
        "theory kernel-pca: clearhead 0.1.0, now none",
        "operator at layers.0: none, now rpc",
        "tensors of float64: 2, now none",
        "tensors of float32: none, now 2",
    ):
        assert [line for line in lines if line.startswith(start)], (start, lines)
    assert len(lines) == 11


def test_other_values_are_not_a_manifest(record: AuditRecord) -> None:
    assert record.manifest is not None
    plain = record.manifest.to_dict()
    with pytest.raises(InputError, match=r"clearhead-manifest/1.*'x'"):
        Manifest.from_dict({**plain, "format": "x"})
    for name, value in {"weights": 3, "data": None, "command": "audit"}.items():
        with pytest.raises(InputError, match=f"the manifest cannot be read: {name} is"):
            Manifest.from_dict({**plain, name: value})


def test_one_bit_changes_the_checksum_of_one_tensor() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
    other = copy.deepcopy(model)
    assert weight_checksums(model) == weight_checksums(other)
    other[0].weight.data.view(torch.int16)[0, 1] ^= 1
    other[1].num_batches_tracked += 1
    before, after = weight_checksums(model), weight_checksums(other)
    assert {name for name in before if before[name] != after[name]} == {"0.weight", "1.num_batches_tracked"}


BATCH = {"ids": torch.arange(6).reshape(2, 3), "use": True, "name": "a"}


@pytest.mark.parametrize(
    "other",
    [
        {**BATCH, "ids": torch.arange(6).reshape(3, 2)},
        {**BATCH, "ids": torch.arange(6, dtype=torch.int32).reshape(2, 3)},
        {**BATCH, "ids": torch.arange(1, 7).reshape(2, 3)},
        {**BATCH, "use": 1},
        {**BATCH, "name": "b"},
        {**BATCH, "more": None},
        [BATCH["ids"]],
        BATCH["ids"].numpy(),
        torch.nested.nested_tensor([torch.arange(3.0), torch.arange(2.0)], layout=torch.jagged),
    ],
)
def test_batches_with_other_content_have_other_checksums(other: object) -> None:
    checksums = []
    for batch in (BATCH, dict(BATCH), other):
        checksum = BatchChecksum()
        assert [id(each) for each in checksum.of([batch])] == [id(batch)]
        checksums.append(checksum.hexdigest())
    assert checksums[0] == checksums[1] != checksums[2]


def test_a_tensor_of_any_memory_layout_has_the_checksum_of_its_dtype_and_numbers() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    checksums = set()
    for same in (x, x.T.contiguous().T, torch.cat((x, x))[3:], x.requires_grad_()):
        checksum = BatchChecksum()
        list(checksum.of([same]))
        checksums.add(checksum.hexdigest())
    assert len(checksums) == 1
    zeros = [BatchChecksum() for _ in range(2)]
    for checksum, dtype in zip(zeros, (torch.int32, torch.float32), strict=True):
        list(checksum.of([torch.zeros(3, dtype=dtype)]))
    assert zeros[0].hexdigest() != zeros[1].hexdigest()
    assert text_checksum(["ab", "c"]) != text_checksum(["a", "bc"])


def test_a_config_is_its_content_and_not_where_it_was_read() -> None:
    class Config:
        def __init__(self, **values: object) -> None:
            self.to_dict = lambda: values

    def checksum(**values: object) -> str | None:
        model = nn.Linear(1, 1)
        model.config = Config(**values)
        return config_checksum(model)

    assert checksum(width=3, _name_or_path="a", dtype=torch.float32) == checksum(dtype=torch.float32, width=3)
    assert checksum(width=3) != checksum(width=5)
    assert config_checksum(nn.Linear(1, 1)) is None


def test_arrays_of_objects_are_not_read_as_memory() -> None:
    for value in (np.array([{}, None], dtype=object), object()):
        checksum = BatchChecksum()
        list(checksum.of([value]))
        assert checksum.hexdigest() != BatchChecksum().hexdigest()


def test_the_source_is_part_of_the_versions(record: AuditRecord) -> None:
    assert record.manifest is not None
    assert source_checksum().startswith(record.manifest.versions["clearhead source"])
    assert re.fullmatch("[0-9a-f]{64}", source_checksum())

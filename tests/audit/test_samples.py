from pathlib import Path

import numpy as np
import pytest

from clearhead.audit.record import AuditRecord
from clearhead.audit.samples import read_samples, write_samples
from clearhead.errors import InputError
from clearhead.storage import write_tensors
from tests.audit.test_record import record

__all__ = ["record"]


def test_findings_are_the_means_of_the_samples(record: AuditRecord) -> None:
    values = {(s.claim.theory, s.claim.statistic, s.layer): s.values for s in record.samples}
    measured = [f for f in record.findings if f.inputs]
    assert measured
    for finding in measured:
        sample = values[finding.claim.theory, finding.claim.statistic, finding.layer][:, finding.head]
        assert np.nanmean(sample) == pytest.approx(finding.value, rel=1e-12, abs=1e-300)
        assert np.isfinite(sample).sum() == finding.inputs


def test_samples_are_read_as_they_were_written(record: AuditRecord, tmp_path: Path) -> None:
    file = tmp_path / "samples.safetensors"
    write_samples(file, record.samples)
    for before, after in zip(record.samples, read_samples(file), strict=True):
        assert (before.claim, before.layer, before.name) == (after.claim, after.layer, after.name)
        np.testing.assert_array_equal(before.values, after.values)


def test_other_files_are_refused(record: AuditRecord, tmp_path: Path) -> None:
    file = tmp_path / "samples.safetensors"
    with pytest.raises(InputError, match="is missing"):
        read_samples(file)
    write_tensors(file, {})
    with pytest.raises(InputError, match="not a file of samples"):
        read_samples(file)
    for contents in ("[{}]", "3", '[{"layer": 0, "name": "a", "role": "primary", "unit": "x"}]'):
        write_tensors(file, {}, metadata={"format": "clearhead-samples/1", "contents": contents})
        with pytest.raises(InputError, match="cannot be read"):
            read_samples(file)
    write_samples(file, record.samples)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="checksum"):
        read_samples(file)

"""Files of shards and interrupted audits whose checksum fits and whose content does not are refused in one line."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clearhead.audit.checkpoint import read_part
from clearhead.audit.shards import audit_shard
from clearhead.errors import InputError
from clearhead.storage import read_tensors, write_tensors
from tests.as_shipped.conftest import Attending, batches
from tests.once import once

pytestmark = once


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an audit."""
    folder = tmp_path_factory.mktemp("shard")
    return audit_shard(Attending(), batches(), shard="1/1", folder=folder, theories="attention-sinks", baseline=None)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no name": (lambda tree: tree.pop("name"), "cannot be read"),
    "unknown key": (lambda tree: tree.update(run="os:system"), "cannot be read"),
    "no seconds": (lambda tree: tree["seconds"].clear(), "the seconds of other theories"),
    "a text for bytes": (lambda tree: tree.update(peak_memory="x"), "peak_memory is 'x', expected a whole number"),
    "a list for a flag": (lambda tree: tree.update(complete=[1]), "complete is a list, expected true or false"),
    "a number for a list": (lambda tree: tree.update(sizes=3), "sizes is 3, expected a list"),
    "a text for a tuple": (lambda tree: tree.update(notes={"$tuple": "x"}), "'x' is not a list"),
    "a text for a share": (lambda tree: tree["fidelity"]["fields"].update(swap_error="x"), "swap_error is 'x'"),
    "no number of a shard": (lambda tree: tree.update(shard=["1", 1]), "number is '1', expected a whole number"),
    "another shard": (lambda tree: tree.update(shard=3), "cannot be read"),
    "no theories": (lambda tree: tree["options"].update(theories=None), "cannot be read"),
    "all": (lambda tree: tree.clear(), "cannot be read"),
    "a batch that is not there": (
        lambda tree: tree["passes"][0].update({"next batch": 7}),
        "after batches that it does not",
    ),
    "a batch before the first": (
        lambda tree: tree["passes"][0].update({"next batch": -1}),
        "after batches that it does not",
    ),
    "deep": (lambda tree: tree.update(notes=json.loads("[" * 99 + "]" * 99)), "nested more than 64 levels"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_is_refused_in_one_line(shard: Path, tmp_path: Path, case: str) -> None:
    change, message = WRONG[case]
    tensors, metadata = read_tensors(shard)
    tree = copy.deepcopy(json.loads(metadata["tree"]))
    change(tree)
    path = tmp_path / shard.name
    write_tensors(path, tensors, metadata={**metadata, "tree": json.dumps(tree)})
    with pytest.raises(InputError, match=message) as error:
        read_part(path)
    assert "\n" not in str(error.value)


def test_a_file_of_another_format_is_refused(shard: Path, tmp_path: Path) -> None:
    tensors, metadata = read_tensors(shard)
    write_tensors(tmp_path / "a", tensors, metadata={**metadata, "format": "clearhead-sums/1"})
    with pytest.raises(InputError, match="is not a file of sums"):
        read_part(tmp_path / "a")
    write_tensors(tmp_path / "a", tensors, metadata={**metadata, "format": metadata["format"]})
    assert read_part(tmp_path / "a").complete

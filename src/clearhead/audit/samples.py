"""The values of an audit input by input, and the file `samples.safetensors` that holds them next to a report."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.records import read_record
from clearhead.storage import DamagedFileError, parse_json, read_tensors, write_tensors
from clearhead.theories.theory import Claim, Need, Role, Theory, Unit

__all__ = ["SAMPLES_FILE", "ClaimSamples", "ClaimSummary", "read_samples", "write_samples"]

SAMPLES_FILE = "samples.safetensors"
FORMAT = "clearhead-samples/1"
REMEDY = "audit the model again to write it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSummary:
    """The fields of a claim that a comparison needs.

    shared: whether the claim is on the residual stream, which the heads of a layer share, not on a head's own tensors
    """

    theory: str
    statistic: str
    role: Role
    unit: Unit
    percent: bool
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimSamples:
    """One claim at one layer.

    name: the layer's module
    values: by input and head, or by group of inputs for theories that measure groups; NaN where there is no value
    """

    claim: ClaimSummary
    layer: int
    name: str
    values: Array

    @classmethod
    def of(cls, theory: Theory, claim: Claim, layer: int, name: str, values: Array) -> "ClaimSamples":
        """Return the samples of a theory's claim that was measured."""
        names = ("theory", "statistic", "role", "unit", "percent")
        summary = ClaimSummary(
            **{name: getattr(claim, name) for name in names}, shared=Need.RESIDUAL_STREAM in theory.needs
        )
        return cls(claim=summary, layer=layer, name=name, values=values)


def write_samples(path: Path, samples: Sequence[ClaimSamples]) -> None:
    """Write the samples in double precision, with their claims and layers in the metadata."""
    tensors = {str(number): torch.from_numpy(np.ascontiguousarray(s.values)) for number, s in enumerate(samples)}
    contents = [{**asdict(s.claim), "layer": s.layer, "name": s.name} for s in samples]
    write_tensors(path, tensors, metadata={"format": FORMAT, "contents": json.dumps(contents)})


def read_samples(path: Path) -> tuple[ClaimSamples, ...]:
    """Return the samples that `write_samples` wrote. Raise InputError if the file is missing, damaged or another."""
    try:
        tensors, metadata = read_tensors(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; audit the model again to write it") from None
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a file of samples ({FORMAT}); give the folder of a report")
    try:
        contents = parse_json(metadata["contents"].encode(), path)
        entries = read_record(list[_Entry], contents, path, remedy=REMEDY)
        return tuple(_samples(entry, tensors[str(number)], path) for number, entry in enumerate(entries))
    except KeyError as error:
        raise DamagedFileError(f"{path} cannot be read: it has no {error}; {REMEDY}") from None


def _samples(entry: "_Entry", values: torch.Tensor, path: Path) -> ClaimSamples:
    own: dict[str, Any] = {name: value for name, value in entry.items() if name not in _Entry.__annotations__}
    claim = read_record(ClaimSummary, own, path, remedy=REMEDY)
    if values.ndim != 2 or values.dtype != torch.float64:
        raise DamagedFileError(f"{path} has no table of numbers for layer {entry['layer']}; {REMEDY}")
    return ClaimSamples(claim=claim, layer=entry["layer"], name=entry["name"], values=values.numpy())


class _Entry(TypedDict):
    """What the metadata say of a tensor, besides the fields of its `ClaimSummary`."""

    layer: int
    name: str

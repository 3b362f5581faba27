"""The manifest of an audit: everything its numbers depend on, so that it can be repeated and differences explained."""

import functools
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead import __version__
from clearhead._swap.notes import swapped_operators
from clearhead.audit.checksums import config_checksum, file_checksum, source_checksum, weight_checksums
from clearhead.errors import ClearheadError, InputError
from clearhead.kernels.library import status
from clearhead.records import read_record
from clearhead.theories.catalogue import THEORIES, TheorySource

__all__ = ["FINDINGS_FILE", "MANIFEST_FILE", "MANIFEST_FORMAT", "Manifest", "make_manifest"]

FINDINGS_FILE, MANIFEST_FILE = "findings.json", "manifest.json"
MANIFEST_FORMAT = "clearhead-manifest/1"
PACKAGES = ("numpy", "scipy", "transformers", "tokenizers", "timm")
"""Packages whose versions are noted if they are installed, with those of Python, torch and Clearhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that the numbers of an audit depend on. Checksums are SHA-256.

    weights: checksum of every tensor of the state dict, by name
    config, tokenizer: checksums; None if the model has none, or Clearhead did not load it
    data: checksum of the batches; text: checksum of the passages they were made from, if they are text
    dtype: how many tensors of the model have each dtype
    machine: processor, instructions of torch and of the compiled kernel, threads, device
    seeds: of the controls' draws, and of the models of the baseline
    plugins: the theories, and the packages, versions and source files they come from
    swaps: the operators swapped into the model, by layer
    options: those of the audit; manifests of earlier audits have them among those of the command
    command: the command and its inputs; None for an audit from Python
    """

    weights: Mapping[str, str]
    config: str | None
    tokenizer: str | None = None
    data: str
    text: str | None = None
    dtype: Mapping[str, int]
    versions: Mapping[str, str]
    machine: Mapping[str, str | int]
    seeds: Mapping[str, Any]
    plugins: Mapping[str, str]
    swaps: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    command: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as plain values, as manifest.json has them."""
        return {"format": MANIFEST_FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Manifest":
        """Return the manifest of plain values. Raise InputError if they are of another format."""
        if values.get("format") != MANIFEST_FORMAT:
            raise InputError(
                f"expected a manifest of the format {MANIFEST_FORMAT}; got {values.get('format')!r}. "
                "Give the manifest.json that this version of clearhead audit wrote"
            )
        values = {"options": {}, **values}
        own = {entry.name: values[entry.name] for entry in fields(cls) if entry.name in values}
        return read_record(cls, own, "the manifest", remedy="audit the model again")

    def differences(self, other: "Manifest") -> list[str]:
        """Return one line for everything in which another manifest differs; options and commands are not compared."""
        return [
            *_tensors(self.weights, other.weights),
            *(
                f"{name}: another content (SHA-256 {_short(before)}, now {_short(after)})"
                for name in ("config", "tokenizer", "data", "text")
                if (before := getattr(self, name)) != (after := getattr(other, name))
            ),
            *(
                f"{_LABELS.get(name, '')}{key}: {_or_none(before.get(key))}, now {_or_none(after.get(key))}"
                for name in ("dtype", "versions", "machine", "seeds", "plugins", "swaps")
                for before, after in [(getattr(self, name), getattr(other, name))]
                for key in dict.fromkeys((*before, *after))
                if before.get(key) != after.get(key)
            ),
        ]


_LABELS = {"dtype": "tensors of ", "seeds": "seed of the ", "plugins": "theory ", "swaps": "operator at "}


def make_manifest(
    model: nn.Module,
    *,
    data: str,
    seeds: Mapping[str, Any],
    theories: Sequence[TheorySource],
    options: Mapping[str, Any],
) -> Manifest:
    """Return the manifest of a model's audit; `data` is the checksum of the batches."""
    tensors = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    return Manifest(
        weights=weight_checksums(model),
        config=config_checksum(model),
        data=data,
        dtype=dict(Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)),
        versions=_versions(),
        machine={
            "processor": _processor(),
            "system": f"{platform.system()} {platform.machine()}",
            "device": ", ".join(sorted({str(tensor.device) for tensor in tensors})) or "cpu",
            "torch instructions": torch.backends.cpu.get_cpu_capability(),
            "kernel instructions": _kernel(),
            "threads": torch.get_num_threads(),
        },
        seeds=seeds,
        plugins={source.key: _plugin(source) for source in theories},
        swaps=swapped_operators(model),
        options=options,
    )


@functools.cache
def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "clearhead": __version__,
        "clearhead source": source_checksum()[:12],
        "torch": torch.__version__,
    }
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or "unknown"


def _plugin(source: TheorySource) -> str:
    """Return a theory's package and version, and of another package the checksum of its file."""
    checksum = "" if THEORIES.is_own(source.key) else file_checksum(THEORIES.get(source.key).measure)
    return " ".join(filter(None, (source.package, source.version, checksum and f"source {checksum[:12]}")))


def _kernel() -> str:
    try:
        kernel = status().kernel
    except ClearheadError:  # the environment asks for a kernel that does not exist; operators then say so themselves
        kernel = None
    return "none" if kernel is None else str(kernel.instructions)


def _tensors(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    names = dict.fromkeys((*before, *after))
    different = [name for name in names if before.get(name) != after.get(name)]
    if different:
        shown = ", ".join(different[:3]) + (", ..." if len(different) > 3 else "")
        verb = "differs" if len(different) == 1 else "differ"
        yield f"weights: {len(different)} of {len(names)} tensors {verb}: {shown}"


def _short(checksum: str | None) -> str:
    return "none" if checksum is None else checksum[:12]


def _or_none(value: Any) -> str:
    return "none" if value is None else str(value)

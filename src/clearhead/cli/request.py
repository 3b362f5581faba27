"""The options of an audit, as a command got them and as a manifest holds them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.cli.failure import CommandError
from clearhead.cli.options import Baseline, Claims
from clearhead.loading.model import DEMOS
from clearhead.loading.objects import is_object_path

__all__ = ["AuditRequest"]


CHOICES = {"claims": Claims, "baseline": Baseline}
PATHS = ("text", "images", "audio", "describe", "out")
ADDED = {"column": None, "images": None, "audio": None, "device": "cpu", "workers": None}
"""Options that manifests of earlier audits do not have, with the values that hold for them."""
LIMITS = {"inputs": 2**63, "max_tokens": 2**63, "batch_size": 2**63, "seed": 2**63, "workers": 256}
"""Numbers in a manifest are less than these, from 0 for the seed and from 1 for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The arguments and options of the command, except for how to print."""

    model: str
    text: Path | None
    batches: str | None
    layers: str | None
    theories: tuple[str, ...]
    claims: Claims
    inputs: int | None
    max_tokens: int
    batch_size: int
    seed: int
    describe: Path | None
    allow_unseen: bool
    baseline: Baseline
    loss: str | None
    out: Path
    swap: str | None = None
    """An operator and its layers, or the folder of a saved swap, applied to the model before it is measured."""
    column: str | None = None
    """The column of the text, if it is a table."""
    images: Path | None = None
    audio: Path | None = None
    device: str = "cpu"
    """Of the theories' arithmetic."""
    workers: int | None = None
    """Number of processes that measure theories; None for one for each core."""

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values, with absolute paths."""
        values = dataclasses.asdict(self)
        is_folder = self.model not in DEMOS and not is_object_path(self.model)
        is_saved_swap = self.swap is not None and Path(self.swap).is_dir()
        paths = (*PATHS, *(["model"] if is_folder else []), *(["swap"] if is_saved_swap else []))
        absolute = {name: str(Path(values[name]).absolute()) for name in paths if values[name] is not None}
        names = {"claims": str(self.claims), "baseline": str(self.baseline)}
        return {**values, "theories": list(self.theories), **names, **absolute}

    @classmethod
    def from_dict(cls, values: Any) -> "AuditRequest":
        """Return the request of plain values. Raise CommandError if an option is missing or cannot be used."""
        types: dict[str, Any] = {
            "model": str, "theories": list, "max_tokens": int, "batch_size": int, "seed": int, "allow_unseen": bool,
            "claims": str, "baseline": str, "out": str, "inputs": int | None, "device": str,
            "workers": int | None,
        }  # fmt: skip
        values = {**ADDED, **(values if isinstance(values, Mapping) else {})}
        for name in (field.name for field in dataclasses.fields(cls)):
            value, kind = values.get(name), types.get(name, str | None)
            least = 0 if name == "seed" else 1
            if (
                name not in values
                or not isinstance(value, kind)
                or (isinstance(value, bool) and kind is not bool)
                or (isinstance(value, int) and name in LIMITS and not least <= value < LIMITS[name])
                or (isinstance(value, list) and not all(isinstance(entry, str) for entry in value))
                or (name in CHOICES and value not in list(CHOICES[name]))
            ):
                raise CommandError(f"the manifest has no usable option {name}; audit the model again")
        paths = {name: Path(values[name]) for name in PATHS if values.get(name) is not None}
        options = {field.name: values[field.name] for field in dataclasses.fields(cls)}
        names = {"claims": Claims(values["claims"]), "baseline": Baseline(values["baseline"])}
        return cls(**{**options, **paths, **names, "theories": tuple(values["theories"])})

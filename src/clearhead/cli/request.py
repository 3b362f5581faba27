"""What a command audits: the model, its inputs, and the options of the audit. Nothing heavy is imported here."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.audit.options import AuditOptions, as_plain, from_plain, option

if TYPE_CHECKING:
    from clearhead.audit.manifest import Manifest

__all__ = ["DEFAULT_MODEL", "AuditRequest"]

DEFAULT_MODEL = "all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """A model and its inputs, the options of the audit, and the folder `out` for the report."""

    model: str = option(
        DEFAULT_MODEL,
        "A local model folder, the installed demo model all-MiniLM-L6-v2, or package.module:function that "
        "returns a model or a (model, tokenizer) pair. A function runs its code; a folder runs none.",
        str,
    )
    text: Path | None = option(
        None,
        "UTF-8 text file, a table (.csv, .tsv, .jsonl, .parquet) or a Hugging Face dataset folder, with --column. "
        "Passages of a text file are separated by blank lines; without blank lines each line is a passage. "
        "Default: the passages in the package.",
        Path | None,
    )
    column: str | None = option(None, "The column of --text, if it is a table.", str | None, metavar="NAME", added=True)
    images: Path | None = option(
        None,
        "Images instead of text, prepared by the model's own image processor.",
        Path | None,
        metavar="FOLDER",
        added=True,
    )
    audio: Path | None = option(
        None,
        "Sound instead of text (.wav), prepared by the model's own processor.",
        Path | None,
        metavar="FOLDER",
        added=True,
    )
    batches: str | None = option(
        None, "Inputs instead of text: package.module:function that returns batches. Runs its code.", str | None
    )
    inputs: int | None = option(
        None, "Use the first N passages or files, or batches with --batches. Default: all.", int | None, least=1
    )
    max_tokens: int = option(256, "Truncate each passage to this many tokens.", int, least=2)
    batch_size: int = option(12, "Passages or files per forward pass.", int, least=1)
    swap: str | None = option(
        None,
        "An operator and its layers, such as symmetric:3 or rpc:0-2, or a folder that save_swaps wrote, applied to "
        "the model before it is measured.",
        str | None,
        metavar="OPERATOR",
        added=True,
    )
    options: AuditOptions = field(default_factory=AuditOptions)
    out: Path = Path("clearhead-report")

    @classmethod
    def of(cls, values: Mapping[str, Any], out: Path) -> "AuditRequest":
        """Return the request of a command's options."""
        own = {name: value for name, value in values.items() if name in _OWN}
        others = {name: value for name, value in values.items() if name not in _OWN}
        return cls(**own, options=AuditOptions.of(others), out=out)

    def __getitem__(self, name: str) -> Any:
        """Return an input or an option."""
        return getattr(self if name in _OWN else self.options, name)

    def with_values(self, values: Mapping[str, Any]) -> "AuditRequest":
        """Return the request with some other inputs and options."""
        own = {name: value for name, value in values.items() if name in _OWN}
        others = {name: value for name, value in values.items() if name not in _OWN}
        return dataclasses.replace(self, **own, options=self.options.changed(others))

    @classmethod
    def of_manifest(cls, manifest: "Manifest") -> "AuditRequest | None":
        """Return the request of the command that wrote a manifest; None for an audit from Python.

        Nothing that it names is touched. Manifests of earlier audits hold all options among those of the command.
        """
        if manifest.command is None:
            return None
        inputs = manifest.command.get("options")
        values = {**manifest.options, **(inputs if isinstance(inputs, Mapping) else {})}
        return cls(**from_plain(cls, values), options=AuditOptions.from_dict(values))

    def to_dict(self) -> dict[str, Any]:
        """Return the model and its inputs as plain values, with absolute paths."""
        from clearhead.loading.model import DEMOS
        from clearhead.loading.objects import is_object_path

        is_folder = self.model not in DEMOS and not is_object_path(self.model)
        is_saved_swap = self.swap is not None and Path(self.swap).is_dir()
        names = (*(["model"] if is_folder else []), *(["swap"] if is_saved_swap else []))
        return {**as_plain(self), **{name: str(Path(self[name]).absolute()) for name in names}}


_OWN = frozenset(entry.name for entry in dataclasses.fields(AuditRequest) if entry.metadata)

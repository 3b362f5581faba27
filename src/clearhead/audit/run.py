"""Run an audit: from a model and its inputs to a record of findings."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.measuring import measure_part
from clearhead.audit.options import AuditOptions, Baseline, takes_options
from clearhead.audit.record import AuditRecord
from clearhead.errors import AuditError
from clearhead.loading.encoding import Decode

__all__ = ["AuditError", "audit", "audit_with", "options_and_baseline"]


@takes_options
def audit(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    decode: Decode | None = None,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> AuditRecord:
    """Measure theories of attention on every head of a model and compare each head with controls.

    Before anything is measured, the captured tensors are checked to be what the model computes. The model is put into
    evaluation mode and restored at the end.

    batches: inputs of the model: mappings of keyword arguments, tuples of positional ones, or single tensors. They are
        taken one at a time and not kept; of each input one number per claim and head is. They are iterated over again
        for the baseline, so they must not be an iterator if one is given
    decode: turns token ids into text, as `tokenizer.decode` does; the report then shows words instead of numbers
    name, data: of the model and of the inputs, for the report
    progress: called with a phase ("check", "measure" or "baseline") and the number of inputs done
    checkpoint: a file that holds the sums while the audit runs. If the audit is interrupted or killed, the same call
        continues it and finds the same. The file is removed at the end. Raise InputError if another process writes it
    """
    chosen, baseline = options_and_baseline(options)
    return audit_with(
        chosen,
        model,
        batches,
        baseline=baseline,
        decode=decode,
        name=name,
        data=data,
        progress=progress or (lambda phase, done: None),
        checkpoint=checkpoint,
    )


def audit_with(
    options: AuditOptions,
    model: nn.Module,
    batches: Iterable[Any],
    *,
    checkpoint: str | Path | None = None,
    **arguments: Any,
) -> AuditRecord:
    """Run an audit with these options. The other arguments are those of `measure_part`."""
    file = Checkpoint(None if checkpoint is None else Path(checkpoint))
    with file.locked():
        record = file.finish(measure_part(model, batches, options, checkpoint=file, **arguments))
        file.remove()
    return record


def options_and_baseline(values: Mapping[str, Any]) -> tuple[AuditOptions, Iterable[nn.Module] | None]:
    """Return the options of keyword arguments, and the models before training if these were given."""
    given = values.get("baseline", Baseline.AUTO)
    if isinstance(given, str):
        return AuditOptions.of(values), None
    models = [given] if isinstance(given, nn.Module) else given
    return AuditOptions.of({**values, "baseline": Baseline.NONE}), models

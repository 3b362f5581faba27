"""The corridor from a model and its data to findings."""

import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import __version__
from clearhead.capturing import capture
from clearhead.fidelity import check_fidelity
from clearhead.findings import judge
from clearhead.heads import Heads
from clearhead.record import AuditRecord, Fidelity, Timing
from clearhead.sockets import AttentionSpec
from clearhead.theories.catalogue import find_theories
from clearhead.theories.theory import Measurement

__all__ = ["AuditError", "audit"]


class AuditError(ValueError):
    """An audit that cannot give numbers. The message names the cause and the remedy."""


def audit(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    theories: Sequence[str] = (),
    layers: Collection[int] | None = None,
    seed: int = 0,
    describe: Sequence[AttentionSpec] = (),
    allow_unseen: bool = False,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
) -> AuditRecord:
    """Measure theories of attention on every head of a model, against chance, over the inputs given.

    `batches` are what the model is called with: a mapping of keyword arguments, a tuple of positional ones, or one
    tensor. They are taken one at a time and only sums over them are kept, so memory does not grow with their number.
    `layers` are places in the forward pass, from 0; all by default. The model is put into evaluation mode and comes
    back as it was. Before anything is measured, the captured tensors are proved to be what the model computes.

    `progress` is told a phase ("check", "measure") and how many inputs it has done.
    """
    chosen = [(theory.title, theory.begin(seed)) for theory in find_theories(theories)]
    started = time.perf_counter()
    tell = progress or (lambda phase, done: None)
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise AuditError("there is nothing to audit on: no batch was given")
    if _length(first) == 1:
        raise AuditError("an input of one token attends to itself whatever the model; give longer inputs")
    with _evaluated(model), torch.no_grad():
        tell("check", 0)
        fidelity = check_fidelity(model, lambda: run(model, first), describe=describe, allow_unseen=allow_unseen)
        _require_layers(fidelity, layers)
        checked = time.perf_counter()
        clock = dict.fromkeys((title for title, _ in chosen), 0.0)
        inputs = tokens = 0
        with capture(model, describe=describe, keep=_observer(chosen, layers, clock), allow_unseen=allow_unseen):
            for batch in chain([first], stream):
                tell("measure", inputs)
                run(model, batch)
                size = _size(batch)
                inputs, tokens = inputs + size[0], tokens + size[1]
        tell("measure", inputs)
    findings = judge(finding for _, measurement in chosen for finding in measurement.findings())
    if all(finding.inputs == 0 and "tokens" in finding.reason for finding in findings):
        raise AuditError(f"every input is too short to say anything, {findings[0].reason}; give longer inputs")
    ended = time.perf_counter()
    return AuditRecord(
        model=name or type(model).__name__,
        data=data or "given batches",
        version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        inputs=inputs,
        tokens=tokens,
        fidelity=fidelity,
        findings=tuple(findings),
        timing=Timing(
            check=checked - started,
            forward=ended - checked - sum(clock.values()),
            theory=clock,
            total=ended - started,
            peak_memory=_peak_memory(),
        ),
    )


def run(model: nn.Module, batch: Any) -> Any:
    """Call the model with one batch, on the model's device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        return model(**{key: _moved(value, device) for key, value in batch.items()})
    if isinstance(batch, list | tuple):
        return model(*(_moved(value, device) for value in batch))
    return model(_moved(batch, device))


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _observer(
    chosen: Sequence[tuple[str, Measurement]], layers: Collection[int] | None, clock: dict[str, float]
) -> Callable[[Heads], None]:
    def observe(heads: Heads) -> None:
        if layers is not None and heads.layer not in layers:
            return
        for title, measurement in chosen:
            begun = time.perf_counter()
            measurement.observe(heads)
            clock[title] += time.perf_counter() - begun

    return observe


def _require_layers(fidelity: Fidelity, layers: Collection[int] | None) -> None:
    unknown = sorted(set(layers or ()) - {layer.layer for layer in fidelity.layers})
    if unknown:
        raise AuditError(f"there is no layer {unknown[0]}; the model has layers 0 to {len(fidelity.layers) - 1}")


def _length(batch: Any) -> int | None:
    """Tokens per input, where the batch tells."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else None


def _size(batch: Any) -> tuple[int, int]:
    """Inputs and tokens of a batch; no tokens where it does not tell."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    inputs = next((v.shape[0] for v in values if isinstance(v, Tensor) and v.ndim), 0)
    if not isinstance(batch, Mapping):
        return inputs, 0
    mask, ids = batch.get("attention_mask"), batch.get("input_ids")
    if isinstance(mask, Tensor):
        return inputs, int(mask.sum())
    return inputs, ids.numel() if isinstance(ids, Tensor) else 0


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _peak_memory() -> int:
    """Bytes: Linux counts kibibytes, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""The corridor from a model and its data to findings."""

import functools
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import __version__
from clearhead.audit.baseline import curves_of, watch_untrained
from clearhead.audit.engine import AuditError, evaluated, run, run_on, watch
from clearhead.audit.fidelity import check_fidelity
from clearhead.audit.findings import Verdict
from clearhead.audit.judging import beside_untrained, judge
from clearhead.audit.model_symmetry import model_symmetry
from clearhead.audit.record import AuditRecord, Fidelity, Timing
from clearhead.interfaces import AttentionSpec
from clearhead.theories.catalogue import find_theories
from clearhead.theories.symmetry import THEORY as SYMMETRY
from clearhead.theories.theory import AlongDepth, Measurement, Role, Theory

__all__ = ["AuditError", "audit"]

LARGEST_SEED = 2**63 - 1
UNTRAINED_MODEL = "the same model before training"


def audit(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    theories: Sequence[str] = (),
    layers: Collection[int] | None = None,
    seed: int = 0,
    describe: Sequence[AttentionSpec] = (),
    allow_unseen: bool = False,
    untrained: nn.Module | Iterable[nn.Module] | None = None,
    untrained_for: Sequence[str] | str | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
) -> AuditRecord:
    """Measure theories of attention on every head of a model, against chance, over the inputs given.

    `batches` are what the model is called with: a mapping of keyword arguments, a tuple of positional ones, or one
    tensor. They are taken one at a time and only sums over them are kept, so memory does not grow with their number.
    `layers` are places in the forward pass, from 0; all by default. `theories` are names, or one name; all by default.
    The model is put into evaluation mode and comes back as it was. Before anything is measured, the captured tensors
    are proved to be what the model computes.

    `untrained` is the same model with weights as they were before training: each of its heads becomes one more control
    for the same head of the model. The batches are then gone through again, so they must not be a one-time iterator.
    Theories that are judged by it need several, drawn by several seeds: one is shown and does not decide.
    `untrained_for` names the theories that are compared with it; all by default. Theories whose claims mean little
    without it leave a note in the record where there is none.

    `loss` takes the model's output and the batch, as it was given, and returns one number to differentiate. Every batch
    is then run with gradients, and measurements see those at each layer's output (`Heads.out_gradient`).

    `progress` is told a phase ("check", "measure", "untrained") and how many inputs it has done.
    """
    if layers is not None and not layers:
        raise AuditError("layers is empty, so there is nothing to measure; leave it out for all layers")
    if not 0 <= seed <= LARGEST_SEED:
        raise AuditError(f"the seed must be from 0 to {LARGEST_SEED}, not {seed}")
    if untrained is not None and iter(batches) is batches:
        raise AuditError("an untrained model is measured after the trained one: give the batches as a list")
    found = find_theories([theories] if isinstance(theories, str) else theories)
    compared = _compared(found, untrained, untrained_for)
    chosen = [(theory.title, theory.begin(seed)) for theory in found]
    started = time.perf_counter()
    tell = progress or (lambda phase, done: None)
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise AuditError("there is nothing to audit on: no batch was given")
    if _length(first) == 1:
        raise AuditError("an input of one token attends to itself whatever the model; give longer inputs")
    with evaluated(model), torch.no_grad():
        tell("check", 0)
        fidelity = check_fidelity(model, lambda: run(model, first), describe=describe, allow_unseen=allow_unseen)
        _require_layers(fidelity, layers)
        checked = time.perf_counter()
        clock = dict.fromkeys((title for title, _ in chosen), 0.0)
        symmetry = None
        if SYMMETRY in found:
            begun = time.perf_counter()
            symmetry = model_symmetry(
                model,
                first,
                lambda batch: run_on(model, batch, "one of its first inputs alone"),
                describe=describe,
                allow_unseen=allow_unseen,
                seed=seed,
            )
            clock[SYMMETRY.title] += time.perf_counter() - begun
        names = [layer.name for layer in fidelity.layers]
        look = functools.partial(
            watch, layers=layers, checked=names, describe=describe, allow_unseen=allow_unseen, loss=loss
        )
        seen = look(
            model,
            chain([first], stream),
            chosen,
            clock,
            lambda done: tell("measure", done),
            stream=any(theory.needs_stream for theory in found),
        )
    findings = [finding for _, measurement in chosen for finding in measurement.findings()]
    curves, drawn = curves_of(chosen), 0
    if compared:
        models = [untrained] if isinstance(untrained, nn.Module) else untrained or ()
        before = watch_untrained(models, compared, findings, seen, look, batches, clock, tell, seed)
        decisive = [theory.title for theory in compared if theory.needs_untrained]
        findings = beside_untrained(findings, before.findings, seed=seed, decisive=decisive)
        curves, drawn = [curve.beside(before.of(curve), name=UNTRAINED_MODEL) for curve in curves], before.models
    findings = judge(findings)
    decide = [f for f in findings if f.claim.role is Role.PRIMARY and f.verdict is not Verdict.TRUE_BY_CONSTRUCTION]
    too_short = [finding.reason for finding in decide if "tokens" in finding.reason]
    if too_short and all(finding.inputs == 0 for finding in decide):
        raise AuditError(f"every input is too short to say anything, {too_short[0]}; give longer inputs")
    ended = time.perf_counter()
    return AuditRecord(
        model=name or type(model).__name__,
        data=data or "given batches",
        version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        inputs=max(seen.inputs, *(finding.inputs + finding.skipped for finding in findings)),
        tokens=seen.tokens,
        fidelity=fidelity,
        findings=tuple(findings),
        timing=Timing(
            check=checked - started,
            forward=ended - checked - sum(clock.values()),
            theory=clock,
            total=ended - started,
            peak_memory=_peak_memory(),
        ),
        symmetry=symmetry,
        disputes=tuple(theory.dispute for theory in found if theory.dispute is not None),
        curves=tuple(curves),
        notes=tuple(_notes(found, compared, chosen, drawn=drawn)),
    )


def _compared(
    found: Sequence[Theory],
    untrained: nn.Module | Iterable[nn.Module] | None,
    names: Sequence[str] | str | None,
) -> list[Theory]:
    """The theories that are compared with the untrained model."""
    if untrained is None:
        return []
    names = [names] if isinstance(names, str) else names
    asked = None if names is None else find_theories(names) if names else []
    return [theory for theory in found if asked is None or theory in asked]


def _notes(
    found: Sequence[Theory], compared: Sequence[Theory], chosen: Sequence[tuple[str, Measurement]], *, drawn: int
) -> Iterator[str]:
    for theory in found:
        if theory.needs_untrained and (theory not in compared or not drawn):
            yield f"{theory.title}: not compared with initialisation, where an untrained model may do as well"
        elif theory.needs_untrained and drawn == 1:
            yield f"{theory.title}: one untrained model is shown and does not decide; several draws would"
    for title, measurement in chosen:
        if isinstance(measurement, AlongDepth):
            yield from (f"{title}: {note}" for note in measurement.notes())


def _require_layers(fidelity: Fidelity, layers: Collection[int] | None) -> None:
    unknown = sorted(set(layers or ()) - {layer.layer for layer in fidelity.layers})
    if unknown:
        raise AuditError(f"there is no layer {unknown[0]}; the model has layers 0 to {len(fidelity.layers) - 1}")


def _length(batch: Any) -> int | None:
    """Tokens per input, where the batch tells."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else None


def _peak_memory() -> int:
    """Bytes: Linux counts kibibytes, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""The corridor from a model and its data to findings."""

import functools
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import __version__
from clearhead.capturing import GradientTape, Tape, capture, capture_gradients
from clearhead.fidelity import check_fidelity
from clearhead.findings import Verdict
from clearhead.heads import Heads
from clearhead.judging import beside_untrained, judge
from clearhead.model_symmetry import model_symmetry
from clearhead.record import AuditRecord, Fidelity, Timing
from clearhead.sockets import AttentionNotSeenError, AttentionSpec
from clearhead.theories.catalogue import find_theories
from clearhead.theories.symmetry import THEORY as SYMMETRY
from clearhead.theories.theory import Measurement

__all__ = ["AuditError", "audit"]


LARGEST_SEED = 2**63 - 1


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
    untrained: nn.Module | None = None,
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
    for the same head of the model. The batches are then gone through twice, so they must not be a one-time iterator.

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
    chosen = [(theory.title, theory.begin(seed)) for theory in found]
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
        symmetry = None
        if SYMMETRY in found:
            begun = time.perf_counter()
            symmetry = model_symmetry(
                model,
                first,
                lambda batch: _run(model, batch, "one of its first inputs alone"),
                describe=describe,
                allow_unseen=allow_unseen,
                seed=seed,
            )
            clock[SYMMETRY.title] += time.perf_counter() - begun
        names = [layer.name for layer in fidelity.layers]
        watch = functools.partial(
            _watch, layers=layers, checked=names, describe=describe, allow_unseen=allow_unseen, loss=loss
        )
        seen = watch(model, chain([first], stream), chosen, clock, lambda done: tell("measure", done))
    findings = [finding for _, measurement in chosen for finding in measurement.findings()]
    if untrained is not None:
        plain = [(theory.title, theory.begin(seed, controls=False)) for theory in found]
        with _evaluated(untrained), torch.no_grad():
            again = watch(untrained, iter(batches), plain, clock, lambda done: tell("untrained", done))
        before = [finding for _, measurement in plain for finding in measurement.findings()]
        if again != seen or len(before) != len(findings):
            raise AuditError(
                "the untrained model did not see the same inputs with the same heads; give batches that can be gone "
                "through twice, and a model of the same architecture"
            )
        findings = beside_untrained(findings, before, seed=seed)
    findings = judge(findings)
    open_to_doubt = [finding for finding in findings if finding.verdict is not Verdict.BY_CONSTRUCTION]
    too_short = [finding.reason for finding in open_to_doubt if "tokens" in finding.reason]
    if too_short and all(finding.inputs == 0 for finding in open_to_doubt):
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
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    inputs: int
    tokens: int


def _watch(
    model: nn.Module,
    batches: Iterable[Any],
    chosen: Sequence[tuple[str, Measurement]],
    clock: dict[str, float],
    tell: Callable[[int], None],
    *,
    layers: Collection[int] | None,
    checked: Sequence[str],
    describe: Sequence[AttentionSpec],
    allow_unseen: bool,
    loss: Callable[[Any, Any], Tensor] | None,
) -> _Seen:
    """Show the measurements every attention call of the model on the batches."""
    seen = _Seen(0, 0)
    observer = _Observer(chosen, layers, clock, checked)
    captured = capture if loss is None else capture_gradients
    with captured(model, describe=describe, keep=observer, allow_unseen=allow_unseen) as tape:
        for batch in batches:
            tell(seen.inputs)
            which = f"the batch after {seen.inputs} inputs"
            if loss is None:
                _run(model, batch, which, observer)
            else:
                _differentiate(tape, loss, _run(model, batch, which, observer), batch, which)
            inputs, tokens = _size(batch)
            seen = _Seen(seen.inputs + inputs, seen.tokens + tokens)
    tell(seen.inputs)
    return seen


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


class _Observer:
    """Shows the theories every call. They look on inside the model's call, so their failure is kept apart from its."""

    def __init__(
        self,
        chosen: Sequence[tuple[str, Measurement]],
        layers: Collection[int] | None,
        clock: dict[str, float],
        checked: Sequence[str],
    ) -> None:
        self.failure: Exception | None = None
        self._checked = checked
        self._chosen = chosen
        self._layers = layers
        self._clock = clock

    def __call__(self, heads: Heads) -> None:
        if heads.name not in self._checked:
            raise AttentionNotSeenError(
                f"{heads.name} runs on a later batch and not on the first, so it was never checked; "
                "begin with a batch on which every layer runs"
            )
        if self._layers is not None and heads.layer not in self._layers:
            return
        try:
            for title, measurement in self._chosen:
                begun = time.perf_counter()
                measurement.observe(heads)
                self._clock[title] += time.perf_counter() - begun
        except Exception as error:
            self.failure = error
            raise


def _run(model: nn.Module, batch: Any, which: str, observer: _Observer | None = None) -> Any:
    """Call the model; what it raises is said of it and of `which` input, what an observer raised stays as it is."""
    try:
        output = run(model, batch)
    except AttentionNotSeenError:
        raise
    except Exception as error:
        if observer is None or observer.failure is None:
            raise AuditError(f"the model fails on {which}: {error}; do the inputs fit it?") from error
    # Also where the model caught it.
    if observer is not None and observer.failure is not None:
        raise observer.failure
    return output


def _differentiate(tape: Tape, loss: Callable[[Any, Any], Tensor], output: Any, batch: Any, which: str) -> None:
    """Show the observer the calls of one batch, which waited for the loss."""
    assert isinstance(tape, GradientTape)
    try:
        value = loss(output, batch)
    except Exception as error:
        raise AuditError(
            f"the loss fails on {which}: {error}; it is called with the model's output and the batch"
        ) from error
    tape.differentiate(value)


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

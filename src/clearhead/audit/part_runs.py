"""Measuring a part of an audit: the fidelity check, then the model and its baselines on some of the batches."""

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearhead._swap.notes import swapped_operators
from clearhead.audit.baseline import BASELINE_INPUTS, measure_baseline
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.checksums import BatchChecksum
from clearhead.audit.engine import feed
from clearhead.audit.fidelity import check_fidelity
from clearhead.audit.manifest import Manifest, make_manifest
from clearhead.audit.model_runs import (
    AuditError,
    evaluation_mode,
    first_inputs,
    forward,
    measure,
    run_whole_model,
)
from clearhead.audit.parts import Part, Run, Shard, span_of
from clearhead.audit.record import Fidelity
from clearhead.audit.scanned_batches import Scan, require_data, same_batches, scan
from clearhead.audit.shown_inputs import InputRecorder
from clearhead.audit.workers import Workers
from clearhead.interfaces import AttentionSpec
from clearhead.loading.encoding import Decode
from clearhead.numerics.memory import peak_memory
from clearhead.numerics.threads import torch_threads
from clearhead.theories.catalogue import LoadedTheories
from clearhead.theories.theory import ModelValues, Theory

__all__ = ["CHECKED_INPUTS", "Setup", "measure_part"]

CHECKED_INPUTS = 4
"""Number of inputs of the fidelity check, which runs the model on them four times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an audit measures, and how.

    baselines: the models before training; compared: the theories that are measured on them
    seeds: all seeds, for the manifest; complete_manifest: adds what only a caller knows
    workers: number of processes that measure theories; 1 if this one does
    """

    loaded: LoadedTheories
    claims: Literal["primary", "all"]
    layers: Collection[int] | None
    seed: int
    describe: Sequence[AttentionSpec]
    allow_unseen: bool
    allow_swapped: bool
    baselines: Iterable[nn.Module]
    compared: Sequence[Theory]
    loss: Callable[[Any, Any], Tensor] | None
    device: torch.device
    control_inputs: int
    name: str
    data: str
    seeds: Mapping[str, Any]
    complete_manifest: Callable[[Manifest], Manifest]
    progress: Callable[[str, int], None]
    notice: Callable[[str], None] = field(default=lambda line: None)
    decode: Decode | None = None
    workers: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """What else the numbers depend on, as plain values."""
        return {
            "theories": [theory.key for theory in self.loaded.theories],
            "claims": self.claims,
            "theories with a baseline": [theory.key for theory in self.compared],
            "layers": None if self.layers is None else sorted(self.layers),
            "descriptions": repr(list(self.describe)) if self.describe else "",
            "loss": getattr(self.loss, "__qualname__", "") if self.loss is not None else None,
            "device": str(self.device),
            "control inputs": self.control_inputs,
            "allow unseen": self.allow_unseen,
        }


def measure_part(
    model: nn.Module, batches: Iterable[Any], setup: Setup, *, shard: Shard, checkpoint: Checkpoint
) -> Part:
    """Measure the batches of a shard. An interrupted part of the same audit, saved by the checkpoint, goes on."""
    started = time.perf_counter()
    scanned = scan(batches) if shard.count > 1 else Scan()
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise AuditError("there are no inputs: no batch was given")
    if _length(first) == 1:
        raise AuditError("an input of one token attends to itself in every model; give longer inputs")
    with evaluation_mode(model), torch.no_grad():
        setup.progress("check", 0)
        checked = first_inputs(first, CHECKED_INPUTS)
        fidelity = check_fidelity(
            model,
            lambda: forward(model, checked),
            describe=setup.describe,
            allow_unseen=setup.allow_unseen,
            allow_swapped=setup.allow_swapped,
        )
        _require_layers(fidelity, setup.layers)
        swapped = swapped_operators(model) if setup.allow_swapped else {}
        layers = _without_swapped(fidelity, setup.layers, swapped)
        part = Part(
            shard=shard,
            manifest=setup.complete_manifest(
                make_manifest(model, data=scanned.checksum, seeds=setup.seeds, theories=setup.loaded.sources)
            ),
            settings=setup.settings,
            name=setup.name or type(model).__name__,
            data=setup.data or "given batches",
            fidelity=fidelity,
            whole_model=(),
            notes=(
                *setup.loaded.failures,
                *(f"{path} has {operator} swapped in and is not measured" for path, operator in swapped.items()),
            ),
            sizes=scanned.sizes,
            seconds=dict.fromkeys((theory.title for theory in setup.loaded.theories), 0.0),
            check=time.perf_counter() - started,
        )
    part = _same_audit(checkpoint.read(setup.notice), part, setup.notice) or part
    recorder = _recorder(first, setup, fidelity, layers)
    workers = min(setup.workers, len(fidelity.layers if layers is None else layers))
    with Workers(workers, setup.loaded.theories) if workers > 1 else nullcontext() as processes:
        runs = _Runs(part, setup, layers, scanned, recorder, checkpoint, processes, started)
        with evaluation_mode(model), torch.no_grad():
            runs.measure_model(model, first, remaining, batches)
        if sum(scanned.sizes[: shard.batches(len(scanned.sizes)).start]) < BASELINE_INPUTS:
            measure_baseline(
                model, setup.baselines, setup.compared, functools.partial(runs.measure_baseline, batches=batches)
            )
        part.complete = True
        runs.save(always=True)
    return part


class _Runs:
    """The runs of a part: the audited model on its batches, then each baseline model, measured and saved.

    workers: the processes that measure theories; None if this one does
    """

    def __init__(
        self,
        part: Part,
        setup: Setup,
        layers: Collection[int] | None,
        scanned: Scan,
        recorder: InputRecorder,
        checkpoint: Checkpoint,
        workers: Workers | None,
        started: float,
    ) -> None:
        self._part, self._setup, self._layers, self._scanned = part, setup, layers, scanned
        self._recorder, self._checkpoint, self._workers = recorder, checkpoint, workers
        self._started, self._elapsed = started, part.elapsed
        self._checksum = BatchChecksum()

    def save(self, *, always: bool = False) -> None:
        """Write the part if it is time to."""
        self._checkpoint.save(self._current, always=always)

    def _current(self) -> Part:
        """Return the part with all sums so far."""
        part, added = self._part, 0
        if self._workers is not None:
            start = time.perf_counter()
            self._workers.collect(part.seconds)
            part.measuring += time.perf_counter() - start
            added = self._workers.added_memory
        part.elapsed = self._elapsed + time.perf_counter() - self._started
        peak = peak_memory()
        part.peak_memory = None if peak is None else max(peak + added, part.peak_memory or 0)
        return part

    def measure_model(self, model: nn.Module, first: Any, remaining: Iterator[Any], batches: Iterable[Any]) -> None:
        """Measure the audited model, or the rest of its batches, and the model as a whole."""
        part, setup, checksum = self._part, self._setup, self._checksum
        run = _run_of(part, setup, setup.loaded.theories)
        if run.complete:
            require_data(part, batches)
            return
        stream = same_batches(checksum.of(chain([first], remaining)), checksum, run.batches, part.checksum)
        self._measure(model, run, stream, "measure")
        if part.shard.count == 1:
            part.manifest = replace(part.manifest, data=checksum.hexdigest())
        elif run.batches and checksum.hexdigest() != self._scanned.checksums[run.batches - 1]:
            raise AuditError("the batches changed while they were read; give the same batches in every iteration")
        if self._workers is not None and part.shard.count == 1:
            self._workers.finish()
        if part.shard.number == 1:  # while workers still measure
            part.whole_model = tuple(_run_whole_model(model, first, setup, part))
        run.complete = True
        self.save()

    def measure_baseline(
        self, model: nn.Module, theories: Sequence[Theory], number: int, norms: bool, *, batches: Iterable[Any]
    ) -> None:
        """Measure a baseline model, unless that is done."""
        run = _run_of(self._part, self._setup, theories, number, norms)
        if not run.complete:
            with evaluation_mode(model), torch.no_grad():
                self._measure(model, run, iter(batches), "baseline")
            run.complete = True

    def _measure(self, model: nn.Module, run: Run, batches: Iterable[Any], phase: str) -> None:
        """Measure one model, or the rest of its batches."""
        part, setup, own = self._part, self._setup, run.baseline is None
        of_shard = part.shard.batches(len(self._scanned.sizes))
        end = of_shard.stop if part.shard.count > 1 else None
        span = span_of(part.sizes, max(run.batches, of_shard.start), end)
        run.first = span.first
        if self._workers is not None:
            self._workers.begin(run)
        threads = torch.get_num_threads()
        if self._workers is not None and own:
            threads = max(1, threads // 2)

        def measured(inputs: int) -> None:
            if run.batches > len(part.sizes):
                part.sizes.append(inputs)
            if own:
                part.checksum = self._checksum.hexdigest()
                part.shown = part.shown or self._recorder.inputs()
            self.save()

        # Workers need the other cores, except for the baseline: few theories are judged by it, and they wait for it.
        with torch_threads(threads):
            part.measuring += measure(
                model,
                batches,
                run,
                span,
                functools.partial(feed, run, seconds=part.seconds) if self._workers is None else self._workers.feed,
                lambda done: setup.progress(phase, done),
                measured,
                layers=self._layers,
                checked=[layer.name for layer in part.fidelity.layers],
                describe=setup.describe,
                allow_unseen=setup.allow_unseen,
                loss=setup.loss,
                device=setup.device,
                most=run.limit,
                decode=setup.decode if own else None,
                record=self._recorder if own else None,
            )


def _same_audit(saved: Part | None, part: Part, notice: Callable[[str], None]) -> Part | None:
    """Return the saved part if it is of the same audit; otherwise say what differs."""
    if saved is None:
        return None
    different = saved.differences(part)
    if different:
        notice(f"the saved part of an audit is of another one ({different[0]}); the audit starts again")
        return None
    done = sum(run.covered.inputs for run in saved.runs if run.baseline is None)
    notice(f"continues an interrupted audit: {done:,} inputs were measured")
    return saved


def _run_of(
    part: Part, setup: Setup, theories: Sequence[Theory], baseline: int | None = None, norms: bool = False
) -> Run:
    """Return the part's run of a model; a new one if there is none."""
    for run in part.runs:
        if (run.baseline, run.norms) == (baseline, norms):
            return run
    own = baseline is None
    part.runs.append(
        Run(
            theories=theories,
            seed=setup.seed,
            controls=own,
            claims=None
            if setup.claims == "all"
            else frozenset(claim for theory in theories for claim in theory.deciding_claims),
            limit=None if own else BASELINE_INPUTS,
            control_inputs=setup.control_inputs,
            baseline=baseline,
            norms=norms,
        )
    )
    return part.runs[-1]


def _run_whole_model(model: nn.Module, batch: Any, setup: Setup, part: Part) -> Iterator[ModelValues]:
    run_once = functools.partial(run_whole_model, model, describe=setup.describe, allow_unseen=setup.allow_unseen)
    for theory in setup.loaded.theories:
        if theory.on_model is not None:
            start = time.perf_counter()
            yield theory.on_model(run_once, batch, setup.seed)
            taken = time.perf_counter() - start
            part.seconds[theory.title] += taken
            part.measuring += taken


def _recorder(batch: Any, setup: Setup, fidelity: Fidelity, layers: Collection[int] | None) -> InputRecorder:
    """Return a recorder of what the report shows of the first batch."""
    heads = sum(layer.heads for layer in fidelity.layers if layers is None or layer.layer in layers)
    return InputRecorder(batch, setup.loaded.theories, heads=heads, layers=layers, decode=setup.decode)


def _require_layers(fidelity: Fidelity, layers: Collection[int] | None) -> None:
    unknown = sorted(set(layers or ()) - {layer.layer for layer in fidelity.layers})
    if unknown:
        raise AuditError(f"there is no layer {unknown[0]}; the model has layers 0 to {len(fidelity.layers) - 1}")


def _without_swapped(
    fidelity: Fidelity, layers: Collection[int] | None, swapped: Mapping[str, str]
) -> Collection[int] | None:
    """Return the layers to measure, without those that have a swapped operator."""
    if not swapped:
        return layers
    measured = {layer.layer for layer in fidelity.layers if layer.name not in swapped}
    measured &= set(measured if layers is None else layers)
    if not measured:
        raise AuditError("every selected layer has a swapped operator; select another layer, or undo a swap")
    return measured


def _length(batch: Any) -> int | None:
    """Return the number of tokens per input, if the batch has token ids."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else None

"""Measuring a part of an audit: the fidelity check, then the model and its baselines on some of the batches."""

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._swap.notes import swapped_operators
from clearhead.audit.baseline import BASELINE_INPUTS, baseline_seeds, draw_baselines, measure_baseline
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.checksums import BatchChecksum
from clearhead.audit.engine import feed
from clearhead.audit.fidelity import check_fidelity
from clearhead.audit.manifest import Manifest, make_manifest
from clearhead.audit.model_runs import (
    evaluation_mode,
    first_inputs,
    forward,
    measure,
    run_whole_model,
)
from clearhead.audit.options import AuditOptions, Baseline, Claims
from clearhead.audit.parts import Part, Run, Shard, span_of
from clearhead.audit.record import Fidelity
from clearhead.audit.scanned_batches import Scan, require_data, same_batches, scan
from clearhead.audit.shown_inputs import InputRecorder
from clearhead.audit.usable import usable_options
from clearhead.audit.workers import Workers
from clearhead.errors import AuditError
from clearhead.loading.encoding import Decode
from clearhead.numerics.memory import peak_memory
from clearhead.numerics.threads import torch_threads
from clearhead.theories.catalogue import find_theories
from clearhead.theories.theory import ModelValues, Need, Theory

__all__ = ["CHECKED_INPUTS", "measure_part"]

CHECKED_INPUTS = 4
"""Number of inputs of the fidelity check, which runs the model on them four times."""


def measure_part(
    model: nn.Module,
    batches: Iterable[Any],
    options: AuditOptions,
    *,
    checkpoint: Checkpoint,
    shard: Shard = Shard(),  # noqa: B008  it is immutable
    baseline: Iterable[nn.Module] | None = None,
    decode: Decode | None = None,
    name: str = "",
    data: str = "",
    complete_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    progress: Callable[[str, int], None] = lambda phase, done: None,
    notice: Callable[[str], None] = lambda line: None,
) -> Part:
    """Measure one shard of an audit, by default all of it, without findings.

    An interrupted part of the same audit, saved by the checkpoint, goes on.

    baseline: the models before training; None to draw those that the options ask for
    complete_manifest: adds to the manifest what only a command knows
    notice: called with a line if an interrupted audit is continued, or cannot be
    """
    started = time.perf_counter()
    usable, loaded = usable_options(options)
    baselines, compared = _baselines(model, batches, usable, loaded.theories, baseline)
    seeds: dict[str, Any] = {"controls": options.seed}
    if baselines is not None and baseline is None:
        seeds["baseline"] = baseline_seeds(options.seed)
    usable = replace(usable, baseline_for=tuple(theory.key for theory in compared))
    scanned = scan(batches) if shard.count > 1 else Scan()
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise AuditError("there are no inputs: no batch was given")
    if _length(first) == 1:
        raise AuditError("an input of one token attends to itself in every model; give longer inputs")
    with evaluation_mode(model), torch.no_grad():
        progress("check", 0)
        checked = first_inputs(first, CHECKED_INPUTS)
        fidelity = check_fidelity(
            model,
            lambda: forward(model, checked),
            describe=usable.descriptions,
            allow_unseen=usable.allow_unseen,
            allow_swapped=usable.allow_swapped,
        )
        _require_layers(fidelity, usable.layers)
        swapped = swapped_operators(model) if usable.allow_swapped else {}
        layers = _without_swapped(fidelity, usable.layers, swapped)
        named = replace(options, theories=usable.theories, baseline_for=usable.baseline_for).to_dict()
        part = Part(
            shard=shard,
            manifest=complete_manifest(
                make_manifest(model, data=scanned.checksum, seeds=seeds, theories=loaded.sources, options=named)
            ),
            options=usable.to_dict(),
            name=name or type(model).__name__,
            data=data or "given batches",
            fidelity=fidelity,
            whole_model=(),
            notes=(
                *loaded.failures,
                *(f"{path} has {operator} swapped in and is not measured" for path, operator in swapped.items()),
            ),
            sizes=scanned.sizes,
            seconds=dict.fromkeys((theory.title for theory in loaded.theories), 0.0),
            check=time.perf_counter() - started,
        )
    part = _same_audit(checkpoint.read(notice), part, notice) or part
    usable = replace(usable, layers=layers)
    heads = sum(layer.heads for layer in fidelity.layers if layers is None or layer.layer in layers)
    recorder = InputRecorder(first, loaded.theories, heads=heads, layers=layers, decode=decode)
    workers = min(usable.workers or 1, len(fidelity.layers if layers is None else layers))
    with Workers(workers, loaded.theories) if workers > 1 else nullcontext() as processes:
        runs = _Runs(part, usable, scanned, recorder, checkpoint, processes, progress, decode, started)
        with evaluation_mode(model), torch.no_grad():
            runs.measure_model(model, loaded.theories, first, remaining, batches)
        if sum(scanned.sizes[: shard.batches(len(scanned.sizes)).start]) < BASELINE_INPUTS:
            measure_baseline(
                model, baselines or (), compared, functools.partial(runs.measure_baseline, batches=batches)
            )
        part.complete = True
        runs.save(always=True)
    return part


def _baselines(
    model: nn.Module,
    batches: Iterable[Any],
    options: AuditOptions,
    theories: Sequence[Theory],
    given: Iterable[nn.Module] | None,
) -> tuple[Iterable[nn.Module] | None, list[Theory]]:
    """Return the models before training, given or drawn, and the theories that are compared with them."""
    once = iter(batches) is batches
    if once and (given is not None or options.baseline is Baseline.ALL):
        raise AuditError("a baseline is measured after the model, on the same inputs: give the batches as a list")
    judged_by_it = [theory for theory in theories if Need.BASELINE in theory.needs]
    keys = options.baseline_for
    if given is None and options.baseline is not Baseline.NONE and not once:
        if keys is None and options.baseline is Baseline.AUTO:
            keys = tuple(theory.key for theory in judged_by_it)
        if judged_by_it or options.baseline is Baseline.ALL:
            given = draw_baselines(model, options.seed)
        if given is None and options.baseline is Baseline.ALL:
            raise AuditError(
                f"cannot draw fresh random weights for {type(model).__name__}; give the models before training, or "
                "leave the baseline out"
            )
    if given is None:
        return None, []
    wanted = None if keys is None else find_theories(keys) if keys else []
    return given, [theory for theory in theories if wanted is None or theory in wanted]


class _Runs:
    """The runs of a part: the audited model on its batches, then each baseline model, measured and saved.

    workers: the processes that measure theories; None if this one does
    """

    def __init__(
        self,
        part: Part,
        options: AuditOptions,
        scanned: Scan,
        recorder: InputRecorder,
        checkpoint: Checkpoint,
        workers: Workers | None,
        progress: Callable[[str, int], None],
        decode: Decode | None,
        started: float,
    ) -> None:
        self._part, self._options, self._scanned = part, options, scanned
        self._recorder, self._checkpoint, self._workers = recorder, checkpoint, workers
        self._progress, self._decode = progress, decode
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

    def measure_model(
        self,
        model: nn.Module,
        theories: Sequence[Theory],
        first: Any,
        remaining: Iterator[Any],
        batches: Iterable[Any],
    ) -> None:
        """Measure the audited model, or the rest of its batches, and the model as a whole."""
        part, checksum = self._part, self._checksum
        run = _run_of(part, self._options, theories)
        if run.complete:
            require_data(part, batches)
            return
        stream = same_batches(checksum.of(chain([first], remaining)), checksum, run.batches, part.checksum)
        self._measure(model, run, stream, "measure")
        if part.shard.count == 1:
            part.manifest = replace(part.manifest, data=checksum.hexdigest())
        elif run.batches and [checksum.hexdigest()] != self._scanned.checksums[run.batches - 1 : run.batches]:
            raise AuditError("the batches changed while they were read; give the same batches in every iteration")
        if self._workers is not None and part.shard.count == 1:
            self._workers.finish()
        if part.shard.number == 1:  # while workers still measure
            part.whole_model = tuple(_run_whole_model(model, first, theories, self._options, part))
        run.complete = True
        self.save()

    def measure_baseline(
        self, model: nn.Module, theories: Sequence[Theory], number: int, norms: bool, *, batches: Iterable[Any]
    ) -> None:
        """Measure a baseline model, unless that is done."""
        run = _run_of(self._part, self._options, theories, number, norms)
        if not run.complete:
            with evaluation_mode(model), torch.no_grad():
                self._measure(model, run, iter(batches), "baseline")
            run.complete = True

    def _measure(self, model: nn.Module, run: Run, batches: Iterable[Any], phase: str) -> None:
        """Measure one model, or the rest of its batches."""
        part, options, own = self._part, self._options, run.baseline is None
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
                lambda done: self._progress(phase, done),
                measured,
                options,
                checked=[layer.name for layer in part.fidelity.layers],
                most=run.limit,
                decode=self._decode if own else None,
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
    part: Part, options: AuditOptions, theories: Sequence[Theory], baseline: int | None = None, norms: bool = False
) -> Run:
    """Return the part's run of a model; a new one if there is none."""
    for run in part.runs:
        if (run.baseline, run.norms) == (baseline, norms):
            return run
    own = baseline is None
    part.runs.append(
        Run(
            theories=theories,
            seed=options.seed,
            controls=own,
            claims=None
            if options.claims is Claims.ALL
            else frozenset(claim for theory in theories for claim in theory.deciding_claims),
            limit=None if own else BASELINE_INPUTS,
            control_inputs=options.control_inputs,
            baseline=baseline,
            norms=norms,
        )
    )
    return part.runs[-1]


def _run_whole_model(
    model: nn.Module, batch: Any, theories: Sequence[Theory], options: AuditOptions, part: Part
) -> Iterator[ModelValues]:
    run_once = functools.partial(
        run_whole_model, model, describe=options.descriptions, allow_unseen=options.allow_unseen
    )
    for theory in theories:
        if theory.on_model is not None:
            start = time.perf_counter()
            yield theory.on_model(run_once, batch, options.seed)
            taken = time.perf_counter() - start
            part.seconds[theory.title] += taken
            part.measuring += taken


def _require_layers(fidelity: Fidelity, layers: Collection[int] | None) -> None:
    unknown = sorted(set(layers or ()) - {layer.layer for layer in fidelity.layers})
    if unknown:
        raise AuditError(f"there is no layer {unknown[0]}; the model has layers 0 to {len(fidelity.layers) - 1}")


def _without_swapped(
    fidelity: Fidelity, layers: tuple[int, ...] | None, swapped: Mapping[str, str]
) -> tuple[int, ...] | None:
    """Return the layers to measure, without those that have a swapped operator."""
    if not swapped:
        return layers
    measured = {layer.layer for layer in fidelity.layers if layer.name not in swapped}
    measured &= set(measured if layers is None else layers)
    if not measured:
        raise AuditError("every selected layer has a swapped operator; select another layer, or undo a swap")
    return tuple(sorted(measured))


def _length(batch: Any) -> int | None:
    """Return the number of tokens per input, if the batch has token ids."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else None

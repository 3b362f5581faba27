"""Measuring a part of an audit: the fidelity check, then the model and its baselines on some of the batches."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._swap.notes import swapped_operators
from clearhead.audit.baseline import BASELINE_INPUTS, baseline_models, baseline_seeds, draw_baselines
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.checksums import BatchChecksum
from clearhead.audit.fidelity import check_fidelity
from clearhead.audit.manifest import Manifest, make_manifest
from clearhead.audit.options import AuditOptions, Baseline, Claims
from clearhead.audit.part import Part, Pass, Shard
from clearhead.audit.passes import evaluation_mode, first_inputs, forward, measure, run_whole_model
from clearhead.audit.record import Fidelity
from clearhead.audit.scanned_batches import Scan, require_data, same_batches, scan
from clearhead.audit.shown_inputs import InputRecorder
from clearhead.audit.usable import usable_options
from clearhead.audit.workers import OneProcess, Workers
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
    theories = loaded.theories
    baselines, compared = _baselines(model, batches, usable, theories, baseline)
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
    progress("check", 0)
    fidelity = _checked(model, first, usable)
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
        seconds=dict.fromkeys((theory.title for theory in theories), 0.0),
        check=time.perf_counter() - started,
    )
    part = _same_audit(checkpoint.read(notice), part, notice) or part
    usable = replace(usable, layers=layers)
    started -= part.elapsed
    own_batches = shard.batches(len(scanned.sizes))
    checksum = BatchChecksum()
    heads = sum(layer.heads for layer in fidelity.layers if layers is None or layer.layer in layers)
    recorder = InputRecorder(first, theories, heads=heads, layers=layers, decode=decode)
    workers = min(usable.workers or 1, len(fidelity.layers if layers is None else layers))
    with Workers(workers, theories) if workers > 1 else OneProcess(theories) as processes:

        def current() -> Part:
            return _up_to_date(part, processes, started)

        def measure_pass(model: nn.Module, pass_: Pass, batches: Iterable[Any], phase: str) -> None:
            own = pass_ is part.audited

            def after() -> None:
                if own:
                    part.checksum = checksum.hexdigest()
                    part.shown = part.shown or recorder.inputs()
                checkpoint.save(current)

            # Workers need the other cores, but for the baseline: few theories are judged by it, and they wait for it.
            threads = torch.get_num_threads() // (2 if own and workers > 1 else 1)
            with evaluation_mode(model), torch.no_grad(), torch_threads(max(1, threads)):
                part.measuring += measure(
                    model,
                    batches,
                    pass_,
                    processes,
                    usable,
                    sizes=part.sizes,
                    checked=[layer.name for layer in fidelity.layers],
                    end=own_batches.stop if shard.count > 1 else None,
                    progress=lambda done: progress(phase, done),
                    after=after,
                    decode=decode if own else None,
                    record=recorder if own else None,
                )

        audited = _pass_of(part, usable, theories, own_batches.start)
        if audited.complete:
            require_data(part, batches)
        else:
            stream = checksum.of(chain([first], remaining))
            measure_pass(model, audited, same_batches(stream, checksum, audited.next_batch, part.checksum), "measure")
            end = audited.next_batch
            if shard.count == 1:
                part.manifest = replace(part.manifest, data=checksum.hexdigest())
                processes.finish()
            elif end and [checksum.hexdigest()] != scanned.checksums[end - 1 : end]:
                raise AuditError("the batches changed while they were read; give the same batches in every iteration")
            if shard.number == 1:  # while workers still measure
                part.whole_model = _on_whole_model(model, first, theories, usable, part)
            audited.complete = True
            checkpoint.save(current)
        if sum(scanned.sizes[: own_batches.start]) < BASELINE_INPUTS:
            with closing(baseline_models(model, baselines or (), compared)) as models:  # restores norms after an error
                for drawn, judged, number, norms in models:
                    pass_ = _pass_of(part, usable, judged, own_batches.start, number, norms)
                    if not pass_.complete:
                        measure_pass(drawn, pass_, iter(batches), "baseline")
                        pass_.complete = True
        part.complete = True
        checkpoint.save(current, always=True)
    return part


def _checked(model: nn.Module, first: Any, options: AuditOptions) -> Fidelity:
    """Check that what is captured is what the model computes, on the first inputs, and that it has the layers."""
    with evaluation_mode(model), torch.no_grad():
        checked = first_inputs(first, CHECKED_INPUTS)
        fidelity = check_fidelity(
            model,
            lambda: forward(model, checked),
            describe=options.descriptions,
            allow_unseen=options.allow_unseen,
            allow_swapped=options.allow_swapped,
        )
    unknown = sorted(set(options.layers or ()) - {layer.layer for layer in fidelity.layers})
    if unknown:
        raise AuditError(f"there is no layer {unknown[0]}; the model has layers 0 to {len(fidelity.layers) - 1}")
    return fidelity


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


def _up_to_date(part: Part, processes: OneProcess | Workers, started: float) -> Part:
    """Return the part with all sums, times and the memory so far. started: when it began, less what it took before."""
    start = time.perf_counter()
    processes.collect(part.seconds)
    part.measuring += time.perf_counter() - start
    part.elapsed = time.perf_counter() - started
    peak = peak_memory()
    part.peak_memory = None if peak is None else max(peak + processes.added_memory, part.peak_memory or 0)
    return part


def _same_audit(saved: Part | None, part: Part, notice: Callable[[str], None]) -> Part | None:
    """Return the saved part if it is of the same audit; otherwise say what differs."""
    if saved is None:
        return None
    different = saved.differences(part)
    if different:
        notice(f"the saved part of an audit is of another one ({different[0]}); the audit starts again")
        return None
    notice(f"continues an interrupted audit: {saved.audited.inputs:,} inputs were measured")
    return saved


def _pass_of(
    part: Part,
    options: AuditOptions,
    theories: Sequence[Theory],
    first_batch: int,
    baseline: int | None = None,
    norms: bool = False,
) -> Pass:
    """Return the part's pass of a model; a new one, which begins with the first batch, if there is none."""
    for pass_ in part.passes:
        if (pass_.baseline, pass_.norms) == (baseline, norms):
            return pass_
    own = baseline is None
    part.passes.append(
        Pass(
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
            next_batch=first_batch,
        )
    )
    return part.passes[-1]


def _on_whole_model(
    model: nn.Module, batch: Any, theories: Sequence[Theory], options: AuditOptions, part: Part
) -> tuple[ModelValues, ...]:
    """Return what theories find on the model as a whole, each run on the batch as often as it likes."""
    values = []
    run_once = functools.partial(
        run_whole_model, model, describe=options.descriptions, allow_unseen=options.allow_unseen
    )
    with evaluation_mode(model), torch.no_grad():
        for theory in theories:
            if theory.on_model is not None:
                start = time.perf_counter()
                values.append(theory.on_model(run_once, batch, options.seed))
                taken = time.perf_counter() - start
                part.seconds[theory.title] += taken
                part.measuring += taken
    return tuple(values)


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

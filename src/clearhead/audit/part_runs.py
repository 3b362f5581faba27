"""Measuring a part of an audit: the fidelity check, then the model and its baselines on some of the batches."""

import functools
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearhead._swap.notes import swapped_operators
from clearhead.audit.baseline import BASELINE_INPUTS, measure_baseline
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.checksums import BatchChecksum
from clearhead.audit.engine import Measurement
from clearhead.audit.fidelity import check_fidelity
from clearhead.audit.manifest import Manifest, make_manifest
from clearhead.audit.model_runs import AuditError, count_inputs, evaluation_mode, forward, measure, run_whole_model
from clearhead.audit.parts import Part, Run, Shard, span_of
from clearhead.audit.record import Fidelity
from clearhead.audit.shown_inputs import InputRecorder
from clearhead.interfaces import AttentionSpec
from clearhead.models.encoding import Decode
from clearhead.theories.catalogue import LoadedTheories
from clearhead.theories.theory import Theory, WholeModelErrors

__all__ = ["Setup", "measure_part"]

OTHER_DATA = "the interrupted audit is of other inputs; delete its file to start again, or choose another folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an audit measures, and how.

    baselines: the models before training; compared: the theories that are measured on them
    seeds: all seeds, for the manifest; complete_manifest: adds what only a caller knows
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
    scanned = _scan(batches) if shard.count > 1 else _Scan()
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise AuditError("there are no inputs: no batch was given")
    if _length(first) == 1:
        raise AuditError("an input of one token attends to itself in every model; give longer inputs")
    with evaluation_mode(model), torch.no_grad():
        setup.progress("check", 0)
        fidelity = check_fidelity(
            model,
            lambda: forward(model, first),
            describe=setup.describe,
            allow_unseen=setup.allow_unseen,
            allow_swapped=setup.allow_swapped,
        )
        _require_layers(fidelity, setup.layers)
        swapped = swapped_operators(model) if setup.allow_swapped else {}
        layers = _without_swapped(fidelity, setup.layers, swapped)
        checked = time.perf_counter()
        seconds = dict.fromkeys((theory.title for theory in setup.loaded.theories), 0.0)
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
            seconds=seconds,
            check=checked - started,
        )
        saved = _same_audit(checkpoint.read(setup.notice), part, setup.notice)
        if saved is not None:
            part, seconds = saved, saved.seconds
        elapsed = part.elapsed
        if saved is None and shard.number == 1:
            part.whole_model = tuple(_run_whole_model(model, first, setup, seconds))
        recorder = _recorder(first, setup, fidelity, layers)
        checksum = BatchChecksum()

        def save(*, always: bool = False) -> None:
            part.elapsed = elapsed + time.perf_counter() - started
            part.peak_memory = max(_peak_memory() or 0, part.peak_memory or 0) or None
            checkpoint.save(part, always=always)

        def run_model(model: nn.Module, run: Run, batches: Iterable[Any], phase: str) -> None:
            """Measure one model, or the rest of its batches, and keep the run in the part."""
            most = None if run.baseline is None else BASELINE_INPUTS
            own = shard.batches(len(scanned.sizes))
            end = own.stop if shard.count > 1 else None
            span = span_of(part.sizes, max(run.batches, own.start), end, run.theories)
            if not run.measurements:
                run.measurements = [
                    Measurement(
                        theory,
                        seed=setup.seed,
                        controls=run.baseline is None,
                        claims=theory.claims if setup.claims == "all" else theory.deciding_claims,
                        first=span.first,
                        lead=span.lead_inputs,
                        most=most,
                        control_inputs=setup.control_inputs,
                    )
                    for theory in run.theories
                ]

            def measured(inputs: int) -> None:
                if run.batches > len(part.sizes):
                    part.sizes.append(inputs)
                if run.baseline is None:
                    part.checksum = checksum.hexdigest()
                    part.shown = part.shown or recorder.inputs()
                save()

            measure(
                model,
                batches,
                run,
                span,
                seconds,
                lambda done: setup.progress(phase, done),
                measured,
                layers=layers,
                checked=[layer.name for layer in fidelity.layers],
                describe=setup.describe,
                allow_unseen=setup.allow_unseen,
                loss=setup.loss,
                device=setup.device,
                most=most,
                decode=setup.decode if run.baseline is None else None,
                record=recorder if run.baseline is None else None,
            )
            run.complete = True

        run = _run_of(part, setup.loaded.theories)
        if run.complete:
            _require_data(part, batches)
        else:
            stream = _same_batches(checksum.of(chain([first], remaining)), checksum, run.batches, part.checksum)
            run_model(model, run, stream, "measure")
            if shard.count == 1:
                part.manifest = replace(part.manifest, data=checksum.hexdigest())
            elif run.batches and checksum.hexdigest() != scanned.checksums[run.batches - 1]:
                raise AuditError("the batches changed while they were read; give the same batches in every iteration")
            save()

    def run_baseline(model: nn.Module, theories: Sequence[Theory], number: int, norms: bool) -> None:
        run = _run_of(part, theories, number, norms)
        if not run.complete:
            with evaluation_mode(model), torch.no_grad():
                run_model(model, run, iter(batches), "baseline")

    if sum(scanned.sizes[: shard.batches(len(scanned.sizes)).start]) < BASELINE_INPUTS:
        measure_baseline(model, setup.baselines, setup.compared, run_baseline)
    part.complete = True
    save(always=True)
    return part


@dataclass(frozen=True, slots=True)
class _Scan:
    """The numbers of inputs of all batches, and the checksum of the batches up to each."""

    sizes: list[int] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)

    @property
    def checksum(self) -> str:
        """The checksum of all batches."""
        return self.checksums[-1] if self.checksums else ""


def _scan(batches: Iterable[Any]) -> _Scan:
    """Go over all batches without running the model."""
    if iter(batches) is batches:
        raise AuditError("the shards of an iterator cannot be counted: give the batches as a list")
    scan, checksum = _Scan(), BatchChecksum()
    for batch in checksum.of(batches):
        scan.sizes.append(count_inputs(batch))
        scan.checksums.append(checksum.hexdigest())
    return scan


def _same_batches(batches: Iterable[Any], checksum: BatchChecksum, count: int, expected: str) -> Iterator[Any]:
    """Yield the batches. Raise AuditError if the first `count` are not those of the interrupted audit."""
    for number, batch in enumerate(batches, start=1):
        if number == count and checksum.hexdigest() != expected:
            raise AuditError(OTHER_DATA)
        yield batch
        del batch  # or it would stay in memory while the next one is made


def _require_data(part: Part, batches: Iterable[Any]) -> None:
    """Raise AuditError if the batches are not those of the interrupted audit, which has measured all of them."""
    if part.shard.count == 1 and _scan(batches).checksum != part.manifest.data:
        raise AuditError(OTHER_DATA)


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


def _run_of(part: Part, theories: Sequence[Theory], baseline: int | None = None, norms: bool = False) -> Run:
    """Return the part's run of a model; a new one if there is none."""
    for run in part.runs:
        if (run.baseline, run.norms) == (baseline, norms):
            return run
    part.runs.append(Run(theories=theories, measurements=[], baseline=baseline, norms=norms))
    return part.runs[-1]


def _run_whole_model(
    model: nn.Module, batch: Any, setup: Setup, seconds: dict[str, float]
) -> Iterator[WholeModelErrors]:
    run_once = functools.partial(run_whole_model, model, describe=setup.describe, allow_unseen=setup.allow_unseen)
    for theory in setup.loaded.theories:
        if theory.whole_model is not None:
            start = time.perf_counter()
            yield theory.whole_model(run_once, batch, setup.seed)
            seconds[theory.title] += time.perf_counter() - start


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


def _peak_memory() -> int | None:
    """Return the process's peak memory in bytes; None where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes

"""Run an audit: from a model and its inputs to a record of findings."""

import functools
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearhead import __version__
from clearhead._swap.notes import swapped_operators
from clearhead.audit.baseline import baseline_seeds, draw_baselines, measure_baseline, with_baseline
from clearhead.audit.checksums import BatchChecksum
from clearhead.audit.engine import Measurement
from clearhead.audit.fidelity import check_fidelity
from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.audit.manifest import make_manifest
from clearhead.audit.model_runs import AuditError, evaluation_mode, forward, measure, run_whole_model
from clearhead.audit.record import AuditRecord, Fidelity, Timing
from clearhead.interfaces import AttentionSpec
from clearhead.theories.catalogue import find_theories, load_theories
from clearhead.theories.reason import ReasonKind
from clearhead.theories.theory import Need, Role, Theory

__all__ = ["AuditError", "audit"]

LARGEST_SEED = 2**63 - 1
BASELINE_LINE = "the same model before training"


def audit(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    theories: Sequence[str] = (),
    claims: Literal["primary", "all"] = "primary",
    layers: Collection[int] | None = None,
    seed: int = 0,
    describe: Sequence[AttentionSpec] = (),
    allow_unseen: bool = False,
    allow_swapped: bool = False,
    baseline: nn.Module | Iterable[nn.Module] | Literal["auto", "all"] | None = "auto",
    baseline_for: Sequence[str] | str | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
) -> AuditRecord:
    """Measure theories of attention on every head of a model and compare each head with controls.

    Before anything is measured, the captured tensors are checked to be what the model computes. The model is put into
    evaluation mode and restored at the end.

    batches: inputs of the model: mappings of keyword arguments, tuples of positional ones, or single tensors. They are
        taken one at a time and not kept; of each input one number per claim and head is
    theories: keys of theories, or one key; all by default
    claims: "primary" measures what verdicts on theories need: primary claims, the statistics that they require, and
        curves over depth. "all" also measures other consequences of the theories and statistics as published, which
        takes several times as long
    layers: numbers of layers in forward-pass order, from 0; all by default
    allow_swapped: measure the other layers of a model with swapped operators; without it such a model is an error,
        because theories are about softmax attention
    baseline: the same model before training, drawn once or several times. Each of its heads becomes one more control
        for the same head of the model. The batches are iterated over again for it, so they must not be an iterator.
        Theories that are judged by the baseline need several draws; without them their claims are undecided. They are
        measured again on each draw with the norms of the model, a second control; the draw's own are restored. "auto"
        draws five for the theories that are judged by it, if Clearhead can: for models of transformers and its own,
        without a swapped operator, and batches that are not an iterator. "all" compares all theories, and raises if it
        cannot draw. None compares none
    baseline_for: keys of the theories that are compared with the baseline; by default all, with "auto" those judged by
        it
    loss: a function of the model's output and the batch that returns one number. Every batch is then differentiated,
        and theories get the gradients at each layer's output. Only claims that are not primary need it
    progress: called with a phase ("check", "measure" or "baseline") and the number of inputs done
    """
    if layers is not None and not layers:
        raise AuditError("layers is empty, so there is nothing to measure; leave it out for all layers")
    if claims not in ("primary", "all"):
        raise AuditError(f'claims is "primary" or "all", not {claims!r}')
    if loss is not None and claims != "all":
        raise AuditError('no primary claim needs a loss; measure all claims (claims="all", --claims all), or no loss')
    if not 0 <= seed <= LARGEST_SEED:
        raise AuditError(f"the seed must be from 0 to {LARGEST_SEED}, not {seed}")
    once = iter(batches) is batches
    if baseline not in (None, "auto") and once:
        raise AuditError("a baseline is measured after the model, on the same inputs: give the batches as a list")
    loaded = load_theories([theories] if isinstance(theories, str) else theories)
    chosen = loaded.theories
    judged_by_it = [theory for theory in chosen if Need.BASELINE in theory.needs]
    seeds: dict[str, Any] = {"controls": seed}
    if isinstance(baseline, str):
        if baseline_for is None and baseline == "auto":
            baseline_for = [theory.key for theory in judged_by_it]
        baseline = _draw(model, baseline, seed) if not once and (baseline == "all" or judged_by_it) else None
        seeds |= {} if baseline is None else {"baseline": baseline_seeds(seed)}
    compared = _compared(chosen, baseline, baseline_for)
    measured_claims = {theory.key: theory.claims if claims == "all" else theory.deciding_claims for theory in chosen}
    measurements = [Measurement(theory, seed=seed, claims=measured_claims[theory.key]) for theory in chosen]
    checksum = BatchChecksum()
    started = time.perf_counter()
    report_progress = progress or (lambda phase, done: None)
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise AuditError("there are no inputs: no batch was given")
    if _length(first) == 1:
        raise AuditError("an input of one token attends to itself in every model; give longer inputs")
    with evaluation_mode(model), torch.no_grad():
        report_progress("check", 0)
        fidelity = check_fidelity(
            model,
            lambda: forward(model, first),
            describe=describe,
            allow_unseen=allow_unseen,
            allow_swapped=allow_swapped,
        )
        _require_layers(fidelity, layers)
        swapped = swapped_operators(model) if allow_swapped else {}
        layers = _without_swapped(fidelity, layers, swapped)
        checked = time.perf_counter()
        seconds = dict.fromkeys((theory.title for theory in chosen), 0.0)
        run_once = functools.partial(run_whole_model, model, describe=describe, allow_unseen=allow_unseen)
        whole_model = []
        for theory in chosen:
            if theory.whole_model is not None:
                start = time.perf_counter()
                whole_model.append(theory.whole_model(run_once, first, seed))
                seconds[theory.title] += time.perf_counter() - start

        def measure_model(
            model: nn.Module,
            batches: Iterable[Any],
            measured: Sequence[Measurement],
            done: Callable[[int], None],
            most: int | None = None,
        ) -> Any:
            return measure(
                model,
                batches,
                measured,
                seconds,
                done,
                layers=layers,
                checked=[layer.name for layer in fidelity.layers],
                describe=describe,
                allow_unseen=allow_unseen,
                loss=loss,
                most=most,
            )

        covered = measure_model(
            model, checksum.of(chain([first], remaining)), measurements, lambda done: report_progress("measure", done)
        )
    findings = []
    for measurement in measurements:
        start = time.perf_counter()
        findings += measurement.findings()
        seconds[measurement.theory.title] += time.perf_counter() - start
    curves = [curve for measurement in measurements for curve in measurement.curves()]
    models = [baseline] if isinstance(baseline, nn.Module) else baseline or ()
    before = measure_baseline(
        model,
        models,
        {theory: measured_claims[theory.key] for theory in compared},
        findings,
        covered,
        measure_model,
        batches,
        report_progress,
        seed,
    )
    decisive = [theory.title for theory in judged_by_it]
    samples = tuple(sample for measurement in measurements for sample in measurement.samples())
    findings = with_baseline(
        findings, before.findings, before.with_norms, seed=seed, decisive=decisive, samples=samples
    )
    curves = [curve.with_line(before.curves_like(curve), name=BASELINE_LINE) for curve in curves]
    if before.with_norms and "baseline" in seeds:
        seeds["baseline with the trained norms"] = seeds["baseline"]
    findings = judge(findings)
    _require_length(findings)
    manifest = make_manifest(model, data=checksum.hexdigest(), seeds=seeds, theories=loaded.sources)
    ended = time.perf_counter()
    return AuditRecord(
        model=name or type(model).__name__,
        data=data or "given batches",
        version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        claims=claims,
        inputs=max(covered.inputs, *(finding.inputs + finding.skipped for finding in findings)),
        tokens=covered.tokens,
        fidelity=fidelity,
        findings=tuple(findings),
        timing=Timing(
            check=checked - started,
            forward=ended - checked - sum(seconds.values()),
            theory=seconds,
            total=ended - started,
            peak_memory=_peak_memory(),
        ),
        whole_model=tuple(whole_model),
        disputes=tuple(theory.dispute for theory in chosen if theory.dispute is not None),
        curves=tuple(curves),
        notes=(
            *loaded.failures,
            *(f"{path} has {operator} swapped in and is not measured" for path, operator in swapped.items()),
            *_baseline_notes(chosen, compared, before.models),
            *(note for measurement in measurements for note in measurement.notes()),
        ),
        theories=loaded.sources,
        samples=samples,
        manifest=manifest,
        baselines=before.counts,
    )


def _draw(model: nn.Module, baseline: str, seed: int) -> Iterable[nn.Module] | None:
    if baseline not in ("auto", "all"):
        raise AuditError(f'the baseline is "auto", "all", None, a model or several models, not {baseline!r}')
    models = draw_baselines(model, seed)
    if models is None and baseline == "all":
        raise AuditError(
            f"cannot draw fresh random weights for {type(model).__name__}; give the models before training, or leave "
            "the baseline out"
        )
    return models


def _compared(
    chosen: Sequence[Theory],
    baseline: nn.Module | Iterable[nn.Module] | None,
    keys: Sequence[str] | str | None,
) -> list[Theory]:
    """Return the theories that are compared with the baseline."""
    if baseline is None:
        return []
    keys = [keys] if isinstance(keys, str) else keys
    wanted = None if keys is None else find_theories(keys) if keys else []
    return [theory for theory in chosen if wanted is None or theory in wanted]


def _baseline_notes(chosen: Sequence[Theory], compared: Sequence[Theory], baselines: int) -> Iterator[str]:
    for theory in chosen:
        if Need.BASELINE in theory.needs and (theory not in compared or not baselines):
            yield f"{theory.title}: undecided without a baseline; an untrained model may do as well"
        elif Need.BASELINE in theory.needs and baselines == 1:
            yield f"{theory.title}: one baseline model is shown and does not decide; give several"


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


def _require_length(findings: Sequence[Finding]) -> None:
    """Raise AuditError if inputs are too short for every primary claim."""
    deciding = [f for f in findings if f.claim.role is Role.PRIMARY and f.verdict is not Verdict.TRUE_BY_CONSTRUCTION]
    short = [reason for f in deciding for reason in f.reasons if reason.kind is ReasonKind.TOO_SHORT]
    if short and all(finding.inputs == 0 for finding in deciding):
        raise AuditError(f"every input is too short to be measured: {short[0].text}; give longer inputs")


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

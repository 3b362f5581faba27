"""Run an audit: from a model and its inputs to a record of findings."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearhead.audit.baseline import baseline_seeds, draw_baselines
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.examples import CONTROL_INPUTS
from clearhead.audit.manifest import Manifest
from clearhead.audit.model_runs import AuditError
from clearhead.audit.part_runs import Setup, measure_part
from clearhead.audit.parts import Part, Shard
from clearhead.audit.record import AuditRecord
from clearhead.audit.workers import usable_workers
from clearhead.interfaces import AttentionSpec
from clearhead.loading.encoding import Decode
from clearhead.theories.catalogue import find_theories, load_theories
from clearhead.theories.theory import Need, Theory

__all__ = ["AuditError", "audit", "measure_audit", "usable_device"]

LARGEST_SEED = 2**63 - 1


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
    decode: Decode | None = None,
    device: str | torch.device = "cpu",
    control_inputs: int = CONTROL_INPUTS,
    workers: int | None = 1,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
    checkpoint: str | Path | None = None,
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
    decode: turns token ids into text, as `tokenizer.decode` does; the report then shows words instead of numbers
    device: of the theories' arithmetic, whatever devices the model is on. Every captured tensor is moved there once.
        Random numbers are drawn on the CPU, so they do not depend on it
    control_inputs: number of inputs that controls are measured on, the first ones. Each head is compared with its
        controls on these inputs; its own value and interval are over all
    workers: number of processes that measure theories while the model runs; 1 measures in this process, None uses one
        for each thread of torch. The numbers are the same but for rounding: the model then runs on half of torch's
        threads. Processes are forked, which needs Linux
    progress: called with a phase ("check", "measure" or "baseline") and the number of inputs done
    checkpoint: a file that holds the sums while the audit runs. If the audit is interrupted or killed, the same call
        continues it and finds the same. The file is removed at the end. Raise InputError if another process writes it
    """
    file = Checkpoint(None if checkpoint is None else Path(checkpoint))
    with file.locked():
        part = measure_audit(
            model,
            batches,
            theories=theories,
            claims=claims,
            layers=layers,
            seed=seed,
            describe=describe,
            allow_unseen=allow_unseen,
            allow_swapped=allow_swapped,
            baseline=baseline,
            baseline_for=baseline_for,
            loss=loss,
            decode=decode,
            device=device,
            control_inputs=control_inputs,
            workers=workers,
            name=name,
            data=data,
            progress=progress,
            checkpoint=file,
        )
        record = file.finish(part)
        file.remove()
    return record


def measure_audit(
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
    decode: Decode | None = None,
    device: str | torch.device = "cpu",
    control_inputs: int = CONTROL_INPUTS,
    workers: int | None = 1,
    name: str = "",
    data: str = "",
    progress: Callable[[str, int], None] | None = None,
    checkpoint: Checkpoint,
    shard: Shard = Shard(),  # noqa: B008  it is immutable
    complete_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    notice: Callable[[str], None] = lambda line: None,
) -> Part:
    """Measure one shard of an audit, by default all of it, without findings. The options are those of `audit`.

    complete_manifest: adds to the manifest what only a command knows
    notice: called with a line if an interrupted audit is continued, or cannot be
    """
    if layers is not None and not layers:
        raise AuditError("layers is empty, so there is nothing to measure; leave it out for all layers")
    if claims not in ("primary", "all"):
        raise AuditError(f'claims is "primary" or "all", not {claims!r}')
    if loss is not None and claims != "all":
        raise AuditError('no primary claim needs a loss; measure all claims (claims="all", --claims all), or no loss')
    if not 0 <= seed <= LARGEST_SEED:
        raise AuditError(f"the seed must be from 0 to {LARGEST_SEED}, not {seed}")
    if control_inputs < 0:
        raise AuditError(f"control_inputs is a number of inputs, not {control_inputs}")
    chosen_device = usable_device(device)
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
    setup = Setup(
        loaded=loaded,
        claims=claims,
        layers=layers,
        seed=seed,
        describe=describe,
        allow_unseen=allow_unseen,
        allow_swapped=allow_swapped,
        baselines=[baseline] if isinstance(baseline, nn.Module) else baseline or (),
        compared=_compared(chosen, baseline, baseline_for),
        loss=loss,
        decode=decode,
        device=chosen_device,
        control_inputs=control_inputs,
        workers=usable_workers(workers, chosen_device),
        name=name,
        data=data,
        seeds=seeds,
        complete_manifest=complete_manifest,
        progress=progress or (lambda phase, done: None),
        notice=notice,
    )
    return measure_part(model, batches, setup, shard=shard, checkpoint=checkpoint)


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device of the theories' arithmetic. Raise AuditError if this machine cannot compute on it."""
    try:
        usable = torch.device(device)
        torch.zeros(1, dtype=torch.float64, device=usable).cpu()  # theories compute in double precision
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        available = "cpu" if accelerator is None else f"cpu or {accelerator}"
        raise AuditError(
            f"theories cannot compute on the device {str(device)!r} ({reason[:120]}); choose {available}"
        ) from None
    return usable


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

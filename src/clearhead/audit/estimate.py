"""The time and memory of an audit, estimated from a few of its inputs."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from clearhead.audit.baseline import BASELINE_DRAWS, BASELINE_INPUTS
from clearhead.audit.options import AuditOptions, Baseline
from clearhead.audit.passes import count_inputs
from clearhead.audit.run import audit_with
from clearhead.audit.workers import usable_workers
from clearhead.errors import AuditError
from clearhead.theories.catalogue import find_theories
from clearhead.theories.theory import Need

__all__ = ["Estimate", "estimate"]

TRIED = 8
"""Number of inputs that an estimate measures at least, if there are as many. Groups of inputs need six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What an audit will take on this machine, about.

    theories: seconds by theory, without the baseline; forward: of the model's own passes; baseline: of all its models
    memory: peak of all processes in bytes; None where the system does not say
    tried: number of inputs that were measured
    workers: number of processes that measure theories, next to the forward passes if there are several
    """

    inputs: int
    tried: int
    theories: dict[str, float]
    forward: float
    baseline: float
    memory: int | None
    workers: int = 1

    @property
    def seconds(self) -> float:
        """The whole audit on the clock."""
        model = max(self.forward, (sum(self.theories.values()) + self.forward) / self.workers)
        return model + self.baseline


def estimate(model: nn.Module, batches: Iterable[Any], options: AuditOptions) -> Estimate:
    """Measure the first inputs and return what all of them will take.

    All batches are iterated over, to count the inputs.
    """
    counts = [count_inputs(batch) for batch in batches]
    totals = list(itertools.accumulate(counts))
    if not totals or not totals[-1]:
        raise AuditError("there are no inputs: no batch was given")
    needed = next((n for n, total in enumerate(totals, start=1) if total >= TRIED), len(totals))
    tried = list(itertools.islice(iter(batches), 2 * needed))
    few = tried[:needed]
    plain = replace(options, baseline=Baseline.NONE)
    audit_with(plain, model, few)  # the first audit of a process takes longer
    without, of_few, of_tried = (
        audit_with(replace(plain, control_inputs=count), model, some).timing
        for some, count in ((few, 0), (few, options.control_inputs), (tried, options.control_inputs))
    )
    numbers = totals[needed - 1], totals[len(tried) - 1], totals[-1]

    def grown(none: float, by_few: float, taken: float) -> float:
        return _extrapolated(none, by_few, taken, *numbers, options.control_inputs)

    baseline_seconds = _of_baseline(model, few, min(BASELINE_INPUTS, totals[-1]), options)
    return Estimate(
        inputs=totals[-1],
        tried=totals[len(tried) - 1],
        theories={
            name: grown(without.theory[name], of_few.theory[name], of_tried.theory[name]) for name in of_tried.theory
        },
        forward=of_tried.check + grown(of_few.forward, of_few.forward, of_tried.forward),
        baseline=baseline_seconds,
        memory=_with_baseline(of_tried.peak_memory, model, drawn=baseline_seconds > 0),
        workers=usable_workers(options.workers, torch.device(options.device)),
    )


def _extrapolated(
    without: float, of_few: float, of_tried: float, few: int, tried: int, inputs: int, control_inputs: int
) -> float:
    """Return the seconds for all inputs, from those for few and for tried ones, and for few without controls.

    Each input adds the same time, and each of the first `control_inputs` the time of its controls.
    """
    few_controls, tried_controls, controls = (min(control_inputs, count) for count in (few, tried, inputs))
    of_controls = max(of_few - without, 0) / max(few_controls, 1)
    of_input = max(of_tried - of_few - of_controls * (tried_controls - few_controls), 0) / max(tried - few, 1)
    return of_tried + of_input * (inputs - tried) + of_controls * (controls - tried_controls)


def _with_baseline(peak: int | None, model: nn.Module, *, drawn: bool) -> int | None:
    """Return the peak with the models of the baseline: one is held while the next is drawn."""
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return None if peak is None else peak + 2 * weights * drawn


def _of_baseline(model: nn.Module, batches: Sequence[Any], inputs: int, options: AuditOptions) -> float:
    """Return the seconds of the baseline on this number of inputs, from runs of the model itself on some batches."""
    compared = tuple(
        theory.key
        for theory in find_theories(options.theories)
        if options.baseline is Baseline.ALL or Need.BASELINE in theory.needs
    )
    if options.baseline is Baseline.NONE or not compared:
        return 0.0
    own = replace(options, theories=compared, baseline=Baseline.NONE)
    plain, with_two = (
        audit_with(own, model, batches, baseline=models).timing.total for models in (None, [model, model])
    )
    used = inputs / min(BASELINE_INPUTS, sum(map(count_inputs, batches)))
    # Two runs are one draw, which is measured as it is and with the trained norms.
    return max(with_two - plain, 0) * BASELINE_DRAWS * used

"""Watch a model as it was before training, drawn once or several times, on the same inputs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from clearhead.audit.engine import AuditError, Seen, evaluated
from clearhead.audit.findings import Finding
from clearhead.audit.record import DepthCurve
from clearhead.theories.theory import AlongDepth, Measurement, Theory

__all__ = ["BeforeTraining", "curves_of", "watch_untrained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeTraining:
    """What untrained models gave: their findings one after the other, their curves, and how many they were."""

    findings: list[Finding]
    curves: list[DepthCurve]
    models: int

    def of(self, curve: DepthCurve) -> list[DepthCurve]:
        """The same curve of every model."""
        return [one for one in self.curves if (one.theory, one.title) == (curve.theory, curve.title)]


def watch_untrained(
    models: Iterable[nn.Module],
    compared: Sequence[Theory],
    findings: Sequence[Finding],
    seen: Seen,
    look: Callable[..., Seen],
    batches: Iterable[Any],
    clock: dict[str, float],
    tell: Callable[[str, int], None],
    seed: int,
) -> BeforeTraining:
    """What the untrained models give: all theories on the first, those that are judged by it on the others too."""
    before: list[Finding] = []
    curves: list[DepthCurve] = []
    count = 0
    for place, model in enumerate(models):
        asked = compared if place == 0 else [theory for theory in compared if theory.needs_untrained]
        if not asked:
            break
        plain = [(theory.title, theory.begin(seed, controls=False)) for theory in asked]
        with evaluated(model), torch.no_grad():
            again = look(
                model,
                iter(batches),
                plain,
                clock,
                lambda done: tell("untrained", done),
                stream=any(theory.needs_stream for theory in asked),
            )
        drawn = [finding for _, measurement in plain for finding in measurement.findings()]
        _require_alike(findings, drawn, titles=[title for title, _ in plain], same_inputs=again == seen)
        before += drawn
        curves += curves_of(plain)
        count = place + 1
    return BeforeTraining(findings=before, curves=curves, models=count)


def curves_of(chosen: Sequence[tuple[str, Measurement]]) -> list[DepthCurve]:
    """What the measurements drew along depth."""
    drawn = (measurement for _, measurement in chosen if isinstance(measurement, AlongDepth))
    return [curve for measurement in drawn for curve in measurement.curves()]


def _require_alike(
    findings: Sequence[Finding], drawn: Sequence[Finding], *, titles: list[str], same_inputs: bool
) -> None:
    """Refuse an untrained model that is another architecture, saw other inputs, or gives no numbers."""
    measured = {(f.claim, f.layer, f.head): f.inputs for f in findings if f.claim.theory in titles}
    at_start = {(f.claim, f.layer, f.head): f.inputs for f in drawn}
    if not same_inputs or measured.keys() != at_start.keys():
        raise AuditError(
            "the untrained model did not see the same inputs with the same heads; give batches that can be gone "
            "through twice, and a model of the same architecture"
        )
    measured_at = {(claim.theory, layer) for (claim, layer, _), inputs in measured.items() if inputs}
    measured_at_start = {(claim.theory, layer) for (claim, layer, _), inputs in at_start.items() if inputs}
    # A single claim may be missing, as those of max margin on saturated heads alone are: it has no baseline then.
    silent = sorted(measured_at - measured_at_start)
    if silent:
        theory, layer = silent[0]
        raise AuditError(
            f"the untrained model gives no value for {theory} at layer {layer}, where the model does; are its weights "
            "finite? Leave it out, or draw it again"
        )

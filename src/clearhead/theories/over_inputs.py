"""Sums over inputs, by layer and head: what every measurement keeps, and the findings it makes of them.

Each input counts once; windows of one input are averaged. Only running moments are kept, so memory does not grow with
the inputs, and how they were batched does not matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from clearhead.axes import Bool
from clearhead.findings import Chance, Claim, Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array, Interval, RunningMoments
from clearhead.numerics.threads import one_thread_each

__all__ = ["Control", "OverInputs", "Sample", "Samples", "sample_by_head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How a control is drawn: anew for each input, or once and kept over all inputs, as a random model would be.

    Draws made anew average out, and the head is compared with their mean, input by input. Draws that are kept differ
    from one another as the head may differ from them, so the head must lie outside their spread.
    """

    name: str
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A statistic on one entry of a batch: `value` per head, `controls` per draw and head; NaN where undefined.

    `exact` is the value per head if the theory were exact, where the claim does not tell.
    """

    value: Array
    controls: Mapping[Control, Array]
    exact: Array | None = None


Samples = Mapping[Claim, Sample]


def sample_by_head(tokens: Bool[Tensor, "h m"], measure: Callable[[slice, Tensor], Samples]) -> Samples:
    """Measure all heads at once where one row of `tokens` serves them all, and else each head on its own tokens."""
    if tokens.shape[0] == 1:
        return measure(slice(None), tokens[0])
    parts = [measure(slice(h, h + 1), row) for h, row in enumerate(tokens)]
    return {claim: _joined([part[claim] for part in parts]) for claim in parts[0]}


def _joined(parts: list[Sample]) -> Sample:
    exact = [part.exact for part in parts if part.exact is not None]
    return Sample(
        value=np.concatenate([part.value for part in parts]),
        controls={
            control: np.concatenate([part.controls[control] for part in parts], axis=-1)
            for control in parts[0].controls
        },
        exact=np.concatenate(exact) if exact else None,
    )


def _averaged(parts: list[Sample]) -> Sample:
    exact = [part.exact for part in parts if part.exact is not None]
    return Sample(
        value=_mean([part.value for part in parts]),
        controls={control: _mean([p.controls[control] for p in parts]) for control in parts[0].controls},
        exact=_mean(exact) if exact else None,
    )


def _mean(windows: list[Array]) -> Array:
    """Over the windows in which the number is defined."""
    stacked = np.stack(windows)
    known = np.isfinite(stacked)
    count = known.sum(axis=0)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(slots=True)
class _Drawn:
    """Sums over inputs of one control: each draw's value, and the head's less the mean of the draws."""

    value: RunningMoments
    difference: RunningMoments


class _Tally:
    """Sums over inputs of one claim at one layer."""

    def __init__(self, heads: int) -> None:
        self.value = RunningMoments((heads,))
        self.exact = RunningMoments((heads,))
        self.controls: dict[Control, _Drawn] = {}

    def add(self, sample: Sample) -> None:
        self.value.add(sample.value)
        if sample.exact is not None:
            self.exact.add(np.where(np.isfinite(sample.value), sample.exact, np.nan))
        for control, drawn in sample.controls.items():
            moments = self.controls.setdefault(
                control, _Drawn(RunningMoments(drawn.shape), RunningMoments(sample.value.shape))
            )
            moments.value.add(np.where(np.isfinite(sample.value), drawn, np.nan))
            with np.errstate(invalid="ignore"):
                moments.difference.add(sample.value - drawn.mean(axis=0))

    def chance(self, control: Control, h: int, seed: int) -> Chance:
        moments = self.controls[control]
        drawn = np.where(moments.value.count[:, h] > 0, moments.value.mean[:, h], np.nan)
        low, high = np.quantile(drawn, [0.025, 0.975])
        p = _outside(float(self.value.mean[h]), drawn) if control.kept else float(moments.difference.p_value()[h])
        return Chance(
            control=control.name,
            value=float(drawn.mean()),
            range=Interval(float(low), float(high)),
            draws=len(drawn),
            seed=seed,
            p_value=p if self.value.count[h] > 1 else np.nan,
        )


def _outside(value: float, drawn: Array) -> float:
    """Two-sided p-value that one more draw would lie as far out, if draws are normal (Student's prediction test)."""
    spread = float(drawn.std(ddof=1)) * np.sqrt(1 + 1 / len(drawn)) if len(drawn) > 1 else np.nan
    apart = abs(value - float(drawn.mean()))
    if spread == 0:
        return float(apart == 0)
    return float(2 * stats.t.sf(apart / spread, len(drawn) - 1))


@dataclass(slots=True)
class _Layer:
    """What was seen at one layer."""

    name: str
    heads: int
    tallies: dict[Claim, _Tally]
    inputs: int = 0
    reasons: list[str] = field(default_factory=list)
    undefined: set[Claim] = field(default_factory=set)

    def skip(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverInputs:
    """Claims measured on a stream of calls, each beside its controls.

    `obstacle` says why the claims say nothing of an entry of the batch, or "". `sample` measures an entry that has
    none; what it draws, it draws from the generator given. `undefined` is the reason where a claim's value is NaN.
    """

    claims: tuple[Claim, ...]
    seed: int
    obstacle: Callable[[Heads, int], str]
    sample: Callable[[Heads, int, torch.Generator], Samples]
    undefined: Callable[[Claim], str]
    _layers: dict[int, _Layer] = field(default_factory=dict)

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        h = heads.q.shape[1]
        layer = self._layers.setdefault(
            heads.layer, _Layer(name=heads.name, heads=h, tallies={claim: _Tally(h) for claim in self.claims})
        )
        inputs = range(0, heads.q.shape[0], heads.windows)
        places = [
            (index, layer.inputs + nth, index - first)
            for nth, first in enumerate(inputs, start=1)
            for index in range(first, first + heads.windows)
        ]
        found = one_thread_each(lambda place: self._measured(heads, *place), places)
        layer.inputs += len(inputs)
        for first in inputs:
            self._add(layer, found[first : first + heads.windows])

    def _measured(self, heads: Heads, index: int, number: int, window: int) -> Samples | str:
        """What one entry of the batch gives, or why it gives nothing."""
        return self.obstacle(heads, index) or self.sample(heads, index, self._generator(heads.layer, number, window))

    def _add(self, layer: _Layer, windows: Sequence[Samples | str]) -> None:
        """Count one input."""
        samples = []
        for found in windows:
            if isinstance(found, str):
                layer.skip(found)
            else:
                samples.append(found)
        for claim, tally in layer.tallies.items() if samples else ():
            sample = _averaged([found[claim] for found in samples])
            tally.add(sample)
            if not np.isfinite(sample.value).all():
                layer.undefined.add(claim)

    def _generator(self, layer: int, number: int, window: int) -> torch.Generator:
        """Draws depend on the input's number and the window's, not on how inputs were batched."""
        entropy = np.random.SeedSequence([self.seed, layer, number, window])
        return torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))

    def findings(self) -> list[Finding]:
        """What was found on every head seen, claim by claim, without verdicts."""
        return [
            self._finding(claim, place, h)
            for claim in self.claims
            for place in sorted(self._layers)
            for h in range(self._layers[place].heads)
        ]

    def _finding(self, claim: Claim, place: int, h: int) -> Finding:
        layer = self._layers[place]
        tally = layer.tallies[claim]
        used = int(tally.value.count[h])
        low, high = tally.value.interval()
        measured = float(tally.exact.mean[h]) if tally.exact.count[h] else float("nan")
        reasons = [*layer.reasons, *([self.undefined(claim)] if claim in layer.undefined else [])]
        return Finding(
            claim=claim,
            layer=place,
            name=layer.name,
            head=h,
            value=float(tally.value.mean[h]) if used else float("nan"),
            interval=Interval(float(low[h]), float(high[h])),
            exact=measured if claim.exact is None else claim.exact,
            controls=tuple(tally.chance(control, h, self.seed) for control in tally.controls),
            inputs=used,
            skipped=layer.inputs - used,
            reason="; ".join(reasons) if layer.inputs > used else "",
        )

"""Sums over samples, by layer and head, and the findings that they make.

A sample is what one input gives, or one group of inputs. Only running moments are kept, so memory does not grow with
the samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clearhead.audit.findings import Chance, Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array, Interval, RunningMoments, prediction_p_value
from clearhead.theories.theory import Claim

__all__ = ["Control", "Layer", "Sample", "Samples", "Tallies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How a control is drawn: anew for each sample, or once and kept over all of them, as a random model would be.

    Draws made anew average out, and the head is compared with their mean, sample by sample. Draws that are kept differ
    from one another as the head may differ from them, so the head must lie outside their spread.
    """

    name: str
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A statistic on one sample: `value` per head, `controls` per draw and head; NaN where undefined.

    `exact` is the value per head if the theory were exact, where the claim does not tell.
    """

    value: Array
    controls: Mapping[Control, Array]
    exact: Array | None = None


Samples = Mapping[Claim, Sample]


@dataclass(slots=True)
class _Drawn:
    """Sums over samples of one control: each draw's value, and the head's less the mean of the draws."""

    value: RunningMoments
    difference: RunningMoments


class _Tally:
    """Sums over samples of one claim at one layer."""

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
            moments.difference.add(sample.value - _mean_of_known(drawn))

    def chance(self, control: Control, h: int, seed: int) -> Chance:
        moments = self.controls[control]
        drawn = moments.value.mean[:, h][moments.value.count[:, h] > 0]
        drawn = drawn if drawn.size else np.array([np.nan])
        low, high = np.quantile(drawn, [0.025, 0.975])
        p = (
            prediction_p_value(float(self.value.mean[h]), drawn)
            if control.kept
            else float(moments.difference.p_value()[h])
        )
        return Chance(
            control=control.name,
            value=float(drawn.mean()),
            range=Interval(float(low), float(high)),
            draws=len(drawn),
            seed=seed,
            p_value=p if self.value.count[h] > 1 else np.nan,
        )


def _mean_of_known(drawn: Array) -> Array:
    """Over the draws in which the number is defined; NaN where it is in none."""
    known = np.isfinite(drawn)
    total = np.where(known, drawn, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer by its place in the forward pass, its name, and how many heads it has."""

    place: int
    name: str
    heads: int

    @classmethod
    def of(cls, heads: Heads) -> "Layer":
        """The layer that made a call."""
        return cls(heads.layer, heads.name, heads.q.shape[1])


@dataclass(slots=True)
class _Sums:
    """What was seen at one layer."""

    layer: Layer
    tallies: dict[Claim, _Tally]
    samples: int = 0
    reasons: list[str] = field(default_factory=list)
    undefined: set[Claim] = field(default_factory=set)

    def skip(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


class Tallies:
    """Claims summed over samples, layer by layer. `undefined` is the reason where a claim's value is NaN."""

    def __init__(self, claims: tuple[Claim, ...], *, seed: int, undefined: Callable[[Claim], str]) -> None:
        self._claims, self._seed, self._undefined = claims, seed, undefined
        self._layers: dict[int, _Sums] = {}

    def samples(self, layer: int) -> int:
        """How many samples of the layer were counted."""
        return self._layers[layer].samples if layer in self._layers else 0

    def count(self, layer: Layer, samples: Samples | None, *, reasons: Sequence[str] = ()) -> None:
        """Count one sample of a layer: numbers, or None and why there are none."""
        seen = self._layers.setdefault(
            layer.place,
            _Sums(layer=layer, tallies={claim: _Tally(layer.heads) for claim in self._claims}),
        )
        seen.samples += 1
        for reason in reasons:
            seen.skip(reason)
        if samples is None:
            return
        for claim, tally in seen.tallies.items():
            tally.add(samples[claim])
            if not np.isfinite(samples[claim].value).all():
                seen.undefined.add(claim)

    def findings(self) -> list[Finding]:
        """What was found on every head seen, claim by claim, without verdicts."""
        return [
            self._finding(claim, place, h)
            for claim in self._claims
            for place in sorted(self._layers)
            for h in range(self._layers[place].layer.heads)
        ]

    def _finding(self, claim: Claim, place: int, h: int) -> Finding:
        layer = self._layers[place]
        tally = layer.tallies[claim]
        used = int(tally.value.count[h])
        low, high = tally.value.interval()
        measured = float(tally.exact.mean[h]) if tally.exact.count[h] else float("nan")
        reasons = [*layer.reasons, *([self._undefined(claim)] if claim in layer.undefined else [])]
        return Finding(
            claim=claim,
            layer=place,
            name=layer.layer.name,
            head=h,
            value=float(tally.value.mean[h]) if used else float("nan"),
            interval=Interval(float(low[h]), float(high[h])),
            exact=measured if claim.exact is None else claim.exact,
            controls=tuple(tally.chance(control, h, self._seed) for control in tally.controls),
            inputs=used,
            skipped=layer.samples - used,
            reason="; ".join(reasons) if layer.samples > used else "",
        )

"""Sums over inputs, by layer and head: what every measurement keeps, and the findings it makes of them.

Each input counts once; windows of one input are averaged. Only running moments are kept, so memory does not grow with
the inputs, and how they were batched does not matter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from clearhead.axes import Bool
from clearhead.findings import Chance, Claim, Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array, Interval, RunningMoments
from clearhead.numerics.threads import one_thread

__all__ = ["OverInputs", "Sample", "sample_by_head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A statistic on one entry of a batch: `value` per head, `chance` per draw and head; NaN where undefined."""

    value: Array
    chance: Array


def sample_by_head(tokens: Bool[Tensor, "h m"], measure: Callable[[slice, Tensor], Sample]) -> Sample:
    """Measure all heads at once where one row of `tokens` serves them all, and else each head on its own tokens."""
    if tokens.shape[0] == 1:
        return measure(slice(None), tokens[0])
    parts = [measure(slice(h, h + 1), row) for h, row in enumerate(tokens)]
    return Sample(
        value=np.concatenate([part.value for part in parts]),
        chance=np.concatenate([part.chance for part in parts], axis=-1),
    )


@dataclass(slots=True)
class _Layer:
    """Sums over the inputs seen at one layer."""

    name: str
    heads: int
    draws: int
    value: RunningMoments = field(init=False)
    chance: RunningMoments = field(init=False)
    difference: RunningMoments = field(init=False)
    inputs: int = 0
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value = RunningMoments((self.heads,))
        self.chance = RunningMoments((self.draws, self.heads))
        self.difference = RunningMoments((self.heads,))

    def add(self, value: Array, chance: Array) -> None:
        self.value.add(value)
        self.chance.add(chance)
        self.difference.add(value - chance.mean(axis=0))

    def skip(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverInputs:
    """A claim measured on a stream of calls, beside `draws` draws of its control.

    `obstacle` says why the claim says nothing of an entry of the batch, or "". `sample` measures an entry that has
    none; what it draws, it draws from the generator given. `undefined` is the reason where a value comes out as NaN.
    """

    claim: Claim
    control: str
    draws: int
    seed: int
    obstacle: Callable[[Heads, int], str]
    sample: Callable[[Heads, int, torch.Generator], Sample]
    undefined: str
    _layers: dict[int, _Layer] = field(default_factory=dict)

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        layer = self._layers.setdefault(heads.layer, _Layer(name=heads.name, heads=heads.q.shape[1], draws=self.draws))
        for first in range(0, heads.q.shape[0], heads.windows):
            layer.inputs += 1
            samples = []
            for index in range(first, first + heads.windows):
                obstacle = self.obstacle(heads, index)
                if obstacle:
                    layer.skip(obstacle)
                else:
                    generator = self._generator(heads.layer, layer.inputs, index - first)
                    with one_thread():
                        samples.append(self.sample(heads, index, generator))
            if samples:
                value = np.mean([sample.value for sample in samples], axis=0)
                layer.add(value, np.mean([sample.chance for sample in samples], axis=0))
                if np.isnan(value).any():
                    layer.skip(self.undefined)

    def _generator(self, layer: int, number: int, window: int) -> torch.Generator:
        """Draws depend on the input's number and the window's, not on how inputs were batched."""
        entropy = np.random.SeedSequence([self.seed, layer, number, window])
        return torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""
        return [self._finding(place, h) for place in sorted(self._layers) for h in range(self._layers[place].heads)]

    def _finding(self, place: int, h: int) -> Finding:
        layer = self._layers[place]
        used = int(layer.value.count[h])
        low, high = layer.value.interval()
        drawn = layer.chance.mean[:, h] if used else np.full(self.draws, np.nan)
        bounds = np.quantile(drawn, [0.025, 0.975])
        return Finding(
            claim=self.claim,
            layer=place,
            name=layer.name,
            head=h,
            value=float(layer.value.mean[h]) if used else float("nan"),
            interval=Interval(float(low[h]), float(high[h])),
            chance=Chance(
                value=float(drawn.mean()),
                range=Interval(float(bounds[0]), float(bounds[1])),
                control=self.control,
                draws=self.draws,
                seed=self.seed,
            ),
            p_value=float(layer.difference.p_value()[h]),
            inputs=used,
            skipped=layer.inputs - used,
            reason="; ".join(layer.reasons) if layer.inputs > used else "",
        )

"""Claims measured input by input on a stream of calls.

Each input counts once; windows of one input are averaged. How inputs were batched does not matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from clearhead.audit.findings import Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Bool
from clearhead.theories.tallies import Layer, Sample, Samples, Tallies
from clearhead.theories.theory import Claim

__all__ = ["OverInputs", "sample_by_head"]


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
    _tallies: Tallies = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tallies", Tallies(self.claims, seed=self.seed, undefined=self.undefined))

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        seen = self._tallies.samples(heads.layer)
        inputs = range(0, heads.q.shape[0], heads.windows)
        places = [
            (index, seen + nth, index - first)
            for nth, first in enumerate(inputs, start=1)
            for index in range(first, first + heads.windows)
        ]
        found = one_thread_each(lambda place: self._measured(heads, *place), places)
        for first in inputs:
            windows = found[first : first + heads.windows]
            measured = [window for window in windows if not isinstance(window, str)]
            reasons = [window for window in windows if isinstance(window, str)]
            self._tallies.count(Layer.of(heads), self._averaged(measured) if measured else None, reasons=reasons)

    def _averaged(self, windows: Sequence[Samples]) -> Samples:
        return {claim: _averaged([window[claim] for window in windows]) for claim in self.claims}

    def _measured(self, heads: Heads, index: int, number: int, window: int) -> Samples | str:
        """What one entry of the batch gives, or why it gives nothing."""
        return self.obstacle(heads, index) or self.sample(heads, index, self._generator(heads.layer, number, window))

    def _generator(self, layer: int, number: int, window: int) -> torch.Generator:
        """Draws depend on the input's number and the window's, not on how inputs were batched."""
        entropy = np.random.SeedSequence([self.seed, layer, number, window])
        return torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))

    def findings(self) -> list[Finding]:
        """What was found on every head seen, claim by claim, without verdicts."""
        return self._tallies.findings()

"""The claims of the theory measured on a stream of calls, in groups of inputs, beside heads and tokens of chance."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from clearhead.audit.findings import Finding, Verdict
from clearhead.heads import Heads
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import MOST, Choice, Sampling, choices_of, obstacle
from clearhead.theories.max_margin.on_heads.evidence import drawn_mistakes, group_samples
from clearhead.theories.max_margin.on_heads.other_norms import Matrices
from clearhead.theories.max_margin.on_heads.random_heads import HeadSpace, space_of
from clearhead.theories.tallies import Layer, Tallies

__all__ = ["MaxMarginClaims"]

SAMPLING = Sampling()
KEPT = 2**31
"""Tells the draws that are kept over inputs from those of the inputs, which are numbered."""


@dataclass(slots=True)
class _Seen:
    """What is known of one layer: the inputs of the group that is not complete, and the group before."""

    layer: Layer
    shared: bool
    inputs: int = 0
    waiting: list[list[Choice]] = field(default_factory=list)
    before: list[Choice] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    gradients: bool = False

    def skip(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


class MaxMarginClaims:
    """All claims of the theory on every head of a stream of calls.

    Of every input some queries are drawn, and of every query some of the tokens that it sees; the head's own choice is
    that among all of them. A group of inputs makes one problem and one sample. The choices of two groups are kept.

    everywhere: solve in other norms than Frobenius for all heads, and not only for those to which the theory applies
    """

    def __init__(
        self, seed: int, *, controls: bool = True, sampling: Sampling = SAMPLING, everywhere: bool = False
    ) -> None:
        self._seed, self._everywhere = seed, everywhere
        self._sampling = sampling if controls else dataclasses.replace(sampling, random=0, turned=0, mistaken=0)
        self._controls = controls
        self._layers: dict[int, _Seen] = {}
        self._tallies = {shared: self._begin(shared) for shared in (True, False)}

    def _begin(self, shared: bool) -> Tallies:
        return Tallies(
            tuple(c.CLAIMS if shared else map(c.in_head_space, c.CLAIMS)), seed=self._seed, undefined=c.undefined
        )

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        known = heads.keys_from is not None and heads.queries_from is not None
        seen = self._layers.setdefault(heads.layer, _Seen(Layer.of(heads), known))
        seen.gradients |= heads.out_gradient is not None
        numbered = self._numbered(heads, seen)
        if seen.shared and not known:
            seen.skip("the maps to queries and keys were not found in every call")
        elif numbered:
            kept = np.random.SeedSequence([self._seed, heads.layer, KEPT])
            space = space_of(heads) if seen.shared else HeadSpace(heads)
            for choices in choices_of(heads, space, numbered, self._sampling, kept=kept):
                seen.waiting.append(choices)
                if len(seen.waiting) == self._sampling.inputs:
                    self._measure(seen, Matrices(space, kept, self._sampling.random))

    def _numbered(self, heads: Heads, seen: _Seen) -> list[tuple[int, np.random.Generator]]:
        """Entries of the batch that can be measured, one of each input, with the generator of its draws.

        It depends on the input's number, and not on how inputs were batched.
        """
        found = []
        for first in range(0, heads.q.shape[0], heads.windows):
            seen.inputs += 1
            generator = np.random.default_rng([self._seed, heads.layer, seen.inputs])
            index = first + int(generator.integers(heads.windows))
            blocked = obstacle(heads, index)
            if blocked:
                seen.skip(blocked)
            else:
                found.append((index, generator))
        return found

    def _measure(self, seen: _Seen, matrices: Matrices) -> None:
        """Count the group that is complete."""
        group = [choice for choices in seen.waiting for choice in choices]
        tallies, place = self._tallies[seen.shared], seen.layer.place
        generator = np.random.default_rng([self._seed, place, KEPT, tallies.samples(place)])
        mistakes = drawn_mistakes(group, self._sampling.mistaken, generator) if self._controls else None
        found = group_samples(group, seen.before, mistakes, matrices, everywhere=self._everywhere)
        if not seen.shared:
            found = {c.in_head_space(claim): sample for claim, sample in found.items()}
        tallies.count(seen.layer, found)
        seen.before, seen.waiting = group, []

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts but two: the selection is separable by construction, and
        the theory does not apply to heads that are not saturated."""
        for seen in self._layers.values():
            if not self._tallies[seen.shared].samples(seen.layer.place):
                few = f"fewer than {self._sampling.inputs} inputs, which make one problem"
                self._tallies[seen.shared].count(seen.layer, None, reasons=seen.reasons or [few])
        found = [finding for tallies in self._tallies.values() for finding in tallies.findings()]
        saturated = {(f.layer, f.head): f.value for f in found if f.claim.statistic == c.SATURATION.statistic}
        return [
            self._labelled(finding, saturated[finding.layer, finding.head])
            for finding in found
            if finding.claim.statistic != c.LOCAL.statistic or self._layers[finding.layer].gradients
        ]

    def _labelled(self, finding: Finding, saturated: float) -> Finding:
        if finding.claim.statistic == c.SATURATION.statistic or not finding.inputs:
            return finding
        if finding.claim.statistic == c.SEPARABLE.statistic:
            return dataclasses.replace(finding, verdict=Verdict.TRUE_BY_CONSTRUCTION)
        if saturated >= MOST:
            return finding
        return dataclasses.replace(finding, applies=False, reason="attention is not saturated")

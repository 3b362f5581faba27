"""A theory measured on attention calls, as an audit measures it."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from clearhead.audit.engine import feed
from clearhead.audit.examples import CONTROL_INPUTS
from clearhead.audit.findings import Finding
from clearhead.audit.part import Pass
from clearhead.audit.record import DepthCurve
from clearhead.audit.results import curves_of, findings_of, notes_of, samples_of
from clearhead.audit.samples import ClaimSamples
from clearhead.heads import Heads
from clearhead.theories.accumulator import Accumulator
from clearhead.theories.theory import Claim, Theory


class Measured:
    """One theory and what is kept of the calls given to `feed`: a pass of one theory.

    first: how many inputs of the audit come before those that count; limit: how many inputs of the audit are measured
    """

    def __init__(
        self,
        theory: Theory,
        *,
        seed: int = 0,
        controls: bool = True,
        claims: Collection[Claim] | None = None,
        first: int = 0,
        limit: int | None = None,
        control_inputs: int = CONTROL_INPUTS,
    ) -> None:
        self.theory = theory
        self.pass_ = Pass(
            theories=[theory],
            seed=seed,
            controls=controls,
            claims=None if claims is None else frozenset(claims),
            first=first,
            limit=limit,
            control_inputs=control_inputs,
        )

    def feed(self, heads: Heads, *, inputs: int | None = None, ahead: int = 0) -> None:
        """Measure a call that begins `ahead` inputs before those that count."""
        feed(self.pass_, heads, inputs=inputs, ahead=ahead)

    def findings(self) -> list[Finding]:
        return findings_of(self.pass_, self.theory)

    def curves(self) -> list[DepthCurve]:
        return curves_of(self.pass_, self.theory)

    def samples(self) -> list[ClaimSamples]:
        return samples_of(self.pass_, self.theory)

    def notes(self) -> list[str]:
        return notes_of(self.pass_, self.theory)

    def merge(self, other: "Measured") -> None:
        self.pass_.merge(other.pass_)

    def state(self) -> dict[str, Any]:
        return self.pass_.state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theory: Theory, *, first: int = 0) -> "Measured":
        restored = cls(theory)
        restored.pass_ = dataclasses.replace(Pass.from_state(state, [theory]), first=first)
        return restored

    @property
    def layers(self) -> Mapping[int, Accumulator]:
        return self.pass_.accumulators[self.theory.key]

    @property
    def cache(self) -> Mapping[Any, Any]:
        return self.pass_.caches[self.theory.key]._values

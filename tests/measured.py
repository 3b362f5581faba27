"""A theory measured on attention calls, as an audit measures it."""

from collections.abc import Collection, Mapping
from typing import Any

from clearhead.audit.engine import Measurement
from clearhead.audit.examples import CONTROL_INPUTS
from clearhead.audit.findings import Finding
from clearhead.audit.record import DepthCurve
from clearhead.audit.samples import ClaimSamples
from clearhead.heads import Heads
from clearhead.theories.theory import Claim, Theory


class Measured:
    """One theory and what is kept of the calls given to `feed`.

    first: how many inputs of the audit come before; lead: how many of them are given before those that count
    limit: how many inputs of the audit are measured
    """

    def __init__(
        self,
        theory: Theory,
        *,
        seed: int = 0,
        controls: bool = True,
        claims: Collection[Claim] | None = None,
        first: int = 0,
        lead: int = 0,
        limit: int | None = None,
        control_inputs: int = CONTROL_INPUTS,
    ) -> None:
        self.theory = theory
        self._measurement = Measurement(
            theory,
            seed=seed,
            controls=controls,
            claims=claims,
            first=first,
            lead=lead,
            most=limit,
            control_inputs=control_inputs,
        )

    def feed(self, heads: Heads, *, inputs: int | None = None) -> None:
        self._measurement.observe(heads, inputs=inputs)

    def predict(self) -> None:
        self._measurement.predict()

    def findings(self) -> list[Finding]:
        return self._measurement.findings()

    def curves(self) -> list[DepthCurve]:
        return self._measurement.curves()

    def samples(self) -> list[ClaimSamples]:
        return self._measurement.samples()

    def notes(self) -> list[str]:
        return self._measurement.notes()

    def merge(self, other: "Measured") -> None:
        self._measurement.merge(other._measurement)

    def state(self) -> dict[str, Any]:
        return self._measurement.state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theory: Theory, *, first: int = 0, lead: int = 0) -> "Measured":
        restored = cls(theory)
        restored._measurement = Measurement.from_state(state, theory, first=first, lead=lead)
        return restored

    @property
    def layers(self) -> Mapping[int, Any]:
        return self._measurement._layers

    @property
    def cache(self) -> Mapping[Any, Any]:
        return self._measurement._cache._values

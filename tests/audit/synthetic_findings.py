"""Synthetic findings with given numbers and controls."""

import dataclasses

from clearhead.audit.findings import ControlResult, Finding
from clearhead.numerics.moments import Interval
from clearhead.theories.theory import Claim

CLAIM = Claim(
    theory="theory", statistic="share", statement="it is one", formula="s = 1", citation="someone", predicted=1.0
)
LOWER = dataclasses.replace(CLAIM, statistic="residual", statement="it is none", formula="r = 0", predicted=0.0)


def control(value: float, p: float, *, name: str = "drawn") -> ControlResult:
    return ControlResult(name=name, value=value, range=Interval(value - 0.1, value + 0.1), draws=19, seed=0, p_value=p)


def finding(
    value: float = 0.5,
    *,
    p: float = 1e-9,
    half: float = 0.01,
    chance: float = 0.3,
    inputs: int = 29,
    head: int = 0,
    claim: Claim = CLAIM,
    predicted: float | None = None,
    controls: tuple[ControlResult, ...] | None = None,
) -> Finding:
    """Return a finding with one control of this null value and p-value, unless controls are given."""
    known = claim.predicted if predicted is None else predicted
    assert known is not None
    return Finding(
        claim=claim,
        layer=0,
        name="attention",
        head=head,
        value=value,
        interval=Interval(value - half, value + half),
        predicted=known,
        controls=(control(chance, p),) if controls is None else controls,
        inputs=inputs,
    )

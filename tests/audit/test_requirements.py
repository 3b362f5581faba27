"""A claim that requires another statistic of its head is judged in the heads that have enough of it."""

import numpy as np
import torch

from clearhead.heads import Heads
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Requirement, Role, Sample, Samples, Theory
from tests.measured import Measured

AT_LEAST = 0.5
WORDS = {"statement": "", "formula": "", "citation": ""}
GATE = Claim(theory="t", statistic="gate", predicted=1.0, role=Role.SECONDARY, **WORDS)
REASON = Reason(ReasonKind.NOT_COVERED, "not enough")
CLAIM = Claim(
    theory="t",
    statistic="claim",
    predicted=1.0,
    requires=Requirement(statistic="gate", at_least=AT_LEAST, reason=REASON),
    **WORDS,
)


def test_a_head_at_the_boundary_is_judged_and_one_below_is_not() -> None:
    gate = np.array([np.nextafter(AT_LEAST, 0), AT_LEAST, np.nextafter(AT_LEAST, 1)])

    def measure(example: Example, rng: Random) -> Samples:
        return {GATE: Sample(value=gate, controls={}), CLAIM: Sample(value=np.ones(3), controls={})}

    measured = Measured(Theory(key="t", title="t", claims=(GATE, CLAIM), measure=measure))
    x = torch.zeros(4, 3, 1, 1, dtype=torch.float64)
    measured.feed(Heads(layer=0, name="a", q=x, k=x, v=x, out=x, scale=1.0))
    found = {claim: [f for f in measured.findings() if f.claim == claim] for claim in (GATE, CLAIM)}
    assert [finding.applies for finding in found[CLAIM]] == [False, True, True]
    assert [finding.reasons for finding in found[CLAIM]] == [(REASON,), (), ()]
    assert all(finding.applies for finding in found[GATE])

"""What publications say on the theories, and which of these are in dispute."""

import dataclasses

import pytest

from clearhead.theories.catalogue import THEORIES, find_theories
from clearhead.theories.theory import Question


@pytest.mark.parametrize("key", THEORIES.names())
def test_positions_rest_on_statistics_of_the_theory(key: str) -> None:
    [theory] = find_theories([key])
    statistics = {claim.statistic for claim in theory.claims}
    assert theory.positions
    for position in theory.positions:
        assert position.source
        assert position.says.endswith(".")
        assert position.rests_on
        assert set(position.rests_on) <= statistics


def test_a_question_makes_a_dispute_of_the_positions() -> None:
    assert [theory.key for theory in find_theories() if theory.dispute is not None] == ["kernel-pca"]
    [sinks] = find_theories(["attention-sinks"])
    disputed = dataclasses.replace(sinks, question=Question(text="Why?", evidence=("Nobody knows.",))).dispute
    assert disputed is not None
    assert (disputed.theory, disputed.question, disputed.evidence) == (sinks.title, "Why?", ("Nobody knows.",))
    assert disputed.positions == sinks.positions

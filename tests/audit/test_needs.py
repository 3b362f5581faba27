"""Inputs of theories that cost time are captured for the theories that need them alone."""

from typing import Any

import pytest

from clearhead._capture.linear_maps import MapTrace
from clearhead.audit import engine
from clearhead.audit.run import audit
from clearhead.heads import Heads
from clearhead.theories.catalogue import THEORIES, find_theories
from clearhead.theories.theory import Need
from tests.capture.models import layers, tokens


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Heads]:
    """The calls that theories get."""
    shown: list[Heads] = []
    split = engine.make_examples

    def spied(heads: Heads, *rest: Any, **options: Any) -> Any:
        shown.append(heads)
        return split(heads, *rest, **options)

    monkeypatch.setattr(engine, "make_examples", spied)
    return shown


@pytest.mark.parametrize("key", THEORIES.names())
def test_maps_and_the_residual_stream_are_captured_for_theories_that_need_them(key: str, captured: list[Heads]) -> None:
    [theory] = find_theories([key])
    audit(layers(2), [tokens(0)], theories=key, baseline=None)
    assert len(captured) == 2
    for heads in captured:
        maps = {linear is not None for linear in (heads.queries_from, heads.keys_from, heads.values_from)}
        assert maps == {Need.WEIGHTS in theory.needs}
        assert heads.residual_stream is None or Need.RESIDUAL_STREAM in theory.needs


def test_maps_are_looked_for_if_one_of_several_theories_needs_them(
    captured: list[Heads], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    search = MapTrace.with_origins

    def spied(self: MapTrace, heads: Heads) -> Heads:
        searched.append(heads.name)
        return search(self, heads)

    monkeypatch.setattr(MapTrace, "with_origins", spied)
    counts = []
    for keys in (["symmetry"], ["symmetry", "max-margin"]):
        searched.clear()
        audit(layers(2), [tokens(seed) for seed in range(7)], theories=keys, baseline=None)
        counts.append(len(searched))
    # Seven batches of two layers; the fidelity check looks at the first inputs in both audits.
    assert counts[1] == counts[0] + 7 * 2
    assert captured[-1].queries_from is not None

"""Variants that do not exceed what a model reaches that learned nothing."""

import pytest

from clearhead_lab.experiments.estimates import Floor

MAJORITY = Floor(measure="x", value=0.328, name="the majority class")


def _seeds(*values: float) -> dict[int, dict[str, float]]:
    return {seed: {"x": value} for seed, value in enumerate(values)}


def test_variants_whose_interval_reaches_the_floor_did_not_train() -> None:
    measured = {
        "all trained": _seeds(0.74, 0.75, 0.745),
        "all at the floor": _seeds(0.331, 0.327, 0.335),
        "one failed": _seeds(0.69, 0.328, 0.68),
        "below": _seeds(0.1, 0.1001, 0.1002),
        "no run": {},
    }
    assert MAJORITY.trained(measured) == ("all trained",)


def test_one_seed_is_compared_without_an_interval() -> None:
    assert MAJORITY.trained({"above": _seeds(0.4), "at": _seeds(0.328), "below": _seeds(0.3)}) == ("above",)


@pytest.mark.parametrize(("values", "trained"), [((340, 345, 342), True), ((880, 890, 900), False)])
def test_a_lower_perplexity_is_better(values: tuple[float, ...], trained: bool) -> None:
    floor = Floor(measure="x", value=890.0, name="word frequencies", lower_is_better=True)
    assert floor.trained({"a": _seeds(*values)}) == (("a",) if trained else ())

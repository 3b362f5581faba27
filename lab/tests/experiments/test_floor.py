"""Variants that do not exceed what a model reaches that learned nothing."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clearhead_lab.experiments.estimates import Floor
from clearhead_lab.experiments.study import untrained

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


def test_a_variant_at_the_most_common_label_did_not_train_though_it_is_above_chance() -> None:
    def runs(variant: str, *values: float) -> list[Any]:
        return [
            SimpleNamespace(variant=variant, seed=seed, accuracy=SimpleNamespace(value=value))
            for seed, value in enumerate(values)
        ]

    labels = torch.tensor([1, 1, 0]).repeat(5)
    measured = [*runs("above", 0.75, 0.76, 0.75), *runs("at", 0.68, 0.66, 0.7), *runs("below", 0.6, 0.61, 0.6)]
    assert untrained(measured, labels) == ("at", "below")

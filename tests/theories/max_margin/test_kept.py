"""What a layer keeps of its inputs between batches."""

import dataclasses

import numpy as np
import pytest

from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin import make_theory
from clearhead.theories.max_margin.groups import Groups
from clearhead.theories.max_margin.on_heads import measurement as on_heads
from clearhead.theories.max_margin.on_heads.choices import choices_of
from clearhead.theories.max_margin.on_heads.random_heads import space_of
from tests.measured import Measured
from tests.theories.max_margin.synthetic_heads import examples_of, untrained_heads
from tests.theories.max_margin.test_predictions import (
    CONTROLS,
    EXACT,
    GROUPS,
    INPUTS,
    SAMPLING,
    findings_of,
    heads_of,
    svm,
    tokens,
)


def test_kept_choices_share_no_memory_with_a_batch() -> None:
    heads = heads_of(svm(tokens()))[0]
    sampling = dataclasses.replace(SAMPLING, replacements=1)
    generators = [np.random.default_rng(index) for index in range(INPUTS)]
    untrained = untrained_heads(heads, sampling)
    for choices in choices_of(examples_of(heads), space_of(heads), generators, sampling, untrained=untrained):
        assert all(choice.pull.base is None and choice.pull.size for choice in choices.measured)
        for kept in (*(choice.model_only() for choice in choices.measured), *choices.further):
            assert kept.pull.base is None
            assert not kept.pull.size
            assert not kept.scores


@pytest.mark.parametrize("held_out", [False, True])
def test_a_measured_group_stays_only_if_rules_are_tested_on_it(held_out: bool) -> None:
    claims = {c.RATIO, c.SATURATION} | ({c.HELD_OUT} if held_out else set())
    measurement = Measured(make_theory(sampling=SAMPLING, everywhere=True), claims=claims)
    for heads in heads_of(svm(tokens())):
        measurement.feed(heads)
    [layer] = measurement.layers.values()
    assert isinstance(layer, Groups)
    assert [len(choices.measured) for choices in layer.before] == [3 if held_out else 0] * INPUTS
    assert len(layer.kept) == GROUPS
    assert all(len(kept.measured) == 3 * INPUTS and len(kept.further) == 2 * INPUTS for kept in layer.kept.values())


def test_further_queries_are_drawn_only_for_the_groups_that_are_kept() -> None:
    """The measured queries of later inputs are the same as with further ones."""
    heads = heads_of(svm(tokens()))[0]
    first, later = (
        choices_of(
            [dataclasses.replace(example, number=example.number + skipped) for example in examples_of(heads)],
            space_of(heads),
            [np.random.default_rng(index) for index in range(INPUTS)],
            SAMPLING,
            untrained=untrained_heads(heads, SAMPLING),
        )
        for skipped in (0, INPUTS * GROUPS)
    )
    assert [len(choices.further) for choices in first] == [2] * INPUTS
    assert [len(choices.further) for choices in later] == [0] * INPUTS
    for a, b in zip(first, later, strict=True):
        for one, other in zip(a.measured, b.measured, strict=True):
            np.testing.assert_array_equal(one.x, other.x)


def test_large_batches_draw_the_same_untrained_heads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = dataclasses.replace(SAMPLING, **CONTROLS)
    results = []
    for limit in (on_heads.MAX_KEPT, 0):
        monkeypatch.setattr(on_heads, "LARGE_BATCH", INPUTS)
        monkeypatch.setattr(on_heads, "MAX_KEPT_BY_LARGE_BATCHES", limit)
        measurement = Measured(make_theory(sampling=sampling, everywhere=True), claims=(c.RATIO, c.SATURATION))
        for heads in heads_of(svm(tokens())):
            measurement.feed(heads)
        assert any("untrained heads" in key for key in measurement.cache) == (limit > 0)
        results.append(
            [[finding.value, *(x.value for x in finding.controls)] for finding in findings_of(measurement, c.RATIO)]
        )
    assert results[0] == results[1]
    assert len(results[0][EXACT]) > 3

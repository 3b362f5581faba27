"""Groups of inputs: complete ones are samples, in parts of an audit as in the whole."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearhead.audit.state_file import read_state, write_state
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.theories.accumulator import HISTORY
from clearhead.theories.example import Example, Random
from clearhead.theories.max_margin import THEORY
from clearhead.theories.max_margin.groups import Groups
from clearhead.theories.max_margin.on_heads.choices import Sampling
from clearhead.theories.max_margin.on_heads.measurement import Group
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Sample, Samples, Theory
from tests.measured import Measured
from tests.once import once

pytestmark = once
"""Groups hold numbers here in place of choices, which annotations would refuse."""

HEADS = 3
CLAIM = Claim(theory="t", statistic="number", statement="", formula="", citation="", predicted=1.0)

Noted = list[tuple[int, list[int], list[int], float]]
"""Of every group measured: its number, its inputs, those of the group before, and a random number."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A method that prepares nothing but the number in the input, and notes on how many threads it does."""

    sampling: Sampling
    threads: list[int] = dataclasses.field(default_factory=list)

    def prepare(self, examples: Sequence[Example], generators: Sequence[Random]) -> list[float]:
        self.threads.append(torch.get_num_threads())
        return [float(example.q[0, 0, 0]) for example in examples]


def theory_of(size: int, noted: Noted, threads: list[int] | None = None) -> Theory:
    """Return a theory that notes every group. Inputs with the number 7 cannot be used."""
    method: Any = Numbers(Sampling(inputs=size, groups=0), [] if threads is None else threads)

    def measure(group: Group, rng: Random) -> Samples:
        inputs, before = ([int(x) for x in part] for part in (group.prepared, group.before))
        noted.append((group.number, inputs, before, float(rng.numpy.random())))
        method.threads.append(torch.get_num_threads())
        return {CLAIM: Sample(value=np.full(HEADS, float(group.number)), controls={})}

    def applies(example: Example) -> Reason | None:
        return Reason(ReasonKind.TOO_SHORT, "seven") if int(example.q[0, 0, 0]) == 7 else None

    return Theory(
        key="t", title="t", claims=(CLAIM,), measure=measure, applies=applies,
        accumulator=functools.partial(Groups, method),
    )  # fmt: skip


def call(ids: Sequence[int], *, layer: int = 0) -> Heads:
    x = torch.tensor(ids, dtype=torch.float64)[:, None, None, None].expand(len(ids), HEADS, 1, 1)
    return Heads(layer=layer, name="a", q=x, k=x, v=x, out=x, scale=1.0)


def test_every_group_of_every_layer_has_random_numbers_of_its_own() -> None:
    noted: Noted = []
    for seed in (0, 1):
        measurement = Measured(theory_of(2, noted), seed=seed)
        for layer in (0, 1):
            measurement.feed(call(range(6), layer=layer))
    assert len({drawn for *_, drawn in noted}) == len(noted) == 12


def test_no_group_has_the_random_numbers_of_an_input() -> None:
    """Entropy that differs in trailing zeros only gives the same numbers."""
    noted: Noted = []
    of_inputs: list[float] = []
    theory = theory_of(2, noted)
    method = theory.accumulator.args[0]  # type: ignore[union-attr]

    def prepare(examples: Sequence[Example], generators: Sequence[Random]) -> list[float]:
        of_inputs.extend(float(rng.numpy.random()) for rng in generators)
        return Numbers.prepare(method, examples, generators)

    object.__setattr__(method, "prepare", prepare)
    Measured(theory).feed(call([0, 1, 2, 3, 4, 5]))
    of_groups = [drawn for *_, drawn in noted]
    assert len({*of_inputs, *of_groups}) == len(of_inputs) + len(of_groups) == 6 + 3


def test_a_reason_of_several_parts_is_said_once() -> None:
    first, second = Measured(theory_of(3, [])), Measured(theory_of(3, []))
    for part in (first, second):
        part.feed(call([7, 7, 7]))
    [one], [other] = (part.pass_.layers_of(part.theory) for part in (first, second))
    one.merge(other)
    assert one.state()["reasons"] == [["too short", "seven"]]


def test_groups_are_prepared_and_measured_on_one_thread() -> None:
    threads: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Measured(theory_of(1, [], threads)).feed(call([0, 1, 2]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(threads) == 4
    assert set(threads) == {1}


def test_a_group_with_an_input_that_cannot_be_used_is_left_out() -> None:
    noted: Noted = []
    measurement = Measured(theory_of(3, noted))
    for start in range(0, 14, 2):
        measurement.feed(call(range(start, start + 2)))
    assert [entry[:3] for entry in noted] == [(0, [0, 1, 2], []), (1, [3, 4, 5], [0, 1, 2]), (3, [9, 10, 11], [])]
    [finding, *_] = measurement.findings()
    assert finding.inputs == 3


def test_fewer_inputs_than_a_group_are_one_skipped_sample_with_a_reason() -> None:
    measurement = Measured(theory_of(3, []))
    measurement.feed(call([0, 1]))
    for finding in measurement.findings():
        assert (finding.inputs, finding.skipped) == (0, 1)
        assert [reason.kind for reason in finding.reasons] == [ReasonKind.TOO_FEW_INPUTS]


@pytest.mark.parametrize("start", range(1, 20))
@pytest.mark.parametrize("history", [HISTORY, None])
def test_parts_with_the_inputs_before_them_make_the_groups_of_the_whole(
    start: int, history: int | None, tmp_path: Path
) -> None:
    """Also if the first part is saved and goes on, where an input cannot be used, and with as little as needed."""
    whole: Noted = []
    Measured(theory_of(3, whole)).feed(call(range(20)))
    first: Noted = []
    part = Measured(theory_of(3, first))
    part.feed(call(range(start)), inputs=start)
    before = start - max(start // 3 - 1, 0) * 3 if history is None else min(history, start)

    def feed_rest(measurement: Measured) -> None:
        if before:
            measurement.feed(call(range(start - before, start)), ahead=before)
        measurement.feed(call(range(start, 20)))

    second: Noted = []
    other = Measured(theory_of(3, second), first=start)
    feed_rest(other)
    assert first + second == whole
    write_state(tmp_path / "sums", part.state())
    again: Noted = []
    restored = Measured.from_state(read_state(tmp_path / "sums"), theory_of(3, again), first=start)
    feed_rest(restored)
    assert first + again == whole
    part.merge(other)
    for merged, continued in zip(part.findings(), restored.findings(), strict=True):
        assert (merged.inputs, merged.skipped, merged.reasons) == (continued.inputs, 0, continued.reasons)
        assert merged.value == pytest.approx(continued.value, rel=1e-12)
    assert [s.values.tolist() for s in part.samples()] == [s.values.tolist() for s in restored.samples()]


def test_parts_without_enough_inputs_before_them_are_refused() -> None:
    """A layer that has half as many inputs as the batch, and a part that begins without history."""
    with pytest.raises(InputError, match="a has another number of inputs"):
        Measured(theory_of(3, []), first=20).feed(call(range(3)), inputs=6, ahead=6)
    with pytest.raises(InputError, match="a has another number of inputs"):
        Measured(theory_of(3, []), first=9).feed(call(range(9, 12)))


def test_the_history_of_a_part_suffices_for_the_groups_of_the_theory() -> None:
    """A group that ends after the first input, and the one before: all but one input of two groups."""
    assert isinstance(THEORY.accumulator, functools.partial)
    method, *_ = THEORY.accumulator.args
    assert 2 * method.sampling.inputs - 1 <= HISTORY

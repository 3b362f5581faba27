"""Theories of other packages: the sample of docs/howto/extend with its tests, and mistakes, each named in one line."""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.theories.catalogue import THEORIES
from tests.measured import Measured
from tests.once import once

EXAMPLES = Path(__file__).parents[2] / "docs" / "howto" / "extend"
HEADS, DRAWS = 3, 5
NULL = ch.Control(name="null")
CLAIM = ch.Claim(theory="t", statistic="one", statement="", formula="", citation="", predicted=1.0)
ZEROS, DRAWN = np.zeros(HEADS), np.zeros((DRAWS, HEADS))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test register theories."""
    monkeypatch.setattr(THEORIES, "_registered", {})


@pytest.fixture
def sample(registered: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The tests of the sample theory."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("test_my_theory")
    for name in ("test_my_theory", "my_theory"):
        sys.modules.pop(name, None)


@once
def test_the_sample_is_supported_on_a_planted_head_and_few_random_ones(
    sample: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.test_a_planted_head_is_supported()
    sample.test_few_random_heads_are_supported()

    measure = sample.THEORY.measure

    def without_fixed(example: ch.Example, rng: ch.Random) -> Any:
        [(claim, found)] = measure(example, rng).items()
        return {claim: dataclasses.replace(found, controls={c: x for c, x in found.controls.items() if not c.fixed})}

    monkeypatch.setattr(sample, "THEORY", dataclasses.replace(sample.THEORY, measure=without_fixed))
    with pytest.raises(AssertionError):
        sample.test_few_random_heads_are_supported()


def test_padding_changes_nothing_of_the_sample_and_its_test_can_fail(
    sample: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.test_padding_changes_nothing()
    monkeypatch.setattr(ch.Example, "tokens", property(lambda example: torch.arange(example.k.shape[-2])))
    with pytest.raises(AssertionError):
        sample.test_padding_changes_nothing()


def test_the_sample_does_not_depend_on_the_batch(sample: ModuleType) -> None:
    """Two inputs of other lengths, alone and padded to one batch."""
    x = torch.randn(2, HEADS, 11, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = (torch.arange(11) < torch.tensor([[7], [11]]))[:, None, None].expand(2, 1, 11, 11)
    batch = ch.Heads(layer=0, name="a", q=x, k=x.flip(1), v=x, out=x, scale=0.5, mask=mask)
    together, alone = Measured(sample.THEORY), Measured(sample.THEORY)
    together.feed(batch)
    for entry, length in enumerate((7, 11)):
        part = {name: getattr(batch, name)[entry : entry + 1, :, :length] for name in ("q", "k", "v", "out")}
        alone.feed(dataclasses.replace(batch, **part, mask=None))
    for one, other in zip(together.findings(), alone.findings(), strict=True):
        assert one.value == pytest.approx(other.value)
        assert one.controls[0].value == pytest.approx(other.controls[0].value)


def _measured(samples: Any, **options: Any) -> Measured:
    """Measure a theory that returns these samples on two inputs."""
    measured = Measured(_theory(samples, **options))
    x = torch.randn(2, HEADS, 5, 2)
    measured.feed(ch.Heads(layer=0, name="a", q=x, k=x, v=x, out=x, scale=1.0))
    return measured


def _theory(samples: Any, **options: Any) -> ch.Theory:
    return ch.Theory(key="t", title="t", claims=(CLAIM,), measure=lambda example, rng: samples, **options)


def _sample(value: Any = ZEROS, draws: Any = DRAWN, **options: Any) -> Any:
    return {CLAIM: ch.Sample(value=value, controls={NULL: draws}, **options)}


@once  # annotations that are checked refuse some of them first
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: _sample(draws=ZEROS),
            r"t: one: control 'null' .* \(draws, heads\), here with 3 heads; .* of shape \(3,\)",
        ),
        (
            lambda: _sample(draws=DRAWN.T),
            r"control 'null' .* \(draws, heads\), here with 3 heads; .* of shape \(3, 5\)",
        ),
        (lambda: _sample(torch.zeros(HEADS)), r"t: one: value is a numpy.ndarray .* got Tensor of shape \(3,\)"),
        (lambda: _sample(0.5), r"value is a numpy.ndarray of shape \(heads\), here with 3 heads; got float"),
        (lambda: _sample(None), "value is a numpy.ndarray"),
        (lambda: _sample(predicted=ZEROS[:2]), r"t: one: predicted .* of shape \(2,\)"),
        (lambda: _sample(covered=[True] * HEADS), "t: one: covered .* got list"),
        (
            lambda: {dataclasses.replace(CLAIM, statistic="other"): _sample()[CLAIM]},
            "t: other is .* not among the claims",
        ),
        (lambda: {"one": _sample()[CLAIM]}, "t: one is measured and not among the claims"),
        (lambda: {CLAIM: ZEROS}, "t: one: measure returns a Sample or a Reason"),
        (lambda: None, "t: measure returns a Sample for each claim; got None"),
    ],
)
def test_a_sample_that_does_not_fit_is_named_with_what_is_expected(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ch.InputError, match=words):
        _measured(make())
    _measured(_sample(predicted=ZEROS, covered=np.ones(HEADS, dtype=bool)))


@once
@pytest.mark.parametrize("answer", [False, "too short"])
def test_what_applies_returns_is_a_reason_or_none(answer: Any) -> None:
    with pytest.raises(ch.InputError, match=f"t: applies returns a Reason .*, or None; got {answer!r}"):
        _measured(_sample(), applies=lambda example: answer)


def test_the_claims_have_the_title_of_their_theory() -> None:
    with pytest.raises(ch.InputError, match=r"one: Claim\.theory is 't', Theory\.title is 'other'"):
        dataclasses.replace(_theory(_sample()), title="other")


@pytest.mark.usefixtures("registered")
def test_heads_without_a_control_are_undecided_for_a_reason() -> None:
    samples = {CLAIM: ch.Sample(value=ZEROS, controls={})}
    for finding in _audit([_theory(samples)])["t"]:
        assert (finding.verdict.value, [r.text for r in finding.reasons]) == ("undecided", ["no control was measured"])
    assert all(not finding.reasons for finding in _audit([_theory(_sample())])["t"])


class _Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def _audit(theories: Any) -> Any:
    x = torch.randn(2, 2, HEADS, 7, 4, generator=torch.Generator().manual_seed(0))
    return ch.audit(_Attention(), x, theories=theories)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "given", [lambda theory: theory, lambda theory: [theory, "symmetry"], lambda theory: (theory,)]
)
def test_an_audit_takes_theories_by_key_and_as_objects(given: Callable[[ch.Theory], Any]) -> None:
    for _ in range(2):  # a cell of a notebook that runs again defines the theory again
        theory = _theory(_sample())
        record = _audit(given(theory))
        assert record.theories[0].key == "t"
        assert record.manifest.options["theories"][0] == "t"
        assert THEORIES.get("t") is theory


@pytest.mark.usefixtures("registered")
def test_a_theory_cannot_have_the_key_of_an_installed_one() -> None:
    with pytest.raises(ch.InputError, match="there is a theory symmetry already"):
        _audit([dataclasses.replace(_theory(_sample()), key="symmetry")])
    with pytest.raises(ch.InputError, match="expected the key of a theory, or a Theory; got 3"):
        _audit([3])

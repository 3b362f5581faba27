"""Predicted values: the statistics of every group if a head's W is the SVM of all groups."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.audit.state_file import read_state, write_state
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.theories.max_margin import Norm, attention_svm, make_theory
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads import measurement as on_heads
from clearhead.theories.max_margin.on_heads.choices import MODEL, Sampling, choices_of
from clearhead.theories.max_margin.on_heads.predictions import KeptGroup
from clearhead.theories.max_margin.on_heads.random_heads import space_of
from clearhead.theories.max_margin.svm import solving
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, least_frobenius
from clearhead.theories.theory import Claim
from tests.measured import Measured
from tests.theories.max_margin.synthetic_heads import WIDTH, call, examples_of, normal, untrained_heads

INPUTS, TOKENS, GROUPS = 3, 5, 5
SAMPLING = Sampling(
    inputs=INPUTS, queries=3, further=TOKENS - 3, groups=GROUPS, tokens=TOKENS, random=0, rotated=0, replacements=0
)
CONTROLS = {"random": 8, "rotated": 8, "replacements": 4}
EXACT, RANDOM = 0, 1
FROBENIUS = (c.RATIO, c.LOW_RATIO, c.COSINE, c.COSINE_SPAN)
ROUNDING = 1e-7
"""The multipliers of an SVM are exact to about the square root of the precision of float64."""


def tokens() -> Tensor:
    return normal(GROUPS * INPUTS, TOKENS, WIDTH, seed=3)


def svm(x: Tensor, *, norm: Norm = Norm.FROBENIUS) -> Tensor:
    """Return the SVM of all queries of x for the tokens that a random matrix selects."""
    start = normal(WIDTH, WIDTH, seed=5)
    sequences, queries = x.repeat_interleave(TOKENS, dim=0), x.flatten(0, 1)
    selected = torch.einsum("nmc,ce,ne->nm", sequences, start, queries).argmax(dim=-1)
    W = attention_svm(sequences, queries, selected, norm=norm).W
    assert W is not None
    return W


def heads_of(W: Tensor, *, size: float = 60.0, known: bool = True, x: Tensor | None = None) -> list[Heads]:
    """Return one call per group of a layer with W as head `EXACT` and a random head of the same norm."""
    x = tokens() if x is None else x
    other = normal(WIDTH, WIDTH, seed=7)
    right = size * torch.stack([W, other * W.norm() / other.norm()]).mT
    left = torch.eye(WIDTH, dtype=torch.float64).expand(2, -1, -1)
    return [call(part, left, right, known=known) for part in torch.split(x, INPUTS)]


def measure(calls: list[Heads], *, sampling: Sampling = SAMPLING, first: int = 0) -> Measured:
    """Measure calls of one group each. `first` is how many inputs come before; the first call is history then."""
    measurement = Measured(make_theory(sampling=sampling), first=first)
    for index, heads in enumerate(calls):
        measurement.feed(heads, ahead=INPUTS if first and not index else 0)
    return measurement


def findings_of(measurement: Measured, claim: Claim = c.RATIO) -> list[Finding]:
    return [f for f in judge(measurement.findings()) if f.claim.statistic == claim.statistic]


@pytest.fixture(scope="module")
def whole() -> Measured:
    return measure(heads_of(svm(tokens())), sampling=dataclasses.replace(SAMPLING, **CONTROLS))


@pytest.mark.parametrize("claim", FROBENIUS)
def test_svm_of_all_inputs_has_the_predicted_value_on_every_group(whole: Measured, claim: Claim) -> None:
    exact, random = findings_of(whole, claim)
    assert exact.deviation is not None
    assert max(abs(exact.deviation.low), abs(exact.deviation.high)) < ROUNDING
    assert exact.predicted == pytest.approx(exact.value, abs=ROUNDING)
    # Its own SVM has a larger margin on every group: one number for all would not be what the theory predicts.
    assert exact.value < 0.98
    assert random.deviation is not None
    assert random.deviation.low < -0.05


def test_svm_of_all_inputs_is_supported_and_a_random_head_is_not_called(whole: Measured) -> None:
    exact, random = findings_of(whole)
    assert exact.verdict is Verdict.SUPPORTED
    assert exact.agreement == pytest.approx(1, abs=1e-6)
    assert random.verdict is Verdict.NO_EVIDENCE


def test_predictions_are_the_statistics_of_the_svm_of_all_queries() -> None:
    """All queries are measured, so everything can be computed from the definitions."""
    x, W = tokens(), normal(WIDTH, WIDTH, seed=11)
    calls = heads_of(W, size=9.0)
    [finding, _] = findings_of(measure(calls, sampling=dataclasses.replace(SAMPLING, queries=TOKENS, further=0)))

    def problem(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sequences, z = inputs.repeat_interleave(TOKENS, dim=0), inputs.flatten(0, 1)
        selected = torch.einsum("nmc,ce,ne->nm", sequences, W, z).argmax(dim=-1)
        best = attention_svm(sequences, z, selected).W
        assert best is not None
        return sequences, z, selected, best

    *_, best = problem(x)
    ratios = []
    for part in torch.split(x, INPUTS):
        sequences, z, selected, own = problem(part)
        scores = torch.einsum("nmc,ce,ne->nm", sequences, best, z)
        margins = scores.gather(1, selected[:, None]) - scores
        margins[torch.arange(len(z)), selected] = torch.inf
        ratios.append(float(margins.min() / best.norm() * own.norm()))
    assert finding.predicted == pytest.approx(np.mean(ratios), rel=1e-6)


def test_svm_that_needs_a_second_attempt_is_solved(monkeypatch: pytest.MonkeyPatch, whole: Measured) -> None:
    def without_convergence(rows: Constraints, *, start: Array | None = None) -> LeastNorm:
        return dataclasses.replace(least_frobenius(rows, start=start), converged=start is not None)

    monkeypatch.setattr(solving, "least_frobenius", without_convergence)
    assert findings_of(measure(heads_of(svm(tokens()))))[EXACT].predicted == pytest.approx(
        findings_of(whole)[EXACT].predicted, abs=ROUNDING
    )
    monkeypatch.setattr(solving, "decide", lambda *rest: None)
    exact = findings_of(measure(heads_of(svm(tokens()))))[EXACT]
    assert np.isnan(exact.predicted)
    assert exact.reason == "the predicted value could not be computed"


def test_further_queries_bring_the_prediction_down_to_the_head_that_saw_them() -> None:
    calls = heads_of(svm(tokens()))
    predicted = [
        findings_of(measure(calls, sampling=dataclasses.replace(SAMPLING, further=further)))[EXACT].predicted
        for further in (0, 1, TOKENS - 3)
    ]
    value = findings_of(measure(calls))[EXACT].value
    assert predicted[0] > predicted[1] > predicted[2]
    assert predicted[0] > value + 0.01
    assert predicted[2] == pytest.approx(value, abs=ROUNDING)


def test_groups_beyond_the_first_have_no_prediction_and_count_for_the_value_alone() -> None:
    calls = heads_of(svm(tokens()[: 2 * INPUTS]))
    sampling = dataclasses.replace(SAMPLING, groups=2)
    exact, short = (findings_of(measure(given, sampling=sampling))[EXACT] for given in (calls, calls[:2]))
    assert exact.inputs == GROUPS
    assert exact.value != pytest.approx(short.value, rel=1e-3)
    assert (exact.predicted, exact.deviation) == (short.predicted, short.deviation)
    assert exact.deviation is not None
    assert abs(exact.deviation.high) < ROUNDING


@pytest.mark.parametrize("groups", [3, GROUPS])
def test_merged_parts_predict_as_the_whole_does(groups: int) -> None:
    calls, sampling = heads_of(svm(tokens())), dataclasses.replace(SAMPLING, groups=groups)
    first = measure(calls[:2], sampling=sampling)
    second = measure(calls[1:], sampling=sampling, first=2 * INPUTS)
    halves = [findings_of(part)[EXACT].predicted for part in (first, second)]
    first.merge(second)
    pairs = list(zip(first.findings(), measure(calls, sampling=sampling).findings(), strict=True))
    for merged, together in pairs:
        assert merged.value == pytest.approx(together.value, rel=1e-12, nan_ok=True)
        assert merged.predicted == pytest.approx(together.predicted, rel=1e-9, nan_ok=True)
        if together.deviation is not None:
            assert merged.deviation is not None
            assert merged.deviation.low == pytest.approx(together.deviation.low, rel=1e-6, abs=1e-9)
    predicted = next(merged.predicted for merged, _ in pairs if merged.claim == c.RATIO)
    assert np.mean(halves) > predicted + 0.01
    assert sum(merged.deviation is not None for merged, _ in pairs) >= 2 * len(FROBENIUS)


def test_restored_sums_predict_as_the_whole_does(whole: Measured, tmp_path: Path) -> None:
    theory = make_theory(sampling=dataclasses.replace(SAMPLING, **CONTROLS))
    whole.findings()
    write_state(tmp_path / "sums", whole.state())
    state = read_state(tmp_path / "sums")
    [entries] = state["layers"].values()
    assert all(entry["predicted"] for entry in entries)
    without = {**state, "layers": {theory.key: [{**entry, "predicted": None} for entry in entries]}}
    for restored in (Measured.from_state(saved, theory) for saved in (state, without)):
        assert repr(restored.findings()) == repr(whole.findings())
        assert np.isfinite(findings_of(restored)[EXACT].predicted)


def test_predictions_are_computed_once_and_again_after_a_further_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    predict = on_heads.predict_head

    def recording(groups: Sequence[KeptGroup], h: int, **options: bool) -> Array:
        calls.append(len(groups))
        return predict(groups, h, **options)

    monkeypatch.setattr(on_heads, "predict_head", recording)
    *first, last = heads_of(svm(tokens()))
    measurement = measure(first)
    for _ in range(2):
        measurement.findings()
    restored = Measured.from_state(measurement.state(), measurement.theory)
    assert repr(restored.findings()) == repr(measurement.findings())
    assert set(calls) == {GROUPS - 1}
    assert len(calls) == len(set(findings_of(measurement)))
    measurement.feed(last)
    assert findings_of(measurement)[EXACT].predicted == findings_of(measure([*first, last]))[EXACT].predicted
    assert calls.count(GROUPS) == 2 * calls.count(GROUPS - 1)


def test_heads_that_the_theory_does_not_cover_get_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[int] = []
    predict = on_heads.predict_head

    def recording(groups: Sequence[KeptGroup], h: int, **options: bool) -> Array:
        predicted.append(h)
        return predict(groups, h, **options)

    monkeypatch.setattr(on_heads, "predict_head", recording)
    W = svm(tokens())
    x = tokens()
    loud = 60 * torch.stack([W, 1e-3 * normal(WIDTH, WIDTH, seed=7)]).mT
    left = torch.eye(WIDTH, dtype=torch.float64).expand(2, -1, -1)
    measurement = measure([call(part, left, loud) for part in torch.split(x, INPUTS)])
    exact, quiet = findings_of(measurement)
    assert predicted == [EXACT]
    assert quiet.verdict is Verdict.NOT_APPLICABLE
    assert quiet.reason == "attention is not saturated"
    assert np.isfinite(exact.predicted)


def test_without_controls_nothing_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_heads.KeptGroup, "of", lambda inputs: pytest.fail("a group was kept"))
    measurement = Measured(make_theory(sampling=SAMPLING), controls=False)
    for heads in heads_of(svm(tokens())):
        measurement.feed(heads)
    assert np.isnan([f.predicted for f in measurement.findings() if f.claim == c.RATIO]).all()


def test_keys_and_queries_without_maps_are_predicted_in_their_own_space() -> None:
    """W is the identity there, so no head is the SVM; its prediction is that of the SVM of all keys and queries."""
    [exact, _] = findings_of(measure(heads_of(svm(tokens()), known=False)))
    assert "the maps to keys and queries are unknown" in exact.claim.note
    assert 0 < exact.predicted < 1
    assert exact.value < exact.predicted


def test_nuclear_svm_of_all_inputs_has_the_predicted_nuclear_cosine() -> None:
    calls = heads_of(svm(tokens(), norm=Norm.NUCLEAR), size=90.0)
    measurement = measure(calls)
    nuclear, frobenius = (findings_of(measurement, claim)[EXACT] for claim in (c.COSINE_NUCLEAR, c.COSINE))
    assert nuclear.inputs == GROUPS
    assert nuclear.predicted == pytest.approx(nuclear.value, abs=2e-2)  # solved to a gap of 1e-4
    assert nuclear.predicted < 0.95
    assert abs(frobenius.predicted - frobenius.value) > 2 * abs(nuclear.predicted - nuclear.value)


def test_kept_choices_are_exact_and_of_the_layers_own_heads_alone() -> None:
    for x, dtype in ((tokens().float().double(), np.float32), (tokens(), np.float64)):
        heads = heads_of(svm(tokens()), x=x)[0]
        generators = [np.random.default_rng(index) for index in range(INPUTS)]
        sampling = dataclasses.replace(SAMPLING, tokens=3, random=4)
        untrained = untrained_heads(heads, sampling)
        for choices in choices_of(examples_of(heads), space_of(heads), generators, sampling, untrained=untrained):
            assert (len(choices.measured), len(choices.further)) == (3, 2)
            for choice in (*choices.measured, *choices.further):
                kept = choice.model_only()
                assert kept.x.dtype == dtype
                assert kept.selected.keys() == {MODEL}
                np.testing.assert_array_equal(kept.x[:, : kept.sample_size], choice.x[:, : choice.sample_size])
                for h in (EXACT, RANDOM):
                    chosen = kept.x[0, kept.selected[MODEL][0, h]]
                    np.testing.assert_array_equal(chosen, choice.x[0, choice.selected[MODEL][0, h]])
                assert kept.x.shape[1] <= 3 + 2

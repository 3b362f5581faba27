"""Differences between two audits on the same inputs: what changed is found, and nothing else."""

import copy
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from clearhead._swap import swap
from clearhead.audit.comparison import EQUAL, Comparison, Outcome, compare
from clearhead.audit.fidelity import FidelityError
from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import AuditError, audit
from clearhead.errors import InputError
from clearhead.numerics.moments import false_discovery_rate
from clearhead.report.folder import write_report
from clearhead.theories.theory import Unit
from tests.as_shipped.conftest import HEADS, WIDTH, Attending, batches

THEORIES = ("kernel-pca", "coding-rate", "symmetry")
OF_VALUES = 2 * WIDTH
"""The first row of a layer's map that makes values."""


def with_scaled_values(layer: int, head: int) -> Attending:
    model = Attending()
    rows = slice(OF_VALUES + head * 4, OF_VALUES + head * 4 + 4)
    model.maps[layer].weight.data[rows] *= torch.tensor([[0.1], [9.0], [0.2], [4.0]])
    return model


def audited(model: torch.nn.Module, **options: object) -> AuditRecord:
    return audit(model, batches(), theories=THEORIES, claims="all", **options)


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    return audited(Attending())


@pytest.fixture(scope="module")
def scaled() -> AuditRecord:
    return audited(with_scaled_values(1, 2))


@pytest.fixture(scope="module")
def second_layer(record: AuditRecord, scaled: AuditRecord) -> Comparison:
    return compare(record, scaled)


def outcomes(comparison: Comparison, *, layer: int, shared: bool) -> dict[int, set[Outcome]]:
    """Return the outcomes of every head of a layer, on its own tensors or on the residual stream."""
    chosen = [d for d in comparison.differences if d.layer == layer and d.claim.shared is shared]
    return {h: {d.outcome for d in chosen if d.head == h and d.claim.unit is Unit.HEAD} for h in range(HEADS)}


def test_a_model_and_itself_do_not_differ(record: AuditRecord) -> None:
    for other in (record, audited(copy.deepcopy(Attending()))):
        same = compare(record, other)
        assert same.changed == ()
        assert (same.origin, same.tensors, same.notes) == (None, (), ())
        assert same.counts == {Outcome.IDENTICAL: 2 * HEADS}
        assert {d.outcome for d in same.differences} <= {Outcome.IDENTICAL, Outcome.NOT_MEASURED}


def test_the_repr_is_one_line(second_layer: Comparison) -> None:
    counts = f"inputs=12, differences={len(second_layer.differences)}, changed={len(second_layer.changed)}"
    assert repr(second_layer) == f"Comparison(a='Attending', b='Attending', data='given batches', {counts})"


def test_a_changed_head_is_found_and_the_others_are_identical(second_layer: Comparison) -> None:
    assert [key for key, outcome in second_layer.heads.items() if outcome is Outcome.CHANGED] == [(1, 2)]
    assert second_layer.tensors == ("maps.1.weight",)
    assert second_layer.origin is not None
    assert (second_layer.origin.layer, second_layer.origin.heads) == (1, (2,))
    unchanged = {Outcome.IDENTICAL}, {Outcome.IDENTICAL, Outcome.NOT_MEASURED}
    assert all(
        each in unchanged
        for shared in (False, True)
        for each in outcomes(second_layer, layer=0, shared=shared).values()
    )
    own = outcomes(second_layer, layer=1, shared=False)
    assert own[0] in unchanged
    assert own[1] in unchanged
    assert Outcome.CHANGED in own[2]
    assert {d.layer for d in second_layer.changed} == {1}


def test_a_change_in_the_first_layer_reaches_the_second(record: AuditRecord) -> None:
    changed = compare(record, audited(with_scaled_values(0, 1)))
    assert changed.origin is not None
    assert (changed.origin.layer, changed.origin.heads) == (0, (1,))
    assert all(outcome is not Outcome.IDENTICAL for (layer, _), outcome in changed.heads.items() if layer)
    assert [changed.heads[0, head] is Outcome.IDENTICAL for head in range(HEADS)] == [True, False, True]


def test_differences_are_paired_tests_over_inputs(
    record: AuditRecord, scaled: AuditRecord, second_layer: Comparison
) -> None:
    values = [{(s.claim.statistic, s.layer): s.values for s in each.samples} for each in (record, scaled)]
    tested = [d for d in second_layer.differences if d.outcome in (Outcome.CHANGED, Outcome.NO_EVIDENCE)]
    assert len(tested) > 10
    for d in tested:
        a, b = (each[d.claim.statistic, d.layer][:, d.head] for each in values)
        if np.ptp(b - a) == 0:  # a statistic of the weights alone
            assert d.p_value == 2.0**-11
            continue
        expected = stats.ttest_rel(b, a, nan_policy="omit")
        interval = expected.confidence_interval()
        assert d.p_value == pytest.approx(expected.pvalue, rel=1e-6)
        assert (d.a, d.b, d.difference) == pytest.approx((np.nanmean(a), np.nanmean(b), np.nanmean(b - a)), rel=1e-9)
        assert (d.interval.low, d.interval.high) == pytest.approx((interval.low, interval.high), rel=1e-6)
    family = [1.0 if d.outcome in EQUAL else d.p_value for d in second_layer.differences]
    adjusted = [d.adjusted_p_value for d in second_layer.differences]
    np.testing.assert_allclose(adjusted, false_discovery_rate(np.array(family)))
    assert all((d.adjusted_p_value <= 0.05) is (d.outcome is Outcome.CHANGED) for d in tested)


def with_values(record: AuditRecord, change: float, rows: slice = slice(None)) -> AuditRecord:
    """Return the record with the values of its first claim and layer multiplied by 1 + change on some inputs."""
    first, *rest = record.samples
    values = first.values.copy()
    values[rows] *= 1 + change
    return dataclasses.replace(record, samples=(dataclasses.replace(first, values=values), *rest))


def test_differences_within_half_of_the_digits_are_rounding(record: AuditRecord) -> None:
    half = torch.finfo(torch.float32).eps ** 0.5
    rounded = compare(record, with_values(record, half / 2))
    assert {d.outcome for d in rounded.differences[:HEADS]} == {Outcome.ROUNDING}
    assert rounded.origin is None
    larger = compare(record, with_values(record, 4 * half))
    assert {d.outcome for d in larger.differences[:HEADS]} <= {Outcome.CHANGED, Outcome.NO_EVIDENCE}


def test_the_same_difference_on_every_input_has_no_test(record: AuditRecord) -> None:
    first, *rest = record.samples
    moved = dataclasses.replace(first, values=np.round(first.values) + 0.25)
    a = dataclasses.replace(record, samples=(dataclasses.replace(first, values=np.round(first.values)), *rest))
    compared = compare(a, dataclasses.replace(record, samples=(moved, *rest)))
    assert compared.differences[0].difference == 0.25
    assert math.isnan(compared.differences[0].p_value)
    assert compared.differences[0].outcome is Outcome.UNDECIDED


def test_inputs_without_a_value_in_both_are_left_out(record: AuditRecord) -> None:
    single = with_values(with_values(record, 0.5), np.nan, slice(1, 12))
    compared = compare(record, single)
    assert {(d.inputs, d.outcome) for d in compared.differences[:HEADS]} == {(1, Outcome.UNDECIDED)}
    nothing = compare(record, with_values(record, np.nan))
    assert {(d.inputs, d.outcome) for d in nothing.differences[:HEADS]} == {(0, Outcome.NOT_MEASURED)}


def test_audits_that_cannot_be_paired_are_refused(record: AuditRecord, tmp_path: Path) -> None:
    other_inputs = audit(Attending(), batches(7), theories=["symmetry"])
    with pytest.raises(InputError, match="different inputs"):
        compare(record, other_inputs)
    other_claims = audit(Attending(), batches(), theories=["attention-sinks"])
    with pytest.raises(InputError, match="no claim and layer"):
        compare(record, other_claims)
    first, *rest = record.samples
    fewer = dataclasses.replace(record, samples=(dataclasses.replace(first, values=first.values[:, :2]), *rest))
    with pytest.raises(InputError, match=r"layer 0 .*3 heads .*2 heads"):
        compare(record, fewer)
    with pytest.raises(InputError, match="input by input"):
        compare(record, dataclasses.replace(record, manifest=None))
    with pytest.raises(InputError, match="report of an audit"):
        compare(tmp_path, record)


def test_the_same_text_in_other_batches_can_be_paired(record: AuditRecord) -> None:
    assert record.manifest is not None
    a, b = (
        dataclasses.replace(record, manifest=dataclasses.replace(record.manifest, data=data, text=text))
        for data, text in (("1", "t"), ("2", "t"))
    )
    assert compare(a, b).changed == ()
    with pytest.raises(InputError, match="different inputs"):
        compare(a, dataclasses.replace(b, manifest=dataclasses.replace(b.manifest, text="u")))


def test_reports_are_compared_as_records_are(
    record: AuditRecord, scaled: AuditRecord, second_layer: Comparison, tmp_path: Path
) -> None:
    write_report(record, tmp_path / "a")
    written = write_report(scaled, tmp_path / "b")
    assert repr(compare(tmp_path / "a", written.findings)) == repr(second_layer)


def test_verdicts_are_compared_where_both_audits_judged_the_head(record: AuditRecord, tmp_path: Path) -> None:
    judged = [f for f in record.findings if f.verdict is Verdict.NO_EVIDENCE and f.head == 1]
    undecided = [f for f in record.findings if f.verdict is Verdict.NO_EVIDENCE and f.head == 2]
    assert judged
    assert undecided
    verdicts = {id(f): Verdict.SUPPORTED for f in judged} | {id(f): Verdict.UNDECIDED for f in undecided}
    findings = tuple(dataclasses.replace(f, verdict=verdicts.get(id(f), f.verdict)) for f in record.findings)
    other = dataclasses.replace(record, findings=findings)
    write_report(other, tmp_path)
    for comparison in (compare(record, other), compare(record, tmp_path)):
        found = {(d.claim.statistic, d.layer, d.head): d for d in comparison.differences}
        assert {key for key, d in found.items() if d.verdict_differs} == {
            (f.claim.statistic, f.layer, f.head) for f in judged
        }
        for finding in judged:
            difference = found[finding.claim.statistic, finding.layer, finding.head]
            assert difference.verdicts == (Verdict.NO_EVIDENCE, Verdict.SUPPORTED)
        assert all(found[f.claim.statistic, f.layer, f.head].verdicts is None for f in undecided)


@pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")
def test_before_and_after_a_swap_the_other_layers_are_compared() -> None:
    model = SelfAttending()
    before = audit(model, batches(), theories=["symmetry"])
    with swap(model, "symmetric", layers=[0]):
        with pytest.raises(FidelityError, match="swapped in"):
            audit(model, batches(), theories=["symmetry"])
        after = audit(model, batches(), theories=["symmetry"], allow_swapped=True)
        with pytest.raises(AuditError, match="every selected layer"):
            audited(model, allow_swapped=True, layers=[0])
    assert {finding.layer for finding in after.findings} == {1}
    assert "first has Symmetric() swapped in and is not measured" in after.notes
    compared = compare(before, after)
    assert {d.layer for d in compared.differences} == {1}
    assert "only A has values of layer 0" in compared.notes
    assert compared.notes[0].startswith("B (SelfAttending) has Symmetric() at first; theories of softmax attention")
    with swap(model, "symmetric"), pytest.raises(FidelityError, match="every layer"):
        audited(model, allow_swapped=True)


class SelfAttending(torch.nn.Module):
    """Two layers of torch's own attention, in which operators can be swapped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.second = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = x + layer(x, x, x, need_weights=False)[0]
        return x

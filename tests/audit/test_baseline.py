"""The baseline as a control: fresh models as they are, and the same with the trained norms."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from clearhead.audit import measuring
from clearhead.audit.baseline import BASELINE, BASELINE_INPUTS, TRAINED_NORMS, with_baseline
from clearhead.audit.findings import ControlResult, Finding, NoEvidence, Verdict
from clearhead.audit.judging import judge
from clearhead.audit.run import AuditError, audit
from clearhead.audit.samples import ClaimSamples, ClaimSummary
from clearhead.errors import InputError
from clearhead.loading.norms import norm_values
from clearhead.numerics.moments import Interval, prediction_p_value
from clearhead.report.json_file import audit_as_json
from clearhead.theories.theory import Unit
from tests.audit.synthetic_findings import CLAIM, finding
from tests.interfaces.zoo import FAMILIES, with_large_weights

BERT = FAMILIES["bert"]
MODEL = "the same model before training"


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Return a tiny BERT with large weights and gains that differ."""
    model = with_large_weights(BERT.make())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in norm_values(model).values():
            value.add_(0.5 * torch.randn(value.shape, generator=generator))
    return model


@pytest.fixture
def fresh() -> list[nn.Module]:
    """Return two models before training."""
    models = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        models.append(BERT.make())
    return models


def _batches() -> list[Any]:
    return [BERT.inputs()] * 2


def _controls(findings: Sequence[Finding], name: str) -> list[ControlResult]:
    return [c for f in findings for c in f.controls if c.name.replace("layer", "head") == name]


def test_the_second_baseline_is_the_same_models_with_the_trained_norms(
    trained: nn.Module, fresh: list[nn.Module]
) -> None:
    options: dict[str, Any] = {"theories": ("coding-rate", "attention-sinks"), "seed": 5}
    twins = [copy.deepcopy(model) for model in fresh]
    for twin in twins:
        twin.load_state_dict({**twin.state_dict(), **{n: x.detach() for n, x in norm_values(trained).items()}})
    before = [{name: x.clone() for name, x in model.state_dict().items()} for model in fresh]
    record = audit(trained, _batches(), baseline=iter(fresh), **options)
    alone = audit(trained, _batches(), baseline=iter(twins), **options)
    assert record.baselines == {MODEL: 2, f"{MODEL}, with the trained norms": 2}
    assert alone.baselines == {MODEL: 2}
    second, expected = _controls(record.findings, TRAINED_NORMS), _controls(alone.findings, BASELINE)
    assert len(second) == len(expected) > 20
    for control, twin in zip(second, expected, strict=True):
        assert repr(dataclasses.replace(control, name="")) == repr(dataclasses.replace(twin, name=""))
        assert (control.decisive, control.draws, control.seed) == (True, 2, 5)
    plain = _controls(record.findings, BASELINE)
    assert sum(c.value != t.value for c, t in zip(plain, second, strict=True)) > len(plain) / 2, "the gains show"
    for model, state in zip(fresh, before, strict=True):
        assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items()), "own norms are restored"
    curve = record.curves[0]
    assert [line.name for line in curve.lines].count(MODEL) == 1
    assert not any("norms" in line.name for line in curve.lines)
    assert audit_as_json(record)["baselines"] == record.baselines


@pytest.mark.parametrize("gains", ["initial", "trained"])
def test_only_what_the_second_baseline_can_change_is_measured(
    gains: str, trained: nn.Module, fresh: list[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Initial norms are measured once; trained norms again, for the theories that are judged by the baseline."""
    model = BERT.make() if gains == "initial" else trained
    runs: list[str] = []

    begin = measuring.Pass

    def counted(*, theories: Any, controls: bool, **options: Any) -> Any:
        if not controls:  # the trained model is measured with controls, the baseline without
            runs.extend(theory.key for theory in theories)
        return begin(theories=theories, controls=controls, **options)

    monkeypatch.setattr(measuring, "Pass", counted)
    record = audit(model, _batches(), theories=("symmetry", "attention-sinks"), baseline=fresh)
    again = ["attention-sinks"] if gains == "trained" else []
    assert runs == ["symmetry", "attention-sinks", *again, "attention-sinks", *again]
    assert bool(_controls(record.findings, TRAINED_NORMS)) is (gains == "trained")
    assert (f"{MODEL}, with the trained norms" in record.baselines) is (gains == "trained")
    runs.clear()
    audit(model, _batches(), theories="symmetry", baseline=fresh)
    assert runs == ["symmetry"]


def test_a_model_that_has_the_norms_counts_as_it_is(trained: nn.Module, fresh: list[nn.Module]) -> None:
    record = audit(trained, _batches(), theories="attention-sinks", baseline=[fresh[0], trained])
    second, first = _controls(record.findings, TRAINED_NORMS), _controls(record.findings, BASELINE)
    assert {control.draws for control in second} == {control.draws for control in first} == {2}


def test_a_baseline_with_other_norms_raises_an_error(trained: nn.Module, fresh: list[nn.Module]) -> None:
    other = copy.deepcopy(fresh[0])
    other.embeddings.LayerNorm = nn.Identity()
    with pytest.raises(InputError, match=r"embeddings\.LayerNorm\.weight"):
        audit(trained, _batches(), theories="attention-sinks", baseline=[other, other])


def _heads(values: Sequence[float]) -> list[Finding]:
    return [finding(value, half=0.001) for value in values]


def _compared(
    head: Finding, plain: Sequence[float], norms: Sequence[float], *, decisive: Sequence[str] = ("theory",)
) -> Finding:
    (compared,) = judge(with_baseline([head], _heads(plain), _heads(norms), seed=3, decisive=decisive))
    return compared


def test_a_head_must_beat_both_baselines() -> None:
    low, high = [0.2, 0.21, 0.19, 0.2, 0.205], [0.96, 0.97, 0.95, 0.96, 0.965]
    head = finding(0.97, half=0.001)
    assert _compared(head, low, low).verdict is Verdict.SUPPORTED
    assert _compared(head, low, []).verdict is Verdict.SUPPORTED
    for plain, norms in ((low, high), (high, low)):
        compared = _compared(head, plain, norms)
        assert compared.verdict is Verdict.NO_EVIDENCE
        assert [c.name for c in compared.controls] == ["drawn", BASELINE, TRAINED_NORMS]
        shown = _compared(head, plain, norms, decisive=())
        assert shown.verdict is Verdict.SUPPORTED
        assert [c.decisive for c in shown.controls] == [True, False, False]
    assert compared.no_evidence in set(NoEvidence)


def test_the_second_baseline_does_not_stand_in_for_the_first() -> None:
    low = [0.2, 0.21, 0.19]
    assert _compared(finding(0.97, half=0.001), low[:1], low).verdict is Verdict.UNDECIDED
    assert _compared(finding(0.97, half=0.001), [], low).verdict is Verdict.UNDECIDED


def test_models_without_a_value_are_no_draws() -> None:
    nothing = dataclasses.replace(finding(math.nan, inputs=0), interval=Interval(math.nan, math.nan))
    heads = [*_heads([0.2, 0.21, 0.19]), nothing]
    (compared,) = judge(with_baseline([finding(0.97, half=0.001)], heads, seed=3, decisive=["theory"]))
    assert compared.controls[-1].draws == 3
    assert compared.verdict is Verdict.SUPPORTED


def test_a_baseline_with_fewer_inputs_raises_an_error(trained: nn.Module, fresh: list[nn.Module]) -> None:
    class Fewer:
        """Batches of which one is missing from the second time on."""

        times = 0

        def __iter__(self) -> Iterator[Any]:
            self.times += 1  # when the first batch is taken
            yield from _batches()[self.times > 1 :]

    with pytest.raises(AuditError, match="same inputs"):
        audit(trained, Fewer(), theories="attention-sinks", baseline=fresh)


def test_layers_have_layers_as_baselines() -> None:
    claim = dataclasses.replace(CLAIM, unit=Unit.LAYER)
    (compared,) = with_baseline([finding(claim=claim)], [finding(claim=claim)], [finding(claim=claim)], seed=0)
    names = [c.name for c in compared.controls[1:]]
    assert names == ["the same layer before training", "the same layer before training, with the trained norms"]


@pytest.mark.parametrize("name", [BASELINE, TRAINED_NORMS])
def test_several_draws_are_compared_by_the_prediction_interval(name: str) -> None:
    """Both parts of the error count: the spread of the draws, and the standard error of the head's own mean."""
    draws, deviation, inputs = [0.3, 0.34, 0.37, 0.31], 0.11, 23
    half = float(stats.t.ppf(0.975, inputs - 1)) * deviation / inputs**0.5
    head = finding(0.45, half=half, inputs=inputs)
    given = (draws, [9.0, 9.1]) if name == BASELINE else ([9.0, 9.1], draws)
    compared = _compared(head, *given)
    control = next(c for c in compared.controls if c.name == name)
    expected = prediction_p_value(0.45, np.array(draws), error=deviation / inputs**0.5)
    assert control.p_value == pytest.approx(expected)
    assert 0.05 < expected < 0.5
    assert control.freedom == len(draws) - 1
    assert control.error**2 == pytest.approx(np.var(draws, ddof=1) * 1.25 + deviation**2 / inputs)
    assert (control.value, control.draws, control.seed) == (pytest.approx(0.33), 4, 3)


def test_random_models_without_a_baseline_are_undecided() -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        record = audit(BERT.make(), _batches(), theories=("coding-rate", "attention-sinks"), baseline=None)
        verdicts = {f.verdict for f in record.findings if f.inputs}
        assert Verdict.UNDECIDED in verdicts
        assert verdicts <= {Verdict.UNDECIDED, Verdict.NOT_APPLICABLE, Verdict.NOT_JUDGED}
        assert record.baselines == {}


def test_a_head_is_compared_on_the_inputs_of_the_baseline() -> None:
    """The first three of its five inputs, whose mean is .2 and not .5."""
    values = np.array([[0.1], [0.2], [0.3], [0.9], [1.0]])
    summary = ClaimSummary(
        theory=CLAIM.theory, statistic=CLAIM.statistic, role=CLAIM.role, unit=CLAIM.unit, percent=False, shared=False
    )
    samples = [ClaimSamples(claim=summary, layer=0, name="layer", values=values)]
    head = finding(0.5, half=0.5, inputs=5)
    draws = [finding(value, inputs=3) for value in (0.18, 0.21, 0.24)]
    (compared,) = with_baseline([head], draws, seed=0, decisive=[CLAIM.theory], samples=samples)
    expected = prediction_p_value(0.2, np.array([0.18, 0.21, 0.24]), error=0.1 / 3**0.5)
    assert compared.controls[-1].p_value == pytest.approx(expected)
    (on_all,) = with_baseline([head], draws, seed=0, decisive=[CLAIM.theory])
    assert on_all.controls[-1].p_value < expected


def test_the_baseline_is_measured_on_its_first_inputs_alone(trained: nn.Module, fresh: list[nn.Module]) -> None:
    """The numbers of the baseline's control are those of an audit of the first inputs."""
    given = BERT.inputs()
    ids = given["input_ids"]
    count, generator = len(ids), torch.Generator().manual_seed(0)
    batches = [
        {**given, "input_ids": torch.randint(int(ids.max()) + 1, ids.shape, generator=generator)} for _ in range(9)
    ]
    first = -(-BASELINE_INPUTS // count)
    options: dict[str, Any] = {"theories": "attention-sinks", "baseline": fresh}
    long, short = (audit(trained, given, **options) for given in (batches, batches[:first]))
    assert long.inputs > short.inputs >= BASELINE_INPUTS
    assert [c.value for c in _controls(long.findings, BASELINE)] == pytest.approx(
        [c.value for c in _controls(short.findings, BASELINE)]
    )

"""Attention sinks: a planted sink is found, random heads are not, and an encoder is measured as it is."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.audit.run import audit
from clearhead.heads import Heads
from clearhead.theories.attention_sinks import MASS, OTHERS, RATE, THEORY, UNIFORM, VALUE
from clearhead.theories.example import Random
from clearhead.theories.theory import Role
from tests.interfaces.zoo import FAMILIES
from tests.measured import Measured

INPUTS, HEADS, TOKENS, WIDTH = 7, 3, 23, 5


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _call(*, sink: int | None = None, causal: bool = True, padding: int = 0, **changes: Any) -> Heads:
    """Random heads; in head `sink`, every query agrees with the first key, and its value is small."""
    q, k, v = (_normal(INPUTS, HEADS, TOKENS, WIDTH, seed=seed) for seed in (1, 2, 3))
    if sink is not None:
        q[:, sink, :, 0] = 6
        k[:, sink, :, 0] = 0
        k[:, sink, padding, 0] = 6
        v[:, sink, padding] *= 0.01
    mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    mask = mask.tril() if causal else mask.clone()
    mask[..., :padding] = False
    return Heads(layer=0, name="a", q=q, k=k, v=v, out=v, scale=1.0, mask=mask, **changes)


def _found(*calls: Heads) -> dict[str, list[Finding]]:
    measurement = Measured(THEORY)
    for call in calls:
        measurement.feed(call)
    by_statistic: dict[str, list[Finding]] = {}
    for finding in judge(measurement.findings()):
        by_statistic.setdefault(finding.claim.statistic, []).append(finding)
    return by_statistic


@pytest.mark.parametrize(("causal", "padding"), [(True, 0), (False, 0), (True, 2)])
def test_a_planted_sink_is_supported_and_no_other_head(causal: bool, padding: int) -> None:
    result = _found(_call(sink=1, causal=causal, padding=padding))
    for claim in (MASS, VALUE):
        assert [f.verdict is Verdict.SUPPORTED for f in result[claim.statistic]] == [False, True, False]
    assert result[MASS.statistic][1].value > 0.9
    assert [f.value for f in result[RATE.statistic]] == [0, 1, 0]
    assert result[VALUE.statistic][1].value < 0.05


def test_the_numbers_are_those_of_the_definitions() -> None:
    call = _call()
    weights = (call.q @ call.k.mT).masked_fill(~call.mask, -torch.inf).softmax(dim=-1)
    result = _found(call)
    uniform = float(np.mean([1 / (i + 1) for i in range(1, TOKENS)]))
    norms = call.v.norm(dim=-1)
    for h in range(HEADS):
        mass = result[MASS.statistic][h]
        assert mass.value == pytest.approx(float(weights[:, h, 1:, 0].mean()))
        controls = {control.name: control for control in mass.controls}
        assert controls[UNIFORM.name].value == pytest.approx(uniform)
        others = [float(weights[:, h, j + 1 :, j].mean()) for j in range(1, 17)]
        assert controls[OTHERS.name].draws == len(others)
        assert controls[OTHERS.name].value == pytest.approx(np.mean(others))
        ratio = (norms[:, h, 0] / norms[:, h, 1:].median(dim=-1).values).mean()
        assert result[VALUE.statistic][h].value == pytest.approx(float(ratio))


def test_heads_do_not_depend_on_how_many_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    biased = {"bias": _normal(1, HEADS, TOKENS, TOKENS, seed=5), "sinks": torch.tensor([0.0, 2.0, -1.0])}
    for changes in ({}, biased):
        together = _found(_call(sink=1, **changes))
        monkeypatch.setattr("clearhead.theories.example.AT_ONCE", 2 * TOKENS**2)
        apart = _found(_call(sink=1, **changes))
        monkeypatch.undo()
        for one, other in zip(together[MASS.statistic], apart[MASS.statistic], strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-12)
            assert [c.value for c in one.controls] == pytest.approx([c.value for c in other.controls], rel=1e-12)


def test_a_sink_logit_takes_attention_from_the_first_token() -> None:
    plain, with_logit = (_found(call)[MASS.statistic] for call in (_call(), _call(sinks=torch.full((HEADS,), 9.0))))
    assert all(a.value > 5 * b.value for a, b in zip(plain, with_logit, strict=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: dataclasses.replace(c, q=c.q[:, :, :7], out=c.out[:, :, :7], mask=None), "cross-attention"),
        (lambda c: dataclasses.replace(c, **{n: getattr(c, n)[:, :, :3] for n in ("q", "k", "v", "out")}, mask=None),
         "fewer than 4 tokens"),
        (lambda c: dataclasses.replace(c, v=c.v * torch.nan), "not finite"),
    ],
)  # fmt: skip
def test_reasons_why_the_claim_cannot_be_measured(change: Any, reason: str) -> None:
    for findings in _found(change(_call())).values():
        assert all(f.verdict is Verdict.NOT_APPLICABLE and reason in f.reason for f in findings)


class Causal(nn.Module):
    """One causal layer on token ids; with `sink`, keys and queries meet at the first token, which is always 0."""

    def __init__(self, seed: int, *, sink: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shapes = {"embedding": (29, 12), "q": (12, 12), "k": (12, 12), "v": (12, 12)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(0.3 * torch.randn(shape, generator=generator)))
        self.sink = sink

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding[input_ids]
        q, k, v = ((x @ w).unflatten(-1, (2, 6)).transpose(1, 2) for w in (self.q, self.k, self.v))
        if self.sink:
            first = functional.one_hot(torch.tensor(0), 6)
            q, k = q + 4 * first, k + 4 * first * (input_ids == 0)[:, None, :, None]
            v = torch.where((input_ids == 0)[:, None, :, None], 0.01 * v, v)
        return x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _texts(count: int = 12) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 29, (count, 17), generator=generator)
    ids[:, 0] = 0
    return [{"input_ids": part} for part in ids.split(4)]


def _verdicts(model: nn.Module, baseline: list[nn.Module]) -> list[Verdict]:
    record = audit(model, _texts(), theories="attention-sinks", baseline=baseline)
    return [f.verdict for f in record["attention-sinks"][MASS.statistic]]


def test_random_models_are_not_supported_and_a_planted_one_is() -> None:
    """The first token is the same in every input, so only the baseline shows what random weights do with it."""
    baseline: list[nn.Module] = [Causal(100 + seed) for seed in range(5)]
    called = [verdict for seed in range(10) for verdict in _verdicts(Causal(seed), baseline)]
    assert sum(verdict is Verdict.SUPPORTED for verdict in called) <= 2
    assert _verdicts(Causal(50, sink=True), baseline) == [Verdict.SUPPORTED] * 2


def test_an_encoder_is_measured_on_its_first_token() -> None:
    family = FAMILIES["bert"]
    record = audit(family.make(), [family.inputs()] * 2, baseline=None, theories="attention-sinks")
    assert all(f.inputs for f in record.findings)
    assert {f.verdict for f in record.findings if f.claim.role is Role.PRIMARY} == {Verdict.UNDECIDED}
    assert any("undecided without a baseline" in note for note in record.notes)


def test_a_long_input_is_measured_on_a_sample_of_its_queries() -> None:
    """The mean over 256 queries is close to that over all, and keys are all tokens."""
    n = 600
    q, k, v = (_normal(1, 2, n, WIDTH, seed=seed) for seed in (1, 2, 3))
    mask = torch.ones(1, 1, n, n, dtype=torch.bool).tril()
    call = Heads(layer=0, name="a", q=q, k=k, v=v, out=v, scale=1.0, mask=mask)
    measurement = Measured(THEORY)
    measurement.feed(call)
    rows = torch.randperm(n, generator=Random(0, 0, 1, 0).torch)[:256]
    weights = (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(dim=-1)[0]
    rows = rows[rows > 0]
    expected = weights[:, rows, 0].mean(dim=-1)
    found = [f.value for f in measurement.findings() if f.claim is MASS]
    assert found == pytest.approx(expected.tolist(), rel=1e-9)
    assert found != pytest.approx(weights[:, 1:, 0].mean(dim=-1).tolist(), rel=1e-3)
    [note] = measurement.notes()
    assert "256 tokens were drawn from inputs of more than 512" in note

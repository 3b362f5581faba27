"""Options of a pursuit: presets, conversion to dicts, errors, and traces."""

import pytest
import torch
from torch import Tensor

from clearhead.operators.clamped_keys import KeyBound
from clearhead.operators.pursuit_options import PRESETS, Order, Pursuit, Shrink, preset
from clearhead.operators.rpc import rpc_attention, trace_pursuit
from clearhead.shapes import ShapeError
from tests.operators.test_rpc import CAUSAL, TIGHT
from tests.operators.test_symmetric import normal


@pytest.mark.parametrize(
    ("name", "rule", "width", "eps", "strength", "iterations", "order", "sign", "inner"),
    [
        ("paper", "lambda/mu", "head", 0.0, 4.0, 4, "SLY", -1, "shrink"),
        ("code-2024-10", "lambda*mu", "model", 0.0, 4.0, 4, "SLY", -1, "shrink"),
        ("code-2024-08-base", "lambda/mu", "head", 1e-8, 3.0, 1, "SLY", -1, "half"),
        ("admm", "lambda/mu", "head", 0.0, None, 4, "LSY", 1, "shrink"),
    ],
)
def test_presets_have_the_published_settings(
    name: str, rule: str, width: str, eps: float, strength: float, iterations: int, order: str, sign: int, inner: str
) -> None:
    chosen = PRESETS[name]
    assert (chosen.bound.threshold, chosen.bound.mu.width, chosen.bound.mu.eps) == (rule, width, eps)
    got = (chosen.bound.strength, chosen.iterations, chosen.order, chosen.dual_sign, chosen.inner)
    assert got == (strength, iterations, order, sign, inner)
    assert (chosen.shrink, chosen.dropout, chosen.centred) == ("soft", "last", False)
    assert (chosen.bound.mu.scope, chosen.bound.mu.detach) == ("prefix", False)


@pytest.mark.parametrize("mask", [None, CAUSAL, torch.arange(13) < 11], ids=["all", "causal", "padding"])
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("with_queries", [False, True])
def test_a_trace_holds_the_iterates(order: Order, with_queries: bool, mask: Tensor | None) -> None:
    k, v, q = (normal(2, 3, 13, 7, seed=i, dtype=torch.float64) for i in range(3))
    pursuit = Pursuit(iterations=3, bound=TIGHT, order=order)
    queries = q if with_queries else None
    trace = trace_pursuit(queries, k, v, pursuit=pursuit, mask=mask)
    torch.testing.assert_close(trace.out, rpc_attention(queries, k, v, pursuit=pursuit, mask=mask))
    dual = torch.zeros_like(k)
    for step in trace.steps:
        before, dual = dual, dual + trace.mu * (k - step.low_rank - step.sparse)
        torch.testing.assert_close(step.dual, dual)
        if order is Order.LOW_RANK_FIRST:
            left = k - step.low_rank + before / trace.mu
            torch.testing.assert_close(step.sparse, left - left.clamp(-trace.bound, trace.bound))
    there = torch.ones(13, dtype=torch.bool) if mask is None or mask.ndim == 2 else mask
    last = trace.steps[-1]
    gap = (k - last.low_rank - last.sparse)[..., there, :].norm(dim=(-2, -1))
    torch.testing.assert_close(last.residual, gap / k[..., there, :].norm(dim=(-2, -1)))
    torch.testing.assert_close(last.nonzeros, (last.sparse[..., there, :] != 0).double().mean(dim=(-2, -1)))
    assert ((last.diagonal > 0) & (last.diagonal <= 1)).all()


def test_options_convert_to_and_from_dicts() -> None:
    for chosen in (*PRESETS.values(), Pursuit(shrink=Shrink.HARD, bound=KeyBound(mu=0.3), centred=True)):
        assert Pursuit.from_dict(chosen.to_dict()) == chosen
    with pytest.raises(ValueError, match="function"):
        Pursuit(bound=KeyBound(threshold=lambda lam, mu: lam / mu)).to_dict()
    more = {**Pursuit().to_dict(), "more": 1}
    for broken in ({}, {"bound": {}}, more):
        with pytest.raises(ValueError, match="expected the options of a pursuit"):
            Pursuit.from_dict(broken)
    stored = Pursuit().to_dict()
    stored["bound"]["threshold"] = "os.system"
    with pytest.raises(ValueError, match=r"'os\.system' is not a valid Threshold"):
        Pursuit.from_dict(stored)


def test_wrong_options_raise_a_clear_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match=r"there is no preset .papre.; choose from paper, code-2024-10"):
        preset("papre")
    with pytest.raises(ValueError, match="whole number of iterations, one or more; got 0"):
        preset("paper", iterations=0)
    k, v = normal(2, 3, 13, 7), normal(2, 3, 13, 7, seed=1)
    with pytest.raises(ValueError, match="their mean leaks"):
        rpc_attention(None, k, v, pursuit=Pursuit(centred=True), mask=CAUSAL)
    if typechecked:
        pytest.skip("the import hook refuses what follows before the operator can")
    with pytest.raises(ValueError, match="dual sign of -1 or 1; got 2"):
        Pursuit(dual_sign=2)
    with pytest.raises(ValueError, match=r"centred as True or False; got .*'no'"):
        Pursuit(centred="no")
    with pytest.raises(ValueError, match="expected the options of a pursuit"):
        Pursuit.from_dict({**Pursuit().to_dict(), "bound": "paper"})
    with pytest.raises(ValueError, match="'LYS' is not a valid Order"):
        Pursuit(order="LYS")
    with pytest.raises(
        ShapeError, match=r"one shape, since L is subtracted from K; got k \(2, 3, 13, 7\), v \(2, 3, 13, 5\)"
    ):
        rpc_attention(None, k, v[..., :5])
    with pytest.raises(ShapeError, match=r"got q \(2, 3, 11, 7\)"):
        rpc_attention(k[..., :11, :], k, v)

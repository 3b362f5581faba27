"""RPC-Attention: every option against the published algorithm, presets, clamped keys, causality, unusual keys."""

import dataclasses
import functools
import importlib
import itertools

import pytest
import torch
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.clamped_keys import (
    KeyBound,
    Scope,
    Threshold,
    clamped_key_attention,
    slow_clamped_key_attention,
)
from clearhead.operators.pursuit_options import PRESETS, DropoutIterations, Inner, Order, Pursuit, Shrink, preset
from clearhead.operators.rpc import rpc_attention, slow_rpc_attention, trace_pursuit
from clearhead.operators.symmetric import symmetric_attention
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from clearhead.testing.operator_checks import MASK_CHECKS
from clearhead.testing.operators import WIDTH
from tests.operators.contract import run_check
from tests.operators.paths import PATHS, forced
from tests.operators.test_pursuit import widened
from tests.operators.test_symmetric import gradients, normal, relative, with_queries

PURSUIT = importlib.import_module("clearhead.operators.pursuit")
TIGHT = KeyBound(strength=0.4, threshold=Threshold.TIMES_MU)
"""A bound that clamps a large share of standard normal keys."""
CAUSAL = torch.ones(13, 13, dtype=torch.bool).tril()


def subject(fast, slow, **options) -> OperatorSubject:
    operator, slow = (
        functools.partial(with_queries, functools.partial(widened, functools.partial(attention, None, **options)))
        for attention in (fast, slow)
    )
    # Later iterations multiply the rounding errors of earlier ones.
    return OperatorSubject(operator=operator, reference=slow, square=True, terms=4096 * WIDTH)


rpc = functools.partial(subject, rpc_attention, slow_rpc_attention)
VARIANTS = {
    **{name: rpc(pursuit=preset(name, strength=0.7)) for name in PRESETS},
    "hard": rpc(pursuit=Pursuit(iterations=2, bound=TIGHT, shrink=Shrink.HARD), scale=0.4),
    "centred": dataclasses.replace(rpc(pursuit=Pursuit(iterations=2, bound=TIGHT, centred=True)), masks=False),
    "clamped": subject(clamped_key_attention, slow_clamped_key_attention, bound=TIGHT),
}
NOT_APPLICABLE = {"hidden_keys": "its large entries would be clamped"}
"""Checks that do not apply, with the reason; a separate test follows below."""


@pytest.mark.parametrize("check", [name for name in OPERATOR_CHECKS if name not in NOT_APPLICABLE])
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(variant: str, check: str, typechecked: bool) -> None:
    if variant == "centred" and check in MASK_CHECKS:
        pytest.skip("centred queries take padding alone, which has its own test")
    run_check(check, VARIANTS[variant], typechecked=typechecked)


STEPS = list(itertools.product(Order, (-1, 1), Shrink, Inner))


@pytest.mark.parametrize("given_queries", [False, True])
@pytest.mark.parametrize(("order", "sign", "shrink", "inner"), STEPS)
def test_every_step_matches_the_algorithm(
    order: Order, sign: int, shrink: Shrink, inner: Inner, given_queries: bool
) -> None:
    k, v, q, along = (normal(2, 3, 13, 7, seed=i, dtype=torch.float64) for i in range(4))
    pursuit = Pursuit(iterations=3, bound=TIGHT, order=order, dual_sign=sign, shrink=shrink, inner=inner)
    there = normal(2, 1, 1, 13, seed=4) > -0.7
    for mask in (None, there, CAUSAL, CAUSAL & there):
        options = {"pursuit": pursuit, "mask": mask}

        def fast(k: Tensor, v: Tensor, q: Tensor, options: dict = options) -> Tensor:
            return rpc_attention(q if given_queries else None, k, v, **options) + 0 * q

        def slow(k: Tensor, v: Tensor, q: Tensor, options: dict = options) -> Tensor:
            return slow_rpc_attention(q if given_queries else None, k, v, **options) + 0 * q

        within = 4096 * tolerance(torch.float64)
        assert relative(fast(k, v, q), slow(k, v, q)) <= within
        got, want = (gradients(attention, k, v, q, along=along) for attention in (fast, slow))
        size = max(x.norm() for x in want)
        assert all((x - y).norm() <= within * size for x, y in zip(got, want, strict=True))


def test_every_option_changes_the_output() -> None:
    """The control of the test above: no two options and no two presets give the same output."""
    k, v = normal(2, 3, 13, 7, dtype=torch.float64), normal(2, 3, 13, 7, seed=1, dtype=torch.float64)
    ways = [
        Pursuit(iterations=3, bound=TIGHT, order=order, dual_sign=sign, shrink=shrink, inner=inner)
        for order, sign, shrink, inner in STEPS
    ]
    outs = [rpc_attention(None, k, v, pursuit=way) for way in ways]
    centred = [rpc_attention(None, k, v, pursuit=Pursuit(bound=TIGHT, centred=centred)) for centred in (False, True)]
    presets = [rpc_attention(None, 3 * k, v, pursuit=chosen) for chosen in PRESETS.values()]

    def kind(way: Pursuit) -> tuple[object, ...]:
        """Return the options that matter for this pursuit.

        If inner iterations do not shrink, the bound matters only in the last one, and not at all if the low-rank part
        comes first. If inner iterations put everything into the sparse part, all keys are equal and the dual variable
        is zero, so that its sign does not matter.
        """
        idle = way.order is Order.LOW_RANK_FIRST and way.inner is not Inner.SHRINK
        return (
            way.order,
            way.inner,
            None if idle else way.shrink,
            None if way.inner is Inner.ALL else way.dual_sign,
        )

    distinct: list[Tensor] = []
    for out in outs:
        if not any(relative(out, other) < 1e-9 for other in distinct):
            distinct.append(out)
    assert len(distinct) == len({kind(way) for way in ways}) == 17
    for group in (centred, presets):
        assert all(relative(x, y) > 1e-3 for x, y in itertools.combinations(group, 2))


@pytest.mark.parametrize("mask", [None, CAUSAL, torch.arange(13) < 11], ids=["all", "causal", "padding"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", PRESETS)
def test_one_iteration_equals_attention_on_clamped_keys_exactly(name: str, path: str, mask: Tensor | None) -> None:
    k, v, q = (3 * normal(2, 3, 13, 7, seed=i) for i in range(3))
    pursuit = preset(name, iterations=1, strength=0.3)
    with forced(path):
        for queries in (None, q):
            once = rpc_attention(queries, k, v, pursuit=pursuit, mask=mask)
            clamped = clamped_key_attention(queries, k, v, bound=pursuit.bound, mask=mask)
            plain = clamped_key_attention(queries, k, v, bound=KeyBound(mu=1e-9), mask=mask)
            twice = rpc_attention(queries, k, v, pursuit=preset(pursuit, iterations=2), mask=mask)
            as_published = pursuit.order is Order.SPARSE_FIRST
            assert torch.equal(once, clamped if as_published else plain)
            assert relative(clamped, plain.double()) > 0.01
            assert relative(twice, clamped.double()) > 0.01
        if mask is None:
            assert torch.equal(plain, clamped_key_attention(q, k, v, bound=KeyBound(mu=1e-9)))
            unbounded = clamped_key_attention(None, k, v, bound=KeyBound(mu=1e-9))
            assert torch.equal(unbounded, symmetric_attention(k, v))


@pytest.mark.parametrize("path", PATHS)
def test_limits_of_lambda(path: str) -> None:
    """At zero the first keys are all zero, so attention is uniform; at infinity nothing is sparse."""
    k, v = normal(2, 3, 61, 7), normal(2, 3, 61, 7, seed=1)
    with forced(path):
        for name in ("paper", "code-2024-10"):
            none = rpc_attention(None, k, v, pursuit=preset(name, iterations=1, strength=0.0))
            assert relative(none, v.double().mean(dim=-2, keepdim=True).expand_as(v)) <= tolerance(torch.float32)
            largest = rpc_attention(None, k, v, pursuit=preset(name, iterations=1, strength=float("inf")))
            assert torch.equal(largest, symmetric_attention(k, v))
            trace = trace_pursuit(None, k, v, pursuit=preset(name, strength=float("inf")))
            assert all(not step.sparse.any() for step in trace.steps)
            for keys in (k, torch.zeros_like(k)):
                leaf = keys.clone().requires_grad_()
                out = rpc_attention(None, leaf, v, pursuit=preset(name, iterations=1, strength=float("inf")))
                (ours,) = torch.autograd.grad(out.square().sum(), leaf)
                (plain,) = torch.autograd.grad(symmetric_attention(leaf, v).square().sum(), leaf)
                assert torch.equal(ours, plain)


def test_iterations_follow_the_released_code() -> None:
    """On standard normal keys of ViT-tiny's shape: far from feasible, and attention collapses to the identity."""
    k, v = normal(4, 3, 197, 64), normal(4, 3, 197, 64, seed=1)
    steps = trace_pursuit(None, k, v, pursuit=preset("code-2024-10", iterations=6)).steps
    assert [round(step.residual.mean().item(), 1) for step in steps] == pytest.approx(
        [1.31, 1.04, 0.72, 0.47, 0.32, 0.24], abs=0.06
    )
    diagonal = [step.diagonal.mean().item() for step in steps]
    assert diagonal[0] == pytest.approx(0.85, abs=0.02)
    assert min(diagonal[3:]) > 0.995
    large = trace_pursuit(None, 4 * k, v, pursuit=preset("code-2024-10")).steps
    quiet = trace_pursuit(None, k / 4, v, pursuit=preset("code-2024-10")).steps
    assert large[-1].nonzeros.mean().item() == pytest.approx(0.95, abs=0.01)
    assert max(step.nonzeros.max().item() for step in quiet) == 0


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("given_queries", [False, True])
def test_later_tokens_do_not_change_earlier_outputs(name: str, given_queries: bool) -> None:
    k, v, q = (normal(2, 3, 13, 7, seed=i) for i in range(3))
    changed = [torch.cat([x[..., :12, :], 5 - 7 * x[..., 12:, :]], dim=-2) for x in (k, v, q)]

    def past(k: Tensor, v: Tensor, q: Tensor, scope: Scope) -> Tensor:
        chosen = preset(name, iterations=3, strength=0.3)
        mu = dataclasses.replace(chosen.bound.mu, scope=scope)
        chosen = dataclasses.replace(chosen, bound=dataclasses.replace(chosen.bound, mu=mu))
        return rpc_attention(q if given_queries else None, k, v, pursuit=chosen, mask=CAUSAL)[..., :12, :]

    assert torch.equal(past(k, v, q, Scope.PREFIX), past(*changed, Scope.PREFIX))
    for leaking in (Scope.HEAD, Scope.SAMPLE):
        assert relative(past(*changed, leaking), past(k, v, q, leaking).double()) > 1e-3


@pytest.mark.parametrize("name", [*PRESETS, "centred"])
@pytest.mark.parametrize("path", PATHS)
def test_padding_does_not_matter(path: str, name: str) -> None:
    k, v, q = (normal(2, 3, 13, 7, seed=i) for i in range(3))
    there = torch.arange(13) < 11
    spoiled = [torch.where(there[:, None], x, 1e4) for x in (k, v, q)]
    chosen = Pursuit(bound=TIGHT, centred=True) if name == "centred" else preset(name, strength=0.5)
    with forced(path):
        for queries in (False, True):
            got, large = (
                rpc_attention(q if queries else None, k, v, pursuit=chosen, mask=there)[..., :11, :]
                for k, v, q in ((k, v, q), spoiled)
            )
            k_, v_, q_ = (x[..., :11, :] for x in (k, v, q))
            want = rpc_attention(q_ if queries else None, k_, v_, pursuit=chosen)
            assert relative(got, want.double()) <= 512 * tolerance(torch.float32)
            assert relative(large, want.double()) <= 512 * tolerance(torch.float32)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("path", PATHS)
def test_unusual_keys_give_finite_outputs(path: str, name: str) -> None:
    zero, one, large = torch.zeros(2, 3, 13, 7), normal(2, 3, 1, 7), 8 * normal(2, 3, 197, 64)
    with forced(path):
        # Beyond these, gradients of torch's fused attention itself are not finite.
        assert rpc_attention(None, 1e4 * normal(2, 3, 13, 7).half(), normal(2, 3, 13, 7).half()).isfinite().all()
        for keys in (zero, one, zero[..., :1, :], large.half(), 1e-30 * one):
            k = keys.clone().requires_grad_()
            v = normal(*k.shape, seed=1).to(k.dtype).requires_grad_()
            out = rpc_attention(None, k, v, pursuit=PRESETS[name])
            assert out.isfinite().all()
            assert all(x.isfinite().all() for x in torch.autograd.grad(out.float().sum(), (k, v)))
            if k.shape[-2] == 1:  # a single token attends only to itself
                assert relative(out, v.double()) <= tolerance(torch.float32)


@pytest.mark.parametrize("masked", [False, True])
def test_large_batches_are_computed_in_chunks(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    k, v, q, along = (normal(5, 3, 13, 7, seed=i) for i in range(4))
    mask = (normal(5, 1, 13, 13, seed=5) > -1) if masked else None
    seen: list[int] = []
    one = PURSUIT.iterate

    def noted(k: Tensor, *args, **options) -> Tensor:
        seen.append(len(k))
        return one(k, *args, **options)

    def attention(k: Tensor, v: Tensor, q: Tensor) -> Tensor:
        return rpc_attention(q, k, v, mask=mask, pursuit=Pursuit(bound=TIGHT))

    monkeypatch.setattr(PURSUIT, "iterate", noted)
    whole = [attention(k, v, q), *gradients(attention, k, v, q, along=along)]
    monkeypatch.setattr(PURSUIT, "_CHUNK", 2 * 3 * 13 * 7)
    parts = [attention(k, v, q), *gradients(attention, k, v, q, along=along)]
    assert seen == [5, 5, 2, 2, 1, 2, 2, 1]
    assert all(relative(x, y.double()) <= 64 * tolerance(torch.float32) for x, y in zip(parts, whole, strict=True))


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("shrink", Shrink)
@pytest.mark.parametrize("inner", Inner)
def test_without_gradients_outputs_are_the_same_and_inputs_are_kept(order: Order, shrink: Shrink, inner: Inner) -> None:
    k, v = normal(3, 2, 11, 7, seed=1), normal(3, 2, 11, 7, seed=2)
    before = k.clone(), v.clone()
    pursuit = Pursuit(iterations=3, bound=TIGHT, order=order, shrink=shrink, inner=inner)
    recorded = rpc_attention(None, k.requires_grad_(), v, pursuit=pursuit)
    with torch.no_grad():
        alone = rpc_attention(None, k, v, pursuit=pursuit)
    assert recorded.requires_grad
    assert torch.equal(alone, recorded.detach())
    assert torch.equal(k.detach(), before[0])
    assert torch.equal(v, before[1])
    torch.autograd.grad(recorded.sum(), k)


def test_chunks_have_work_for_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait for each other after every operation, so operations grow with their number."""
    k, seen = normal(5, 3, 13, 7), []
    one = PURSUIT.iterate
    monkeypatch.setattr(PURSUIT, "iterate", lambda k, *args, **options: seen.append(len(k)) or one(k, *args, **options))
    monkeypatch.setattr(PURSUIT, "_CHUNK", 3 * 13 * 7)
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        with forced("torch"):
            rpc_attention(None, k, k)
    assert seen == [1, 1, 1, 1, 1, 2, 2, 1]


def test_dropout_is_applied_in_the_configured_iterations() -> None:
    k, v = normal(2, 3, 13, 7), normal(2, 3, 13, 7, seed=1)
    there = torch.arange(13) < 11
    outs = {}
    for iterations, mask in itertools.product(DropoutIterations, (None, there)):
        pursuit = Pursuit(bound=TIGHT, dropout=iterations)
        torch.manual_seed(0)
        first = rpc_attention(None, k, v, pursuit=pursuit, mask=mask, dropout=0.5)
        torch.manual_seed(0)
        assert torch.equal(rpc_attention(None, k, v, pursuit=pursuit, mask=mask, dropout=0.5), first)
        dry = rpc_attention(None, k, v, pursuit=pursuit, mask=mask)
        wet = relative(first, dry.double())
        assert wet <= 64 * tolerance(torch.float32) if iterations is DropoutIterations.NONE else wet > 0.1
        outs[iterations] = first
    assert relative(outs[DropoutIterations.ALL], outs[DropoutIterations.LAST].double()) > 0.1
    # The remaining weights are doubled, so that the mean does not change.
    last = Pursuit(bound=TIGHT)
    mean = torch.stack([rpc_attention(None, k, v, pursuit=last, dropout=0.5) for _ in range(400)]).mean(dim=0)
    assert relative(mean, rpc_attention(None, k, v, pursuit=last).double()) < 0.15

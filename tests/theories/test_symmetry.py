"""Groups satisfy the group axioms, the measures find planted symmetries, the claim finds heads that use positions."""

import dataclasses
import math
from collections.abc import Callable
from itertools import permutations as orders
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clearhead.audit.examples import make_examples
from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.heads import Heads
from clearhead.operators.softmax import slow_softmax_attention, softmax_attention
from clearhead.shapes import ShapeError
from clearhead.theories.example import Cache, Random
from clearhead.theories.symmetry import (
    GRID,
    Action,
    Element,
    bounded_translations,
    dihedral,
    equivariance,
    flips,
    invariance,
    make_theory,
    permutations,
    random_permutations,
    relative_error,
    rotations,
    translations,
    transpositions,
)
from tests.measured import Measured

BATCH, HEADS, TOKENS, WIDTH, VALUES = 7, 3, 11, 5, 2
SCALE = WIDTH**-0.5


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _is_identity(element: Element) -> bool:
    return element.order == tuple(range(len(element.order)))


GROUPS = {
    "permutations": (permutations(4), 24, (4, 3)),
    "pixel permutations": (permutations(2, 2, axes=GRID), 24, (3, 2, 2)),
    "rotations": (rotations(5), 4, (3, 5, 5)),
    "flips": (flips(3, 5), 4, (2, 3, 5)),
    "transpositions": (transpositions(5), 2, (3, 5, 5)),
    "dihedral": (dihedral(5), 8, (3, 5, 5)),
    "translations": (translations(3, 5), 15, (2, 3, 5)),
    "translations by steps": (translations(4, 6, step=2), 6, (3, 4, 6)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_satisfy_the_group_axioms(name: str) -> None:
    group, size, shape = GROUPS[name]
    assert len(group) == len(set(group)) == len({element.name for element in group}) == size
    assert sum(_is_identity(element) for element in group) == 1
    assert {a.then(b) for a in group for b in group} == set(group)
    x = _normal(*shape)
    assert len({tuple(element(x).flatten().tolist()) for element in group}) == size
    for a, b in zip(group, reversed(group), strict=True):
        assert torch.equal(b(a(x)), a.then(b)(x))


def test_elements_agree_with_torch() -> None:
    x = _normal(2, 5, 5)
    for turns, element in enumerate(rotations(5)):
        assert torch.equal(element(x), torch.rot90(x, turns, dims=GRID))
    assert torch.equal(transpositions(5)[1](x), x.mT)
    assert [torch.equal(e(x), x.flip(dims)) for e, dims in zip(flips(5, 5), ((), (1,), (2,), (1, 2)), strict=True)] == [
        True
    ] * 4
    shifts = [(i, j) for i in range(5) for j in range(5)]
    for shift, element in zip(shifts, translations(5, 5), strict=True):
        assert torch.equal(element(x), x.roll(shift, dims=GRID))
        assert element.name == f"cyclic shift by {shift}"
    tokens = _normal(3, 4, 2)
    for order, element in zip(orders(range(4)), permutations(4), strict=True):
        assert torch.equal(element(tokens), tokens[:, list(order)])


def test_elements_are_exact_on_every_dtype_and_layout() -> None:
    for x in (_normal(3, 5, 7).transpose(0, 1)[..., ::2].bfloat16(), torch.arange(60).reshape(4, 5, 3)):
        element = random_permutations(x.shape[-2], draws=1)[0]
        assert torch.equal(element(x), x[:, list(element.order)])
        assert element(x).dtype == x.dtype


def test_random_permutations_differ_from_each_other_and_from_the_identity() -> None:
    group = permutations(7, draws=29, seed=3)
    assert len(set(group)) == 29
    assert not any(_is_identity(element) for element in group)
    assert group == permutations(7, draws=29, seed=3) != permutations(7, draws=29, seed=4)
    assert set(random_permutations(3, draws=11)) == set(permutations(3)) - {permutations(3)[0]}


def test_bounded_translations_lose_entries_beyond_the_border() -> None:
    group = bounded_translations(7, 5, reach=1)
    assert len(set(group)) == 9
    inside = torch.zeros(2, 7, 5, dtype=torch.float64)
    inside[:, 1:-1, 1:-1] = _normal(2, 5, 3)
    full = _normal(2, 7, 5)
    for element, opposite in zip(group, reversed(group), strict=True):
        assert torch.equal(opposite(element(inside)), inside)
        assert torch.equal(opposite(element(full)), full) == _is_identity(element)
    down = next(element for element in group if element.name == "shift by (1, 0)")
    assert torch.equal(down(full)[:, 1:], full[:, :-1])
    assert not bool(down(full)[:, 0].any())


def test_elements_refuse_other_shapes() -> None:
    with pytest.raises(ShapeError, match=r"expected sizes \(5, 5\) on the axes \(-2, -1\).*got \(5, 3\)"):
        rotations(5)[1](_normal(5, 3))
    with pytest.raises(ShapeError, match=r"got \(4,\)"):
        permutations(4)[1](_normal(4))
    for axes in ((-1, -2), (-3, -1), (0, 1)):
        with pytest.raises(ValueError, match="expected consecutive axes"):
            Element(name="", order=(1, 0), sizes=(2, 1), axes=axes)


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().double().eval()


def test_the_error_of_a_small_example() -> None:
    """Cumulative sums of (1, 2) are (1, 3), and of (2, 1) they are (2, 3) instead of (3, 1)."""
    x, swap = torch.tensor([[1.0], [2.0]]), permutations(2)[1:]
    result = equivariance(lambda x: x.cumsum(dim=0), x, swap)
    assert (result.kind, result.elements, result.worst) == ("equivariance", 1, "permutation (1 0)")
    assert result.largest == result.mean == pytest.approx(math.sqrt(5 / 10))
    assert result.control == pytest.approx(math.sqrt(1 / 10))
    both = equivariance(lambda x: x.cumsum(dim=0), x, permutations(2))
    assert (both.largest, both.mean, both.elements) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5) / 2, 2))
    last = invariance(lambda x: x.cumsum(dim=0), x, permutations(2), other=torch.tensor([[2.0], [2.0]]))
    assert (last.kind, last.worst) == ("invariance", "permutation (1 0)")
    assert (last.largest, last.mean) == pytest.approx((math.sqrt(0.1), math.sqrt(0.1) / 2))
    assert last.control == pytest.approx(math.sqrt(2 / 10))


@pytest.mark.parametrize(
    ("operator", "equivariant", "invariant"),
    [
        (lambda x: x.softmax(dim=-2), True, False),
        (lambda x: x - x.mean(dim=-2, keepdim=True), True, False),
        (lambda x: x.sum(dim=-2, keepdim=True).expand_as(x), True, True),
        (lambda x: x.sort(dim=-2).values, False, True),
        (lambda x: x.cumsum(dim=-2), False, False),
        (lambda x: x + torch.arange(5.0)[:, None], False, False),
        (_seeded(lambda: nn.Linear(3, 7)), True, False),
        (_seeded(lambda: nn.TransformerEncoderLayer(3, 1, 7, batch_first=True)), True, False),
    ],
)
def test_planted_symmetries_are_found(operator: Callable[..., Tensor], equivariant: bool, invariant: bool) -> None:
    x = _normal(5, 3)
    moved, unmoved = equivariance(operator, x, permutations(5)), invariance(operator, x, permutations(5))
    assert (moved.largest < 1e-14) == equivariant
    assert (unmoved.largest < 1e-14) == invariant
    assert (moved.largest > 0.05) != equivariant
    assert (unmoved.largest > 0.05) != invariant
    assert unmoved.control > 0.05
    # If all rows of the output are equal, every order is right, and the control is small.
    assert (moved.control > 0.05) == (not (equivariant and invariant))


def test_the_control_is_zero_for_a_constant_operator() -> None:
    x = _normal(5, 3)
    for constant in (torch.zeros_like(x), torch.ones_like(x)):
        for report in (
            equivariance(lambda _, c=constant: c, x, permutations(5)),
            invariance(lambda _, c=constant: c, x, permutations(5)),
        ):
            assert (report.largest, report.control) == (0, 0)


def test_the_worst_element_is_named() -> None:
    ramp = torch.arange(3.0)[:, None]
    assert equivariance(lambda x: x + ramp, _normal(2, 3, 5), flips(3, 5)[:3]).worst == "flip up-down"
    assert equivariance(lambda x: x + ramp, _normal(2, 3, 5), flips(3, 5)[::2]).largest < 1e-15


def test_operands_may_have_different_actions() -> None:
    q, k, v = _normal(7, WIDTH, seed=1), _normal(11, WIDTH, seed=2), _normal(11, VALUES, seed=3)
    p, r, s = permutations(7, seed=1)[0], permutations(11, seed=2)[0], permutations(11, seed=3)[0]

    def error(*operands: Element | None, output: Element | None) -> float:
        return equivariance(softmax_attention, (q, k, v), [Action(name="", operands=operands, output=output)]).largest

    assert error(p, r, r, output=p) < 1e-15
    assert error(p, None, None, output=p) < 1e-15
    assert error(None, r, r, output=None) < 1e-15
    assert error(p, r, s, output=p) > 0.1
    assert error(p, r, r, output=None) > 0.1
    assert error(None, r, None, output=None) > 0.1


def test_relative_errors_at_zero() -> None:
    zero, one = torch.zeros(2, 3), torch.ones(2, 3)
    assert float(relative_error(zero, zero)) == 0
    assert math.isinf(float(relative_error(one, zero)))
    assert relative_error(one, torch.stack([one[0], 2 * one[0]]), leading=1).tolist() == [0, 0.5]


def test_modules_are_unchanged_and_operands_are_checked() -> None:
    layer, x = nn.Linear(3, 3).double(), _normal(5, 3)
    equivariance(layer, x, permutations(5))
    assert all(p.grad is None and p.requires_grad for p in layer.parameters())
    with pytest.raises(ValueError, match="at least one element"):
        equivariance(layer, x, ())
    with pytest.raises(ValueError, match="act on 1 operands; got 2 actions"):
        invariance(layer, x, [Action(name="both", operands=(None, None))])
    embedding = nn.Embedding(13, 3)
    with pytest.raises(ValueError, match=r"expected floating operands.*got torch.int64. Pass `other`"):
        invariance(lambda ids: embedding(ids).sum(dim=0), torch.arange(5)[:, None], permutations(5))
    ids = torch.arange(5)[:, None]
    assert invariance(lambda ids: embedding(ids).sum(dim=0), ids, permutations(5), other=ids + 7).control > 0.1


def _call(*, seed: int = 0, **changed: Any) -> Heads:
    q, k = (_normal(BATCH, HEADS, TOKENS, WIDTH, seed=seed + i) for i in range(2))
    v = _normal(BATCH, HEADS, TOKENS, VALUES, seed=seed + 2)
    return Heads(layer=0, name="layer", **({"q": q, "k": k, "v": v, "out": v, "scale": SCALE} | changed))


def _found(*calls: Heads, seed: int = 0, draws: int = 3) -> list[Finding]:
    measurement = Measured(make_theory(draws=draws), seed=seed)
    for call in calls:
        measurement.feed(call)
    return judge(measurement.findings())


CAUSAL = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
PADDED = torch.arange(TOKENS).lt(7).expand(BATCH, 1, 1, TOKENS)
KEEPS = {
    "plain": {},
    "single precision": {name: getattr(_call(), name).float() for name in ("q", "k", "v", "out")},
    "padding": {"mask": PADDED},
    "padding, each query": {"mask": (PADDED & torch.ones(TOKENS, 1, dtype=torch.bool))},
    "padding, padded queries blind": {"mask": PADDED & PADDED.mT},
    "padding by head": {"mask": torch.arange(TOKENS).lt(torch.tensor([5, 7, 11])[:, None])[None, :, None]},
    "soft cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.0, 3.0, -3.0])},
    "one bias for all": {"bias": torch.full((1, 1, 1, 1), 0.7)},
}
BREAKS = {
    "causal": {"mask": CAUSAL},
    "causal and padding": {"mask": CAUSAL & PADDED},
    "window": {"mask": CAUSAL.triu(-3) | CAUSAL.mT.tril(3)},
    "bias of places": {"bias": _normal(1, HEADS, TOKENS, TOKENS, seed=9)},
    "bias of keys": {"bias": 3 * _normal(1, 1, 1, TOKENS, seed=9)},
}


@pytest.mark.parametrize("case", KEEPS)
def test_heads_that_do_not_use_positions_are_supported(case: str) -> None:
    for finding in _found(_call(**KEEPS[case])):
        assert finding.value < 1e-14
        assert finding.closest_control.value > 0.5
        assert finding.verdict is Verdict.TRUE_BY_CONSTRUCTION
        assert finding.agreement == pytest.approx(1)
        assert (finding.inputs, finding.skipped, finding.closest_control.draws) == (BATCH, 0, 3)


@pytest.mark.parametrize("case", BREAKS)
def test_heads_that_use_positions_are_not(case: str) -> None:
    for finding in _found(_call(**BREAKS[case])):
        assert finding.value > 0.1
        assert finding.agreement < 0.9
        if "mask" in BREAKS[case]:  # whatever the head computes
            assert finding.verdict is Verdict.NOT_APPLICABLE
            assert "as a causal mask does" in finding.reason
        else:
            assert finding.verdict in {Verdict.PARTLY_SUPPORTED, Verdict.NO_EVIDENCE}


def test_the_value_is_the_mean_over_permutations() -> None:
    """For three tokens all five permutations are used, so nothing depends on the seed."""
    three = {name: getattr(_call(), name)[..., :3, :] for name in ("q", "k", "v", "out")}
    mask, bias = CAUSAL[..., :3, :3], _normal(1, HEADS, 3, 3, seed=9)
    sinks = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    call = _call(**three, mask=mask, bias=bias, softcap=1.5, sinks=sinks)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return slow_softmax_attention(q, k, v, mask=mask, bias=bias, scale=SCALE, softcap=1.5, sinks=sinks)

    plain = attend(call.q, call.k, call.v)
    errors = []
    for order in list(orders(range(3)))[1:]:
        moved = attend(*(x[..., list(order), :] for x in (call.q, call.k, call.v)))
        errors.append((moved - plain[..., list(order), :]).norm(dim=(-2, -1)) / plain.norm(dim=(-2, -1)))
    expected = torch.stack(errors).mean(dim=0)
    for seed in (0, 1):
        result = _found(call, seed=seed, draws=5)
        assert [f.value for f in result] == pytest.approx(expected.mean(dim=0).tolist(), rel=1e-12)
        assert all(f.value > 0.1 for f in result)


BY_DEFINITION = {
    "causal": {"mask": CAUSAL},
    "a query without keys": {"mask": CAUSAL & torch.arange(TOKENS).ne(3)[:, None]},
    "bias": {"bias": _normal(1, HEADS, TOKENS, TOKENS, seed=9)},
    "causal with sinks": {"mask": CAUSAL, "sinks": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)},
    "causal with a soft cap": {"mask": CAUSAL, "softcap": 1.5},
    "causal with a bias": {"mask": CAUSAL, "bias": _normal(1, 1, TOKENS, TOKENS, seed=9)},
    "hidden scores of a thousand": {"mask": CAUSAL, "scale": 2000.0},
    "plain": {},
}


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("case", BY_DEFINITION)
def test_samples_are_those_of_attention_on_permuted_tokens(
    case: str, controls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim moves masks and biases instead, computes scores once, and a few heads at a time."""
    call = _call(**BY_DEFINITION[case])
    theory = make_theory()
    for at_once in (2 * TOKENS**2, 2**18):
        monkeypatch.setattr("clearhead.theories.example.AT_ONCE", at_once)
        [[(example, rng)], *_] = make_examples(
            call, theory.windows, first=0, seed=0, controls=controls, per_audit=Cache()
        )
        group = random_permutations(
            TOKENS,
            draws=3 if controls else 1,
            seed=int(torch.randint(2**62, (), generator=Random(0, 0, 1).torch)),
        )
        operands = example.q, example.k, example.v
        options = {name: getattr(example, name) for name in ("mask", "bias", "scale", "softcap", "sinks")}
        outputs = [softmax_attention(*(g(x) for x in operands), **options) for g in group]
        plain = softmax_attention(*operands, **options)
        moved = [g(plain) for g in group]
        error, control = (
            torch.stack([relative_error(*pair, leading=1) for pair in zip(outputs, expected, strict=True)])
            for expected in (moved, [*moved[1:], moved[0]])  # the control moves them by the next element
        )
        [sample] = theory.measure(example, rng).values()
        assert sample.value.tolist() == pytest.approx(error.mean(dim=0).tolist(), rel=1e-11, abs=1e-14)
        if controls:
            [of_sample] = sample.controls.values()
            assert of_sample.flatten().tolist() == pytest.approx(control.flatten().tolist(), rel=1e-11)
        else:
            assert not sample.controls
        assert (sample.value > 0.1).all() == (case != "plain")


def test_the_contents_of_padding_do_not_matter() -> None:
    call = _call(mask=CAUSAL & PADDED)
    for name in ("q", "k", "v"):
        getattr(call, name)[..., 7:, :] = torch.nan
    names = ("q", "k", "v", "out")
    short = _call(**{name: getattr(_call(), name)[..., :7, :] for name in names}, mask=CAUSAL[..., :7, :7])
    assert [f.value for f in _found(call)] == pytest.approx([f.value for f in _found(short)], rel=1e-12)
    assert _found(call)[0].value != pytest.approx(_found(_call(mask=CAUSAL))[0].value, rel=1e-3)


def test_batches_windows_and_seeds() -> None:
    call = _call(bias=_normal(1, HEADS, TOKENS, TOKENS, seed=9))
    names = ("q", "k", "v", "out")
    parts = [
        dataclasses.replace(call, **{name: getattr(call, name)[part] for name in names})
        for part in (slice(0, 3), slice(3, None))
    ]
    together, apart = _found(call), _found(*parts)
    for a, b in zip(together, apart, strict=True):
        assert (a.value, a.closest_control.value) == pytest.approx((b.value, b.closest_control.value), rel=1e-12)
        assert a.p_value == pytest.approx(b.p_value, rel=1e-6)
    windows = _found(dataclasses.replace(call, windows=BATCH))
    assert (windows[0].inputs, windows[0].verdict) == (1, Verdict.UNDECIDED)
    assert together == _found(call) != _found(call, seed=1)


def test_query_heads_that_share_keys_are_measured_separately() -> None:
    shared = {name: getattr(_call(), name)[:, :1].expand(-1, HEADS, -1, -1) for name in ("k", "v")}
    result = _found(_call(**shared, groups=HEADS, mask=CAUSAL))
    assert len({f.value for f in result}) == HEADS
    assert [f.verdict for f in _found(_call(**shared, groups=HEADS))] == [Verdict.TRUE_BY_CONSTRUCTION] * HEADS


def test_masks_and_biases_that_differ_between_heads_and_inputs() -> None:
    mask = torch.ones(BATCH, HEADS, TOKENS, TOKENS, dtype=torch.bool)
    mask[:, 1] = CAUSAL[0, 0]
    verdicts = [f.verdict for f in _found(_call(mask=mask))]
    assert verdicts == [Verdict.SUPPORTED, Verdict.NOT_APPLICABLE, Verdict.SUPPORTED]
    bias = torch.zeros(BATCH, HEADS, TOKENS, TOKENS, dtype=torch.float64)
    bias[:, 2] = _normal(TOKENS, TOKENS, seed=9)
    values = [f.value > 0.1 for f in _found(_call(bias=bias))]
    assert values == [False, False, True]
    last_is_causal = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool)
    last_is_causal[-1] = CAUSAL[0]
    assert 0.1 / BATCH < _found(_call(mask=last_is_causal))[0].value < _found(_call(mask=CAUSAL))[0].value / 3


def test_every_input_has_its_own_permutations() -> None:
    same = {name: getattr(_call(), name)[:1].expand(BATCH, -1, -1, -1) for name in ("q", "k", "v", "out")}
    result = _found(_call(**same, mask=CAUSAL))[0]
    assert result.interval.high - result.interval.low > 1e-3


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {name: _normal(BATCH, HEADS, 13, width) for name, width in (("k", WIDTH), ("v", VALUES))},
            "cross-attention has two token sets",
        ),
        ({"mask": torch.arange(TOKENS).lt(2).expand(1, 1, 1, TOKENS)}, "fewer than 3 tokens"),
        ({"q": torch.full((BATCH, HEADS, TOKENS, WIDTH), torch.inf, dtype=torch.float64)}, "not finite"),
        ({"v": torch.ones(BATCH, HEADS, TOKENS, VALUES, dtype=torch.float64)}, "outputs that do not differ"),
        ({"v": torch.zeros(BATCH, HEADS, TOKENS, VALUES, dtype=torch.float64)}, "outputs that do not differ"),
    ],
)
def test_reasons_why_the_claim_does_not_apply(changed: dict[str, Any], reason: str) -> None:
    for finding in _found(_call(**changed)):
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert reason in finding.reason
        assert (finding.inputs, finding.skipped) == (0, BATCH)
        assert np.isnan(finding.value)


def test_three_tokens_suffice_and_one_draw_does_not() -> None:
    assert (
        _found(_call(mask=torch.arange(TOKENS).lt(3).expand(1, 1, 1, TOKENS)))[0].verdict
        is Verdict.TRUE_BY_CONSTRUCTION
    )
    with pytest.raises(ValueError, match="at least 2 draws"):
        make_theory(draws=1)

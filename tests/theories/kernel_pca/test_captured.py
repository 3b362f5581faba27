"""Captured variance on heads with known results."""

import dataclasses
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.heads import Heads
from clearhead.operators.kernel_pca import kernel_pca
from clearhead.theories.example import Random
from clearhead.theories.kernel_pca import CAPTURED, Draws, captured_variance, make_theory
from clearhead.theories.kernel_pca import captured as captured_module
from clearhead.theories.kernel_pca.captured import captured_by_head
from tests.measured import Measured
from tests.noise import rounding_tolerance

BATCH, HEADS, TOKENS, WIDTH, VALUES = 7, 3, 23, 11, 5
SCALE = WIDTH**-0.5


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _call(v: Tensor | None = None, *, seed: int = 0, **changed: Any) -> Heads:
    k = _normal(BATCH, HEADS, TOKENS, WIDTH, seed=seed)
    v = _normal(BATCH, HEADS, TOKENS, VALUES, seed=seed + 1) if v is None else v
    given = {"q": k, "k": k, "v": v, "out": changed.get("v", v), "scale": SCALE} | changed
    return Heads(layer=0, name="layer", **given)


def _shortened(call: Heads, tokens: slice) -> Heads:
    names = ("q", "k", "v", "out")
    return dataclasses.replace(call, **{name: getattr(call, name)[..., tokens, :] for name in names})


def _found(*calls: Heads, seed: int = 0, draws: int = 20) -> list[Finding]:
    random_only = Draws(random_values=draws, random_map=0, permuted=0, other_heads=0)
    measurement = Measured(make_theory(claims=[CAPTURED], draws=random_only), seed=seed)
    for call in calls:
        measurement.feed(call)
    return [finding for finding in judge(measurement.findings()) if finding.claim is CAPTURED]


@given(st.integers(8, 29), st.integers(2, 13), st.integers(1, 5), st.integers(0, 2**31))
def test_one_for_the_theorems_values_and_their_mixes_and_less_for_others(n: int, d: int, e: int, seed: int) -> None:
    k, v, mix = _normal(n, d, seed=seed), _normal(n, e, seed=seed + 1), _normal(e, e, seed=seed + 2)
    exact = kernel_pca(k, scale=d**-0.5, axes=e).values
    for same in (
        exact,
        -exact,
        exact.flip(-1),
        exact @ torch.linalg.qr(mix)[0],
        exact @ (mix + 3 * torch.eye(e)),
        1e9 * exact,
    ):
        assert float(captured_variance(k, same, scale=d**-0.5)) == pytest.approx(1, abs=1e-9)
    assert float(captured_variance(k, v, scale=d**-0.5)) < 1 - 1e-6


@given(st.integers(0, 2**31))
def test_tokens_in_another_order_change_nothing(seed: int) -> None:
    k, v = _normal(TOKENS, WIDTH, seed=seed), _normal(TOKENS, VALUES, seed=seed + 1)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(seed))
    plain = float(captured_variance(k, v, scale=SCALE))
    assert float(captured_variance(k[order], v[order], scale=SCALE)) == pytest.approx(plain, rel=1e-9)
    assert float(captured_variance(k[order], v, scale=SCALE)) != pytest.approx(plain, rel=1e-6)


def test_long_keys_that_overflow_every_exponential_stay_finite() -> None:
    k, v = 40 * _normal(TOKENS, WIDTH, seed=0), _normal(TOKENS, VALUES, seed=1)
    value = float(captured_variance(k, v, scale=SCALE))
    assert np.isfinite(value)
    assert 0 <= value <= 1


def _in_many_digits(k: Tensor, v: Tensor, scale: float) -> float:
    """Return EV(V) by its definition, tr[(V'EV)^-1 B'HB], B = E V / g, over the centred Gram's top eigenvalues."""
    with mpmath.workdps(450):
        keys, values = mpmath.matrix(k.tolist()), mpmath.matrix(v.tolist())
        n, e = v.shape
        kernel = (mpmath.mpf(scale) * keys * keys.T).apply(mpmath.exp)
        g = [mpmath.fsum(kernel[i, j] for j in range(n)) for i in range(n)]
        product = kernel * values
        held = values.T * product
        for j in range(e):
            column = [product[i, j] / g[i] for i in range(n)]
            for i in range(n):
                product[i, j] = column[i] - mpmath.fsum(column) / n
        trace = mpmath.fsum((held**-1 * (product.T * product))[j, j] for j in range(e))
        top = max(kernel[i, i] / g[i] ** 2 for i in range(n))
        gram = np.array([[float(kernel[i, j] / g[i] / g[j] / top) for j in range(n)] for i in range(n)])
        centring = np.eye(n) - 1 / n
        return float(trace / top / float(np.linalg.eigvalsh(centring @ gram @ centring)[-e:].sum()))


def _with_long_keys(count: int, size: float, *, tokens: int = 17) -> tuple[Tensor, Tensor]:
    """Return short keys with `count` long ones among them, of scale |k|^2 = size."""
    k, v = 0.5 * _normal(tokens, WIDTH, seed=count), _normal(tokens, VALUES, seed=int(size))
    chosen = torch.arange(count) * (tokens // max(count, 1))
    k[chosen] *= (size / SCALE) ** 0.5 / k[chosen].norm(dim=-1, keepdim=True)
    return k, v


@pytest.mark.parametrize("size", [60, 80, 120, 160, 400])
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_a_few_long_keys_agree_with_many_digits(count: int, size: float) -> None:
    k, v = _with_long_keys(count, size)
    want = _in_many_digits(k, v, SCALE)
    assert float(captured_variance(k, v, scale=SCALE)) == pytest.approx(want, rel=1e-9, abs=0)
    assert want > 0.01 or count > VALUES


@pytest.mark.parametrize("spread", [47, 86, 134, 212])
def test_lengths_that_fall_steadily_agree_with_many_digits(spread: float) -> None:
    """As in trained decoders: no gap separates long keys from short ones, and the share becomes tiny."""
    k, v = _normal(TOKENS, WIDTH, seed=3), _normal(TOKENS, VALUES, seed=4)
    k *= (torch.linspace(0.1, spread, TOKENS, dtype=torch.float64)[:, None] / SCALE).sqrt() / k.norm(
        dim=-1, keepdim=True
    )
    want = _in_many_digits(k, v, SCALE)
    assert float(captured_variance(k, v, scale=SCALE)) == pytest.approx(want, rel=1e-9, abs=0)


@pytest.mark.parametrize("kind", ["zero rows", "equal rows", "rows of other sizes", "equal keys", "columns alike"])
def test_long_keys_whose_values_or_directions_coincide(kind: str) -> None:
    k, v = _with_long_keys(4, 120)
    first, second = 0, 4
    match kind:
        case "zero rows":
            v[[first, second]] = 0
        case "equal rows":
            v[second] = v[first]
        case "rows of other sizes":
            v[first], v[second] = 1e-20 * v[first], 1e-9 * v[second]
        case "equal keys":
            k[second] = k[first]
        case "columns alike":
            v[:, 1] = v[:, 0] + 1e-4 * v[:, 1]
    want = _in_many_digits(k, v, SCALE)
    assert float(captured_variance(k, v, scale=SCALE)) == pytest.approx(want, rel=1e-6, abs=0)


@pytest.mark.parametrize("kind", ["zero", "equal", "mixed"])
def test_dependent_columns_add_no_variance(kind: str) -> None:
    k, v = _with_long_keys(3, 160)
    best = float(captured_variance(k, v[:, 1:], scale=SCALE))
    changed = v.clone()
    changed[:, 0] = {"zero": 0 * v[:, 1], "equal": v[:, 1], "mixed": 2 * v[:, 1] - 3 * v[:, 4]}[kind]
    g = torch.logsumexp(SCALE * k @ k.T, dim=-1)
    phi = (SCALE * k @ k.T - g[:, None] - g[None, :]).exp()
    centring = torch.eye(len(k), dtype=torch.float64) - 1 / len(k)
    energy = torch.linalg.eigvalsh(centring @ phi @ centring).flip(-1)
    fewer = float(energy[: VALUES - 1].sum() / energy[:VALUES].sum())
    assert float(captured_variance(k, changed, scale=SCALE)) == pytest.approx(best * fewer, rel=1e-9)


def test_long_keys_do_not_hide_the_values() -> None:
    call = _call()
    call.k[:, :, 5] *= 12
    for finding, h in zip(_found(call), range(HEADS), strict=True):
        one = captured_variance(call.k[:, h], call.v[:, h], scale=SCALE)
        assert finding.value == pytest.approx(float(one.mean()), rel=1e-9)
        assert finding.value > 0.05
        assert finding.closest_control.value > 0.05


@pytest.mark.parametrize(("size", "error"), [(1e-2, 1e-9), (1e-4, 1e-6), (1e-6, 0.02)])
def test_short_keys_lose_digits_as_their_kernel_nears_one(size: float, error: float) -> None:
    """Such keys differ only in exp(s x.y) - 1, which float64 represents to eps / size^2."""
    k, v = size * _normal(17, WIDTH, seed=0), _normal(17, VALUES, seed=1)
    assert float(captured_variance(k, v, scale=SCALE)) == pytest.approx(_in_many_digits(k, v, SCALE), rel=error)


def test_float32_input_is_computed_in_float64() -> None:
    k, v = 2 * _normal(TOKENS, WIDTH, seed=0), _normal(TOKENS, VALUES, seed=1)
    exact = float(captured_variance(k.float().double(), v.float().double(), scale=SCALE))
    assert float(captured_variance(k.float(), v.float(), scale=SCALE)) == exact


def test_a_planted_head_is_supported_and_a_random_one_is_not() -> None:
    call = _call()
    planted = call.v.clone()
    planted[:, 1] = kernel_pca(call.k[:, 1], scale=SCALE, axes=VALUES).values
    result = _found(_call(planted))
    assert [finding.verdict for finding in result] == [Verdict.NO_EVIDENCE, Verdict.SUPPORTED, Verdict.NO_EVIDENCE]
    assert result[1].agreement == pytest.approx(1)
    assert result[0].closest_control.value == pytest.approx(result[1].closest_control.value, abs=0.1)
    assert result[0].closest_control.range.low < result[0].value < result[0].closest_control.range.high


def test_the_false_positive_rate_for_random_heads_is_5_percent() -> None:
    k = _normal(12, 40, TOKENS, WIDTH, seed=5)
    v = _normal(12, 40, TOKENS, VALUES, seed=6)
    result = _found(Heads(layer=0, name="layer", q=k, k=k, v=v, out=v, scale=SCALE))
    rejected = sum(finding.p_value <= 0.05 for finding in result)
    # 40 heads at 5 %: two expected, and more than seven with probability 0.001.
    assert rejected <= 7
    assert sum(finding.verdict is not Verdict.NO_EVIDENCE for finding in result) <= 2


def test_how_inputs_are_batched_does_not_matter() -> None:
    call = _call()
    parts = [
        dataclasses.replace(call, q=call.q[s], k=call.k[s], v=call.v[s], out=call.out[s])
        for s in (slice(0, 2), slice(2, None))
    ]
    together, apart = _found(call), _found(*parts)
    for a, b in zip(together, apart, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12)
        assert a.closest_control.value == pytest.approx(b.closest_control.value, rel=1e-12)
        assert a.p_value == pytest.approx(b.p_value, rel=1e-6)
    assert together[0].inputs == BATCH


def test_the_seed_changes_only_the_controls() -> None:
    first, again, other = _found(_call()), _found(_call()), _found(_call(), seed=1)
    assert first == again
    assert first[0].value == other[0].value
    assert first[0].closest_control.value != other[0].closest_control.value


def test_padding_does_not_count() -> None:
    call = _call()
    mask = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool)
    mask[..., 17:] = False
    noise = 100 * _normal(BATCH, HEADS, TOKENS - 17, WIDTH, seed=9)
    padded = dataclasses.replace(call, k=torch.cat([call.k[..., :17, :], noise], dim=-2), mask=mask)
    short = _shortened(call, slice(0, 17))
    for a, b in zip(_found(padded), _found(short), strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12)
    assert _found(dataclasses.replace(padded, mask=None))[0].value != pytest.approx(_found(short)[0].value, rel=1e-3)


def test_under_a_causal_mask_the_last_query_is_used() -> None:
    causal = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    assert [f.value for f in _found(_call(mask=causal))] == [f.value for f in _found(_call())]
    window = causal & ~causal.tril(-13)
    last = _found(_shortened(_call(), slice(-13, None)))
    assert _found(_call(mask=window))[0].value == pytest.approx(last[0].value, rel=1e-12)


def test_masks_that_differ_between_heads() -> None:
    mask = torch.ones(1, HEADS, 1, TOKENS, dtype=torch.bool)
    mask[:, 1, :, 13:] = False
    result = _found(_call(mask=mask))
    whole, short = _found(_call()), _found(_shortened(_call(), slice(0, 13)))
    assert result[0].value == pytest.approx(whole[0].value, rel=1e-12)
    assert result[1].value == pytest.approx(short[1].value, rel=1e-12)


def test_query_heads_that_share_keys_share_the_number() -> None:
    k, v = _normal(BATCH, 2, TOKENS, WIDTH, seed=0), _normal(BATCH, 2, TOKENS, VALUES, seed=1)
    k, v = k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)
    call = Heads(layer=0, name="layer", q=k, k=k, v=v, out=v, scale=SCALE)
    grouped = _found(dataclasses.replace(call, groups=3))
    assert len(grouped) == 6
    assert [f.value for f in grouped] == pytest.approx([f.value for f in _found(call)], rel=1e-12)
    assert grouped[0].value == grouped[2].value != grouped[3].value


def test_windows_of_one_input_count_once() -> None:
    result = _found(_call(windows=7))
    assert result[0].inputs == 1
    assert result[0].verdict is Verdict.UNDECIDED
    assert result[0].value == pytest.approx(_found(_call())[0].value, rel=1e-12)


def test_a_sink_is_a_key_without_a_value() -> None:
    """An additional key, orthogonal to all others and as strong as the sink, changes g in the same way."""
    call = _call()
    sinks = torch.tensor([0.0, 3.0, -30.0], dtype=torch.float64)
    result, plain = _found(dataclasses.replace(call, sinks=sinks)), _found(call)
    assert result[2].value == pytest.approx(plain[2].value, rel=1e-9)
    assert result[1].value != pytest.approx(plain[1].value, rel=1e-3)
    kernel = (SCALE * call.k[0, 1] @ call.k[0, 1].T).exp()
    g = kernel.sum(-1) + sinks[1].exp()
    gram = kernel / g[:, None] / g[None, :]
    w = g[:, None] * call.v[0, 1]
    centring = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    held = torch.linalg.pinv(w.T @ gram @ w) @ w.T @ gram @ centring @ gram @ w
    most = torch.linalg.eigvalsh(centring @ gram @ centring)[-VALUES:].sum()
    one = captured_variance(call.k[0, 1:2], call.v[0, 1:2], scale=SCALE, sinks=sinks[1:2])
    assert float(one) == pytest.approx(float(held.trace() / most), rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bias": torch.ones(1, HEADS, TOKENS, TOKENS, dtype=torch.float64)}, "bias"),
        ({"softcap": 30.0}, "capped"),
        ({"v": _normal(BATCH, HEADS, TOKENS, TOKENS, seed=1)}, "at most 23 tokens, whose variance any 23 axes capture"),
        ({"k": torch.full((BATCH, HEADS, TOKENS, WIDTH), torch.nan, dtype=torch.float64)}, "not finite"),
    ],
)
def test_reasons_why_the_claim_does_not_apply(changed: dict[str, Any], reason: str) -> None:
    result = _found(_call(**changed))
    assert len(result) == HEADS
    for finding in result:
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert reason in finding.reason
        assert (finding.inputs, finding.skipped) == (0, BATCH)
        assert np.isnan(finding.value)


def test_equal_keys_have_no_variance_to_capture() -> None:
    assert torch.isnan(captured_variance(torch.ones(TOKENS, WIDTH), torch.randn(TOKENS, VALUES), scale=SCALE))
    assert torch.isnan(captured_variance(torch.ones(1, WIDTH), torch.randn(1, 1), scale=SCALE))
    call = _call()
    call.k[2, 1] = 0.5
    result = _found(call)
    assert [f.inputs for f in result] == [BATCH, BATCH - 1, BATCH]
    assert result[1].reason == "keys or values without variance"


def test_values_of_too_many_dimensions_would_always_capture_everything() -> None:
    """Short inputs are left out because random values capture everything there."""
    k = _normal(TOKENS, WIDTH, seed=0)
    assert float(captured_variance(k, _normal(TOKENS, TOKENS, seed=1), scale=SCALE)) == pytest.approx(1, abs=1e-9)
    assert float(captured_variance(k, _normal(TOKENS, TOKENS - 1, seed=1), scale=SCALE)) < 0.99


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("sink", [None, 2.5])
def test_products_of_matrices_give_the_captured_variance(size: float, sink: float | None) -> None:
    """Long keys make the axes nearly dependent, so that the largest size needs the careful way.

    Columns of values that nearly agree turn by 1e7 times the rounding of their entries, and so does their span: there
    the tolerance is that of noise in the last bit.
    """
    k, values = size * _normal(TOKENS, WIDTH, seed=1), _normal(4, TOKENS, VALUES, seed=2)
    values[1] *= 1e-9
    values[2, :, 1] = values[2, :, 0] + 1e-7 * values[2, :, 1]
    keys = torch.stack([k, 0.5 * k.flip(0), k])
    sinks = None if sink is None else torch.tensor([sink, 1.0, 5.0], dtype=torch.float64)
    captured = captured_by_head(keys, lambda head: values.mT * (head + 1), scale=SCALE, sinks=sinks)
    assert captured.shape == (4, 3)
    for head in range(3):
        of_head = None if sinks is None else sinks[head : head + 1]

        def expected(v: torch.Tensor, head: int = head, sinks: torch.Tensor | None = of_head) -> torch.Tensor:
            return captured_variance(keys[head : head + 1], v[None], scale=SCALE, sinks=sinks)

        for draw, v in enumerate(values):
            number = float(expected(v))
            within = max(1e-8 * number, rounding_tolerance(expected, v) if draw == 2 else 0.0)
            assert float(captured[draw, head]) == pytest.approx(number, rel=0, abs=within)
    if size <= 1:
        assert captured[:, 1].tolist() != pytest.approx(captured[:, 0].tolist(), rel=1e-3)


def test_heads_do_not_depend_on_how_many_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    k, values = _normal(5, TOKENS, WIDTH, seed=1), _normal(5, 2, VALUES, TOKENS, seed=2)
    together = captured_by_head(k, lambda head: values[head], scale=SCALE)
    monkeypatch.setattr(captured_module, "AT_ONCE", 2 * TOKENS**2)
    torch.testing.assert_close(captured_by_head(k, lambda head: values[head], scale=SCALE), together)


def test_products_of_matrices_need_variance_of_the_keys_and_ignore_zero_columns() -> None:
    values = _normal(TOKENS, 2, VALUES, seed=2)
    nearly = torch.ones(TOKENS, WIDTH, dtype=torch.float64) + 1e-8 * _normal(TOKENS, WIDTH, seed=3)
    for equal in (torch.ones(TOKENS, WIDTH, dtype=torch.float64), nearly):
        for width in (1, VALUES):
            assert captured_variance(equal, values[:, 0, :width], scale=SCALE).isnan()
            of_equal = values[..., :width].permute(1, 2, 0)
            assert captured_by_head(equal[None], lambda head, v=of_equal: v, scale=SCALE).isnan().all()
    values[:, 0, 3] = 0
    k = _normal(TOKENS, WIDTH, seed=1)
    expected = float(captured_variance(k[None], values[None, :, 0], scale=SCALE))
    captured = captured_by_head(k[None], lambda head: values.permute(1, 2, 0), scale=SCALE)
    assert float(captured[0, 0]) == pytest.approx(expected, rel=1e-9)


def test_a_long_input_is_measured_on_a_sample_of_its_tokens() -> None:
    """The number is that of the drawn tokens alone, and the audit says so."""
    n, width = 530, 3
    k, v = _normal(2, 1, n, WIDTH, seed=1), _normal(2, 1, n, width, seed=2)
    call = Heads(layer=0, name="layer", q=k, k=k, v=v, out=v, scale=SCALE)
    no_draws = Draws(random_values=0, random_map=0, permuted=0, other_heads=0)
    measurement = Measured(make_theory(claims=[CAPTURED], draws=no_draws))
    measurement.feed(call)
    [finding] = measurement.findings()
    drawn = []
    for number in (1, 2):
        rows = torch.randperm(n, generator=Random(0, 0, number, 0).torch)[:256]
        drawn.append(float(captured_variance(k[number - 1, :, rows], v[number - 1, :, rows], scale=SCALE)))
    assert finding.value == pytest.approx(np.mean(drawn), rel=1e-8)
    [note] = measurement.notes()
    assert note.startswith("kernel PCA: 256 tokens were drawn from inputs of more than 512 in 2 inputs")
    short = Measured(make_theory(claims=[CAPTURED], draws=no_draws))
    short.feed(_shortened(call, slice(512)))
    assert short.notes() == []

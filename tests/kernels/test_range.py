"""Heads beyond the range of the symmetric form are computed row by row, and all outputs are accurate."""

import dataclasses
import math

import pytest
import torch

from clearhead.kernels.calls import Schedule, attend, attend_backward, pursue, pursue_backward
from clearhead.kernels.library import INSTRUCTIONS, Kernel
from clearhead.numerics.precision import tolerance
from clearhead.operators.softmax import slow_softmax_attention

BIT = math.log(2)
"""A scale that makes half of a key's squared length an exponent of 2."""


def far_row(distance: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys of lengths 0 and sqrt(2 * 107), and a hidden token on the other side of them."""
    k = torch.zeros(1, 1, 3, 5)
    k[0, 0, 1, 0], k[0, 0, 2, 0] = math.sqrt(2 * 107), -distance
    return k, torch.tensor([[[[1.0], [2.0], [3.0]]]]), torch.tensor([[True, True, False]])


@pytest.mark.parametrize(("distance", "plain"), [(1.0, False), (30.0, True)])
def test_a_row_whose_keys_are_all_below_the_exponential_floor_is_exact(
    compiled: Kernel, distance: float, plain: bool
) -> None:
    k, v, visible = far_row(distance)
    attended = attend(compiled, k, v, visible=visible, scale=BIT)
    assert attended.by_row.item() is plain
    exact = slow_softmax_attention(k.double(), k.double(), v.double(), mask=visible[:, None, None], scale=BIT)
    torch.testing.assert_close(attended.out.double(), exact, rtol=tolerance(torch.float32), atol=0)


def test_control_weights_at_the_floor_prefer_the_longer_key() -> None:
    k, v, visible = far_row(30.0)
    exact = slow_softmax_attention(k.double(), k.double(), v.double(), mask=visible[:, None, None], scale=BIT)
    weights = torch.exp2(k.square().sum(-1) / 2)[0, 0, :2]
    at_floor = (weights * v[0, 0, :2, 0]).sum() / weights.sum()
    assert exact[0, 0, 2, 0].item() == pytest.approx(1)
    assert at_floor.item() == pytest.approx(2)


@pytest.mark.parametrize("bits", [19, 23, 28, 29, 31])
def test_outputs_are_averages_for_keys_of_any_length(compiled: Kernel, bits: int) -> None:
    torch.manual_seed(bits)
    k = torch.randn(211, 1, 1, 67)
    k = k / k.norm(dim=-1, keepdim=True) * math.sqrt(2.0 ** (bits + 1))
    k = k * (1 + 1e-7 * torch.randn(211, 1, 17, 67))
    v = torch.rand(211, 1, 17, 3)
    attended = attend(compiled, k, v, visible=None, scale=BIT)
    assert attended.by_row.all()
    out, room = attended.out, tolerance(torch.float32)
    assert bool((out >= v.amin(2, keepdim=True) - room).all())
    assert bool((out <= v.amax(2, keepdim=True) + room).all())


@pytest.mark.parametrize("at", [0, 1, 2, 6])
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_non_finite_key_shows_in_its_row_at_any_position(compiled: Kernel, at: int, strange: float) -> None:
    k, v = torch.zeros(1, 1, 7, 5), torch.rand(1, 1, 7, 3)
    assert not attend(compiled, k, v, visible=None, scale=BIT).by_row.any()
    k[0, 0, 0, 0] = math.sqrt(2 * 602)  # the exponent of its weight would wrap around to a large one
    k[0, 0, at, 2] = strange
    attended = attend(compiled, k, v, visible=None, scale=BIT)
    assert attended.by_row.all()
    assert not attended.out[0, 0, at].isfinite().any()


@pytest.mark.parametrize("strange", [1.0, 1e9, 3e38, math.inf, math.nan])
@pytest.mark.parametrize("where", ["k", "v"])
def test_outputs_are_zero_if_no_token_is_visible(compiled: Kernel, where: str, strange: float) -> None:
    k, v, visible = torch.randn(1, 2, 7, 5), torch.randn(1, 2, 7, 3), torch.zeros(1, 7, dtype=torch.bool)
    (k if where == "k" else v)[0, 1, 2, 1] = strange
    attended = attend(compiled, k, v, visible=visible, scale=BIT)
    assert not attended.by_row.any()
    assert not attended.out.any()
    if math.isfinite(strange) and strange < 1e10:
        to_k, to_v = attend_backward(compiled, torch.randn_like(v), k, v, attended, visible=visible, scale=BIT)
        assert not to_k.any()
        assert not to_v.any()


@pytest.mark.parametrize("tokens", [2, 19, 211])
def test_averages_of_the_largest_floats_are_finite(compiled: Kernel, tokens: int) -> None:
    k, v = torch.zeros(1, 1, tokens, 5), torch.full((1, 1, tokens, 3), 3e38)
    attended = attend(compiled, k, v, visible=None, scale=BIT)
    torch.testing.assert_close(attended.out, v, rtol=tolerance(torch.float32), atol=0)
    expected = torch.full((1, 1, tokens), math.log2(tokens))
    torch.testing.assert_close(attended.totals, expected, rtol=tolerance(torch.float32), atol=0)


@pytest.mark.parametrize("threshold", [0.3, -0.3])
def test_the_gradient_of_a_negative_threshold_is_that_of_clamp(compiled: Kernel, threshold: float) -> None:
    torch.manual_seed(7)
    k, v, gradient = (torch.randn(1, 1, 7, 5) for _ in range(3))
    t = torch.full((1, 1, 7), threshold, dtype=torch.float64, requires_grad=True)
    q = k.double().clamp(-t[..., None], t[..., None])
    (slow_softmax_attention(q, q, v.double(), scale=BIT) * gradient.double()).sum().backward()
    schedule = Schedule(iterations=1, pull=2.0, scale=BIT, visible=None)
    thresholds = t.detach().float()
    pursued = pursue(compiled, k, v, thresholds, schedule, for_gradient=True)
    *_, to_threshold = pursue_backward(compiled, gradient, k, v, thresholds, schedule, pursued)
    assert t.grad is not None
    # The terms of the sum may cancel, so the tolerance is relative to the terms.
    close = tolerance(torch.float32, terms=k.numel()) * float(gradient.norm() * v.norm() * abs(threshold) * BIT)
    torch.testing.assert_close(to_threshold.double(), t.grad, rtol=0, atol=close)


def test_all_supported_instruction_sets_agree(compiled: Kernel) -> None:
    torch.manual_seed(0)
    k, v = torch.randn(2, 3, 131, 23), torch.randn(2, 3, 131, 17)
    k[1, 2] *= 20  # row by row
    exact = slow_softmax_attention(k.double(), k.double(), v.double(), scale=0.2)
    mask = compiled.handle.clearhead_instructions()
    for name, bit in INSTRUCTIONS.items():
        if mask & bit:
            attended = attend(dataclasses.replace(compiled, instructions=name), k, v, visible=None, scale=0.2)
            assert (attended.out - exact).abs().max() <= tolerance(torch.float32, terms=20 * 20 * 23)
            assert attended.by_row.sum() == 1


@pytest.mark.parametrize("causal", [False, True])
def test_all_supported_instruction_sets_agree_on_gradients_and_pursuits(compiled: Kernel, causal: bool) -> None:
    torch.manual_seed(1)
    k, v, gradient = torch.randn(3, 2, 2, 131, 23)
    k[1, 1] *= 20  # row by row
    thresholds, visible = torch.full((2, 2, 131), 0.7), torch.rand(2, 131) > 0.3
    schedule = Schedule(iterations=2, pull=2.0, scale=0.2, visible=visible, causal=causal)
    mask = compiled.handle.clearhead_instructions()
    results = []
    for name in (name for name, bit in INSTRUCTIONS.items() if mask & bit):
        variant = dataclasses.replace(compiled, instructions=name)
        attended = attend(variant, k, v, visible=visible, scale=0.2, causal=causal)
        back = attend_backward(variant, gradient, k, v, attended, visible=visible, scale=0.2, causal=causal)
        pursued = pursue(variant, k, v, thresholds, schedule, for_gradient=True)
        pursued_back = pursue_backward(variant, gradient, k, v, thresholds, schedule, pursued)
        assert attended.by_row.tolist() == [[False, False], [False, True]]
        results.append((attended.out, *back, pursued.out, *pursued_back))
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            # Row-by-row scores of 400 times the usual size multiply rounding errors.
            assert (ours - theirs).norm() <= tolerance(torch.float32, terms=20 * 20 * 23) * theirs.norm()

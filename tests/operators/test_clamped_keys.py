"""The bound of clamped keys: lambda and mu, the keys it is computed from, overflow and causality."""

import math

import pytest
import torch
from torch import Tensor

from clearhead.operators.clamped_keys import KeyBound, KeyMu, Scope, Threshold, Width
from clearhead.operators.pursuit_options import PRESETS, Pursuit
from clearhead.operators.rpc import rpc_attention, trace_pursuit
from clearhead.shapes import ShapeError
from tests.operators.test_symmetric import normal

CAUSAL = torch.ones(13, 13, dtype=torch.bool).tril()
MEAN_SIZE = math.sqrt(2 / math.pi)
"""Mean absolute value of a standard normal number."""


def test_mu_is_one_over_four_times_the_mean_absolute_entry() -> None:
    k = normal(2, 3, 13, 7, dtype=torch.float64)
    mu = 13 * 7 / (4 * k.abs().sum(dim=(-2, -1), keepdim=True))
    torch.testing.assert_close(KeyBound(strength=3.0).compute(k), 3 / mu)
    torch.testing.assert_close(KeyBound(strength=3.0, threshold=Threshold.TIMES_MU).compute(k), 3 * mu)
    torch.testing.assert_close(KeyBound(mu=KeyMu(width=Width.MODEL)).compute_mu(k), 3 * mu)
    torch.testing.assert_close(KeyBound(mu=KeyMu(eps=0.5)).compute_mu(k), mu + 0.5)
    torch.testing.assert_close(KeyBound(strength=3.0, mu=KeyMu(eps=0.5)).compute(k), 3 / (mu + 0.5))
    torch.testing.assert_close(KeyBound(strength=3.0, threshold=lambda lam, mu: lam**2 / mu).compute(k), 9 / mu)
    torch.testing.assert_close(KeyBound(strength=3.0, mu=0.25).compute(k), torch.full((2, 3, 1, 1), 12.0).double())
    torch.testing.assert_close(KeyBound(strength=None).compute(k), 13**-0.5 / mu)


@pytest.mark.parametrize("spread", [0.25, 1.0, 4.0])
def test_presets_have_the_published_scale_behaviour(spread: float) -> None:
    """Relative to the keys' deviation the bound is 12.8 under lambda / mu, and 3.8 over its square under lambda mu."""
    k = spread * normal(4, 3, 197, 64)
    of = {name: float(preset.bound.compute(k).mean()) / spread for name, preset in PRESETS.items()}
    assert of["paper"] == pytest.approx(4 * 4 * MEAN_SIZE, rel=0.01)
    assert of["code-2024-10"] == pytest.approx(4 * 3 / (4 * MEAN_SIZE) / spread**2, rel=0.01)
    assert of["code-2024-08-base"] == pytest.approx(3 * 4 * MEAN_SIZE, rel=0.01)
    assert of["admm"] == pytest.approx(4 * MEAN_SIZE / math.sqrt(197), rel=0.01)
    all_heads = KeyBound(mu=KeyMu(width=Width.MODEL)).compute(k)
    assert float(all_heads.mean()) / spread == pytest.approx(of["paper"] / 3, rel=1e-5)


@pytest.mark.parametrize("threshold", [Threshold.OVER_MU, Threshold.TIMES_MU])
def test_the_bound_of_a_token_uses_its_visible_keys(threshold: Threshold) -> None:
    k = normal(2, 3, 13, 7, dtype=torch.float64)
    there = normal(2, 1, 1, 13, seed=1) > -0.5
    bound = KeyBound(threshold=threshold)
    for mask in (CAUSAL, CAUSAL & there, (CAUSAL & there).expand(2, 3, 13, 13)):
        got = bound.compute(k, mask)
        assert got.shape == (2, 3, 13, 1)
        shown = mask.expand(2, 3, 13, 13)
        for b, h, i in ((0, 0, 12), (1, 2, 5), (1, 1, 7)):
            seen = k[b, h][shown[b, h, i]]
            if len(seen):
                torch.testing.assert_close(got[b, h, i, 0], bound.compute(seen[None, None])[0, 0, 0, 0])


@pytest.mark.parametrize("scope", list(Scope))
def test_without_a_causal_mask_one_bound_excludes_padding(scope: Scope) -> None:
    k, there = normal(2, 3, 13, 7, dtype=torch.float64), torch.arange(13) < 11
    bound = KeyBound(mu=KeyMu(scope=scope))
    got = bound.compute(k, there)
    assert got.shape == (2, 3, 1, 1)
    torch.testing.assert_close(got, bound.compute(k[..., :11, :]))
    spoiled = torch.where(there[:, None], k, torch.nan)
    torch.testing.assert_close(bound.compute(spoiled, there), got)


def test_only_the_prefix_scope_is_causal() -> None:
    k = normal(2, 3, 13, 7, dtype=torch.float64)
    later = torch.cat([k[..., :12, :], 9 * k[..., 12:, :]], dim=-2)
    for scope in Scope:
        bound = KeyBound(mu=KeyMu(scope=scope))
        before, after = (bound.compute(x, CAUSAL).expand(2, 3, 13, 1)[..., :12, :] for x in (k, later))
        assert torch.equal(before, after) == (scope is Scope.PREFIX)
    by_head, by_sample = (KeyBound(mu=KeyMu(scope=scope)).compute(k) for scope in (Scope.HEAD, Scope.SAMPLE))
    torch.testing.assert_close(by_sample, by_head.mean(dim=1, keepdim=True).expand_as(by_head))
    assert not torch.allclose(by_sample, by_head)


@pytest.mark.parametrize("preset", PRESETS)
def test_long_keys_do_not_overflow(preset: str) -> None:
    bound = PRESETS[preset].bound
    large = (8 * normal(1, 2, 197, 64)).half()
    assert large.float().abs().sum(dim=(-2, -1)).amax() > torch.finfo(torch.float16).max  # their sum is not a half
    assert bound.compute(large).isfinite().all()
    for k in (torch.zeros(1, 2, 5, 3), torch.full((1, 2, 5, 3), 1e-30), torch.zeros(1, 2, 0, 3)):
        k.requires_grad_()
        t = bound.compute(k)
        assert t.isfinite().all()
        assert torch.autograd.grad(t.sum(), k)[0].isfinite().all()
    nobody = bound.compute(normal(1, 2, 5, 3), torch.zeros(5, dtype=torch.bool))
    assert nobody.isfinite().all()


@pytest.mark.parametrize("shape", [(331, 331), (2, 3, 331, 331)])
def test_autocast_changes_neither_bound_nor_iterations(shape: tuple[int, ...]) -> None:
    """mu under a causal mask is a matrix product, which autocast would compute in half precision."""
    k, v = normal(2, 3, 331, 7), normal(2, 3, 331, 7, seed=1)
    mask = torch.ones(shape, dtype=torch.bool).tril()
    for pursuit in PRESETS.values():

        def found(pursuit: Pursuit = pursuit) -> tuple[Tensor, ...]:
            trace = trace_pursuit(None, k, v, pursuit=pursuit, mask=mask)
            return (
                trace.bound,
                trace.out,
                trace.steps[-1].diagonal,
                rpc_attention(None, k, v, pursuit=pursuit, mask=mask),
            )

        plain = found()
        with torch.autocast("cpu", torch.bfloat16):
            assert (k @ k.mT).dtype is torch.bfloat16
            cast = found()
        assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


def test_gradients_reach_the_keys_unless_detached() -> None:
    k = normal(2, 3, 13, 7, dtype=torch.float64).requires_grad_()
    for mask in (None, CAUSAL):
        for threshold in Threshold:
            bound = KeyBound(threshold=threshold)
            assert torch.autograd.gradcheck(lambda k, bound=bound, mask=mask: bound.compute(k, mask), k, fast_mode=True)
    assert not KeyBound(mu=KeyMu(detach=True)).compute(k).requires_grad
    mu = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda mu: KeyBound(mu=mu).compute(k.detach()), mu)


def test_wrong_values_raise_a_clear_error(typechecked: bool) -> None:
    def with_shape(mu: Tensor) -> Tensor:
        return KeyBound(mu=mu).compute(normal(2, 3, 5, 7))

    with pytest.raises(ValueError, match=r"strength, lambda, of zero or more; got -1"):
        KeyBound(strength=-1.0)
    with pytest.raises(ValueError, match="mu above zero; got 0"):
        KeyBound(mu=0.0)
    with pytest.raises(ValueError, match="eps of zero or more; got -1"):
        KeyMu(eps=-1.0)
    with pytest.raises(ShapeError, match=r"broadcasts to \(2, 3\).*got mu \(5,\), k \(2, 3, 5, 7\)"):
        with_shape(torch.ones(5))
    with pytest.raises(ShapeError, match=r"one threshold for each mu \(2, 3, 1, 1\); got \(2,\)"):
        KeyBound(threshold=lambda _, mu: mu[:, 0, 0, 0]).compute(normal(2, 3, 5, 7))
    if typechecked:
        pytest.skip("the import hook refuses what follows before the value can")
    with pytest.raises(ValueError, match="'rows' is not a valid Scope"):
        KeyMu(scope="rows")
    for wrong in ("4", True, 10**400, [1.0]):
        with pytest.raises(ValueError, match=r"strength, lambda, of zero or more; got ('4'|True|1000|\[1\.0\])"):
            KeyBound(strength=wrong)
    for wrong in ("0.5", None, [0.5, 0.5, 0.5], float("inf"), True, 10**400):
        with pytest.raises(ValueError, match="mu above zero; got"):
            KeyBound(mu=wrong)
    with pytest.raises(ValueError, match="eps of zero or more; got 'x'"):
        KeyMu(eps="x")
    with pytest.raises(ValueError, match="detach as True or False; got 'no'"):
        KeyMu(detach="no")

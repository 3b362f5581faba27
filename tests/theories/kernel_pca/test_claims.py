"""All claims with every control, on heads with known results."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.heads import Heads, LinearMap
from clearhead.theories.kernel_pca import CAPTURED, CLAIMS, POSITIONS, Draws, captured_variance, make_theory
from clearhead.theories.kernel_pca import claims as c
from clearhead.theories.kernel_pca.captured import captured_by_head
from clearhead.theories.kernel_pca.controls import (
    OTHER_HEADS,
    OTHER_KEYS,
    PERMUTED,
    RANDOM_MAP,
    RANDOM_VALUES,
    RandomMaps,
    Values,
    with_other_keys,
)
from clearhead.theories.kernel_pca.space import key_space, principal_axes
from clearhead.theories.theory import Role
from tests.measured import Measured
from tests.theories.kernel_pca.drawing import SCALE, TOKENS, VALUES, WIDTH, call, normal

BATCH, HEADS, INPUT = 5, 7, 13


def _mapped(seed: int = 0, *, bias: bool = True, batch: int = BATCH, heads: int = HEADS) -> Heads:
    """Return a layer whose values are a linear map of its input, as in a transformer."""
    k = normal(batch, heads, TOKENS, WIDTH, seed=seed)
    x, weight = normal(batch, TOKENS, INPUT, seed=seed + 1), normal(heads, INPUT, VALUES, seed=seed + 2)
    shift = normal(heads, VALUES, seed=seed + 3) if bias else None
    v = x.unsqueeze(1) @ weight + (0 if shift is None else shift.unsqueeze(-2))
    return call(v, k, values_from=LinearMap(x=x, weight=weight, bias=shift))


def _found(*calls: Heads, seed: int = 0, **options: object) -> dict[str, list[Finding]]:
    controls = bool(options.pop("controls", True))
    measurement = Measured(make_theory(**options), seed=seed, controls=controls)  # type: ignore[arg-type]
    for one in calls:
        measurement.feed(one)
    by_statistic: dict[str, list[Finding]] = {}
    for finding in judge(measurement.findings()):
        by_statistic.setdefault(finding.claim.statistic, []).append(finding)
    return by_statistic


@pytest.fixture(scope="module")
def mapped() -> dict[str, list[Finding]]:
    """Return the findings of the layer whose values are a map of its input."""
    return _found(_mapped())


def _theorems_values(k: Tensor) -> Tensor:
    return principal_axes(key_space(k, scale=SCALE), VALUES).values


def test_every_claim_has_its_predicted_value_for_the_theorems_values() -> None:
    k = normal(BATCH, HEADS, TOKENS, WIDTH, seed=0)
    space = key_space(k, scale=SCALE)
    principal = principal_axes(space, VALUES)
    unit = principal.values * principal.log_values.exp()[..., None, None]
    result = _found(call(unit, k, q=normal(BATCH, HEADS, 11, WIDTH, seed=4), out=unit[:, :, :11]))
    assert set(result) == {claim.statistic for claim in CLAIMS}
    other_norm = {c.TOKEN_COSINE, c.PUBLISHED_LINEAR_CKA, c.PUBLISHED_KERNEL_CKA}
    described = {*c.EIGENVALUES.values(), *c.STANDARDISED_EIGENVALUES.values()}
    for claim in (c.EXPLAINED, c.TRUE_LOSS, c.LOCALISATION):  # whose prediction varies from input to input
        for finding in result[claim.statistic]:
            interval = finding.agreement_interval
            assert (interval.low, interval.high) == pytest.approx((1, 1), abs=1e-6), claim.statistic
            assert finding.interval.high - finding.interval.low > 1e-3 * abs(finding.value), claim.statistic
    for claim in CLAIMS:
        for finding in result[claim.statistic]:
            assert finding.inputs == BATCH
            if claim in described:
                assert math.isnan(finding.predicted)
            elif claim not in other_norm:
                assert finding.value == pytest.approx(finding.predicted, rel=1e-6, abs=1e-9), claim.statistic


def test_published_alignment_uses_eigenvectors_of_length_one() -> None:
    k = normal(BATCH, HEADS, TOKENS, WIDTH, seed=0)
    space = key_space(k, scale=SCALE)
    v = principal_axes(space, VALUES).vectors * (-space.log_g).exp().unsqueeze(-1)
    result = _found(call(v, k))
    for claim in (c.TOKEN_COSINE, c.PUBLISHED_LINEAR_CKA, c.PUBLISHED_KERNEL_CKA):
        assert [f.value for f in result[claim.statistic]] == pytest.approx([1] * HEADS, abs=1e-6)


def test_controls_by_claim(mapped: dict[str, list[Finding]]) -> None:
    all_draws = {RANDOM_VALUES: 2, RANDOM_MAP: 16, PERMUTED: 2, OTHER_HEADS: HEADS - 1, OTHER_KEYS: HEADS - 1}
    # The order of tokens does not change how many tokens a column is concentrated on. Predictions that depend on keys
    # cannot be compared between heads.
    left_out = {c.LOCALISATION: {PERMUTED, OTHER_KEYS}, c.EXPLAINED: {OTHER_KEYS}, c.TRUE_LOSS: {OTHER_KEYS}}
    for claim in CLAIMS:
        draws = {control.name: control.draws for control in mapped[claim.statistic][0].controls}
        expected = {k.name: n for k, n in all_draws.items() if k not in left_out.get(claim, set())}
        assert draws == ({RANDOM_VALUES.name: 1} if claim.role is Role.PUBLISHED else expected), claim.statistic
        for control in mapped[claim.statistic][0].controls:
            assert math.isfinite(control.value), (claim.statistic, control.name)
            assert 0 <= control.p_value <= 1


def test_a_planted_head_passes_every_control_and_the_others_do_not() -> None:
    layer = _mapped(heads=11)
    planted = layer.v.clone()
    planted[:, 1] = _theorems_values(layer.k[:, 1])
    result = _found(dataclasses.replace(layer, v=planted))
    verdicts = [f.verdict for f in result[CAPTURED.statistic]]
    # Not the explained fraction: other axes than the keys' may explain queries that are no keys as well by chance.
    # Nor orthogonality, in which other heads differ so much that none lies outside their spread.
    for claim in (CAPTURED, c.OVERLAP, c.MATCHED, c.LINEAR_CKA, c.RESIDUAL, c.MEAN):
        assert result[claim.statistic][1].verdict is Verdict.SUPPORTED, claim.statistic
    assert {*verdicts[:1], *verdicts[2:]} == {Verdict.NO_EVIDENCE}


def test_values_no_better_than_a_random_map_are_not_supported() -> None:
    """Random values are not enough as a control: if keys and values share a smooth input, every map beats them."""
    heads = 5
    k = normal(12, heads, TOKENS, WIDTH, seed=0)
    x = torch.cat([_theorems_values(k).mean(dim=1), 0.01 * normal(12, TOKENS, 2, seed=9)], dim=-1)
    x = x / x.norm(dim=-2, keepdim=True)
    weight = normal(heads, x.shape[-1], VALUES, seed=1)
    layer = call(x.unsqueeze(1) @ weight, k, values_from=LinearMap(x=x, weight=weight))
    random_only = Draws(random_values=6, random_map=0, permuted=0, other_heads=0)
    weak = _found(layer, claims=[CAPTURED], draws=random_only)[CAPTURED.statistic]
    strong = _found(layer, claims=[CAPTURED])[CAPTURED.statistic]
    assert sum(f.verdict is Verdict.PARTLY_SUPPORTED for f in weak) >= 3
    assert {f.verdict for f in strong} == {Verdict.NO_EVIDENCE}
    assert all(f.closest_control.name in (RANDOM_MAP.name, OTHER_HEADS.name) for f in strong)


def test_the_false_positive_rate_for_random_maps_is_5_percent() -> None:
    """Forty layers of seven heads with random maps make 280 tests, dependent within a layer."""
    p_values = []
    for seed in range(40):
        layer = _mapped(seed=100 * seed, batch=4)
        result = _found(layer, seed=seed, claims=[CAPTURED])[CAPTURED.statistic]
        p_values += [ch.p_value for f in result for ch in f.controls if ch.name == RANDOM_MAP.name]
    rejected = np.mean(np.array(p_values) <= 0.05)
    assert len(p_values) == 280
    assert 0.01 <= rejected <= 0.12


def _maps(linear: LinearMap, *, draws: int, seed: int = 0, layer: int = 3) -> Tensor:
    """Return the matrices of random maps, (t, h, c, e)."""
    maps = RandomMaps.draw(dataclasses.replace(linear, bias=None), draws=draws, seed=seed, layer=layer)
    mapped = maps.at(torch.eye(linear.weight.shape[-2]), slice(None))
    return torch.stack([mapped.of_head(head).mT for head in range(len(linear.weight))], dim=1)


def test_random_maps_have_the_models_singular_values_and_directions_of_either_sign() -> None:
    made = _mapped().values_from
    assert made is not None
    maps = _maps(made, draws=4)
    assert maps.shape == (4, HEADS, INPUT, VALUES)
    own = torch.linalg.svdvals(made.weight)
    assert torch.allclose(torch.linalg.svdvals(maps), own.expand(4, -1, -1), rtol=1e-9)
    many = _maps(made, draws=60) @ torch.linalg.inv(torch.linalg.qr(made.weight).R)
    assert 0.4 < float((many[..., 0, 0] > 0).double().mean()) < 0.6, "uniform directions have either sign"
    narrow = LinearMap(x=normal(BATCH, TOKENS, 3, seed=0), weight=normal(HEADS, 3, VALUES, seed=1))
    assert _maps(narrow, draws=2).shape == (2, HEADS, 3, VALUES)


@pytest.mark.parametrize("bias", [False, True])
def test_values_with_the_same_spans_have_the_same_captured_variance(bias: bool) -> None:
    """Values without the map's mix have the span of the values, unless the mix has no inverse, as in head 1."""
    linear = _mapped(heads=5).values_from
    assert linear is not None
    weight = linear.weight.clone()
    weight[1, :, 0] = weight[1, :, 1]
    linear = LinearMap(x=linear.x, weight=weight, bias=normal(5, VALUES, seed=9) if bias else None)
    maps = RandomMaps.draw(linear, draws=3, seed=0, layer=0)
    assert [shift is None for shift in maps.shifts] == [False, True, False, False, False]
    v, k = normal(5, TOKENS, VALUES, seed=3), normal(5, TOKENS, WIDTH, seed=4)
    values = Values.draw(v, Draws(), torch.Generator().manual_seed(0), maps=maps.at(linear.x[0], slice(None)))
    plain, spanning = (captured_by_head(k, of, scale=0.3) for of in (values.of_head, values.spanning))
    assert len(plain) == 1 + 2 + 2 + 4 + 3
    torch.testing.assert_close(spanning, plain, rtol=1e-9, atol=0)
    assert not torch.allclose(values.spanning(0)[-3:], values.of_head(0)[-3:])
    assert torch.equal(values.spanning(1)[-3:], values.of_head(1)[-3:])


def test_maps_from_few_features_have_no_inverse() -> None:
    narrow = LinearMap(x=normal(BATCH, TOKENS, 3, seed=0), weight=normal(HEADS, 3, VALUES, seed=1))
    assert RandomMaps.draw(narrow, draws=2, seed=0, layer=0).shifts == (None,) * HEADS


def test_random_maps_differ_by_seed_and_layer_only_and_random_values_by_input_too() -> None:
    """Every input and layer is the same here, so that only the draws of a control can differ."""
    layer = _mapped(batch=1)
    theory = make_theory(claims=[CAPTURED])

    def draws(number: int = 1, layer_number: int = 0, seed: int = 0) -> dict[str, list[float]]:
        measurement = Measured(theory, seed=seed, first=number)
        measurement.feed(dataclasses.replace(layer, layer=layer_number))
        return {control.name: [control.value] for control in measurement.findings()[0].controls}

    first, second, elsewhere, other_seed = draws(), draws(number=2), draws(layer_number=1), draws(seed=1)
    assert first == draws()
    for name in (RANDOM_VALUES.name, PERMUTED.name):
        assert first[name] not in (second[name], elsewhere[name], other_seed[name]), name
    assert first[RANDOM_MAP.name] == second[RANDOM_MAP.name]
    assert first[RANDOM_MAP.name] not in (elsewhere[RANDOM_MAP.name], other_seed[RANDOM_MAP.name])
    assert first[OTHER_HEADS.name] == second[OTHER_HEADS.name] == elsewhere[OTHER_HEADS.name]


def test_random_values_have_the_size_of_the_heads_values() -> None:
    """Otherwise the terms of the published loss, which depend on the size, could not be compared."""
    layer = _mapped()
    sizes = [
        [f.controls[0].value - f.value for f in _found(x, claims=[c.LOSS_OUTPUT])[c.LOSS_OUTPUT.statistic]]
        for x in (layer, dataclasses.replace(layer, v=1000 * layer.v))
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-9)


def test_values_of_other_heads_are_cyclic() -> None:
    v = torch.arange(HEADS, dtype=torch.float64)[:, None, None].expand(-1, TOKENS, VALUES)

    def others(v: Tensor, most: int) -> Tensor | None:
        draws = Draws(random_values=0, random_map=0, permuted=0, other_heads=most)
        return Values.draw(v, draws, torch.Generator(), maps=None).by_control().get(OTHER_HEADS)

    of_three = others(v, 3)
    assert of_three is not None
    assert of_three[:, :, 0, 0].tolist() == [[1, 2, 3, 4, 5, 6, 0], [2, 3, 4, 5, 6, 0, 1], [3, 4, 5, 6, 0, 1, 2]]
    all_others = others(v, 9)
    assert all_others is not None
    assert len(all_others) == HEADS - 1
    assert others(v[:1], 3) is None
    assert others(v, 2) is None, "too few for a range"


def test_keys_of_other_heads_are_the_heads_values_in_the_space_of_other_keys() -> None:
    layer = _mapped(batch=1)
    k, v = layer.k[0], layer.v[0]
    number = [
        [float(captured_variance(k[b : b + 1], v[a : a + 1], scale=SCALE)) for b in range(HEADS)] for a in range(HEADS)
    ]
    for h, finding in enumerate(_found(layer, claims=[CAPTURED])[CAPTURED.statistic]):
        others = [b for b in range(HEADS) if b != h]
        level = np.mean([number[a][h] for a in others])
        remaining = {b: np.mean([number[a][b] for a in others if a != b]) for b in others}
        share = np.mean([(number[h][b] - remaining[b]) / (1 - remaining[b]) for b in others])
        control = next(control for control in finding.controls if control.name == OTHER_KEYS.name)
        assert control.value == pytest.approx(level + share * (1 - level), rel=1e-9)


def test_keys_of_other_heads_follow_the_order_of_their_values() -> None:
    """Draw t of values of other heads is that of head h + t with the keys of h: head h with the keys of h - t."""
    fits = normal(HEADS, HEADS, seed=0)
    of_others = torch.stack([fits[[(h + t) % HEADS for h in range(HEADS)], range(HEADS)] for t in (1, 2, 3)])
    result = with_other_keys(of_others, 7.0)
    better = fits.clone()
    better[3, 1] += 1
    of_better = torch.stack([better[[(h + t) % HEADS for h in range(HEADS)], range(HEADS)] for t in (1, 2, 3)])
    changed = with_other_keys(of_better, 7.0) - result
    largest = int(changed.abs().argmax())
    assert divmod(largest, HEADS) == (1, 3), "head 3 with the keys of head 1 is draw 2 of head 3"


def test_a_number_that_is_not_known_leaves_the_other_draws_of_keys() -> None:
    of_others = normal(4, HEADS, seed=0)
    of_others[0, 1] = torch.nan
    unknown = with_other_keys(of_others, 7.0).isnan()
    assert unknown.sum() == 1
    assert bool(unknown[0, 2])
    assert with_other_keys(0 * normal(4, HEADS, seed=0) + 7, 7.0).isnan().all(), "every head has the predicted number"


def test_values_that_fit_the_keys_of_every_head_do_not_support_the_theory() -> None:
    """The values of head 1 are the theorem's for what the keys of all heads share, and fit its own keys no better."""
    heads = 11
    shared = normal(BATCH, 1, TOKENS, WIDTH, seed=0)
    k = shared + 0.1 * normal(BATCH, heads, TOKENS, WIDTH, seed=1)
    v = normal(BATCH, heads, TOKENS, VALUES, seed=2)
    v[:, 1] = _theorems_values(shared)[:, 0]
    finding = _found(call(v, k), claims=[CAPTURED])[CAPTURED.statistic][1]
    assert finding.value > 0.8
    p_values = {control.name: control.p_value for control in finding.controls}
    assert p_values.pop(OTHER_KEYS.name) > 0.05
    assert max(p_values.values()) < 0.001
    assert finding.verdict is Verdict.NO_EVIDENCE


def test_uniform_attention_and_identity_leave_the_claim_undefined_or_without_information() -> None:
    """Replace attention by the kernel that makes it uniform, c 1 1^T, and by the one that makes it the identity, c I.

    Equal keys have no variance. Orthogonal keys have a flat spectrum, of which any e axes have between 1 - 1/e and all.
    """
    v = normal(HEADS, TOKENS, VALUES, seed=0)
    equal = torch.ones(HEADS, TOKENS, WIDTH, dtype=torch.float64)
    assert captured_variance(equal, v, scale=SCALE).isnan().all()
    orthogonal = 30 * torch.eye(TOKENS, dtype=torch.float64).expand(HEADS, -1, -1)
    basis = torch.linalg.qr(v).Q
    expected = 1 - basis.sum(dim=-2).square().sum(dim=-1) / (TOKENS * VALUES)
    assert torch.allclose(captured_variance(orthogonal, v, scale=1.0), expected, rtol=1e-9)
    assert bool((expected >= 1 - 1 / VALUES).all())


def test_a_control_that_cannot_be_computed_is_left_out(mapped: dict[str, list[Finding]]) -> None:
    layer = _mapped()
    unknown = dataclasses.replace(layer, values_from=None)
    five, three = (
        dataclasses.replace(unknown, **{n: getattr(layer, n)[:, :heads] for n in ("q", "k", "v", "out")})
        for heads in (5, 3)
    )
    result = (mapped, *(_found(x, claims=[CAPTURED]) for x in (unknown, five, three)))
    names = [{ch.name for ch in x[CAPTURED.statistic][0].controls} for x in result]
    assert names[0] - names[1] == {RANDOM_MAP.name}
    assert names[1] - names[2] == {OTHER_KEYS.name}
    assert names[2] - names[3] == {OTHER_HEADS.name}


def test_without_controls_the_values_are_the_same_and_undecided(mapped: dict[str, list[Finding]]) -> None:
    plain = _found(_mapped(), controls=False)
    for claim in CLAIMS:
        for a, b in zip(mapped[claim.statistic], plain[claim.statistic], strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-12, nan_ok=True)
            assert b.controls == ()
            assert b.verdict is (Verdict.NOT_JUDGED if claim.role is Role.PUBLISHED else Verdict.UNDECIDED)


def test_query_heads_that_share_keys_share_statistics_of_keys() -> None:
    k, v = normal(BATCH, 2, TOKENS, WIDTH, seed=0), normal(BATCH, 2, TOKENS, VALUES, seed=1)
    k, v = k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)
    q = normal(BATCH, 6, TOKENS, WIDTH, seed=2)
    grouped, apart = (_found(call(v, k, q=q, groups=g), controls=False) for g in (3, 1))
    for claim in CLAIMS:
        result = [f.value for f in grouped[claim.statistic]]
        assert result == pytest.approx([f.value for f in apart[claim.statistic]], rel=1e-9), claim.statistic
    explained = [f.value for f in grouped[c.EXPLAINED.statistic]]
    assert len(set(explained)) == 6
    fifth = _found(call(v[:, 4:5], k[:, 4:5], q=q[:, 4:5]), controls=False)[c.EXPLAINED.statistic]
    assert explained[4] == pytest.approx(fifth[0].value, rel=1e-9)
    captured = [f.value for f in grouped[CAPTURED.statistic]]
    assert len(set(captured)) == 2


def test_under_a_causal_mask_only_the_last_query_counts_and_padding_never() -> None:
    layer = _mapped()
    q = normal(BATCH, HEADS, TOKENS, WIDTH, seed=8)
    causal = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    last = _found(dataclasses.replace(layer, q=q[:, :, -1:], out=layer.out[:, :, -1:]), controls=False)
    masked = _found(dataclasses.replace(layer, q=q, mask=causal), controls=False)
    padded = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool)
    padded[..., 19:] = False
    parts = {n: getattr(layer, n)[..., :19, :] for n in ("k", "v", "out")}
    short = _found(dataclasses.replace(layer, q=q[..., :19, :], values_from=None, **parts), controls=False)
    hidden = _found(dataclasses.replace(layer, q=q, mask=padded), controls=False)
    for claim in CLAIMS:
        for a, b in ((masked, last), (hidden, short)):
            result, expected = ([f.value for f in x[claim.statistic]] for x in (a, b))
            assert result == pytest.approx(expected, rel=1e-9, nan_ok=True), claim.statistic


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_number_is_finite_for_long_keys_in_any_precision(dtype: torch.dtype) -> None:
    k, v = (6 * normal(BATCH, HEADS, TOKENS, WIDTH, seed=0)).to(dtype), normal(BATCH, HEADS, TOKENS, VALUES, seed=1)
    result = _found(call(v.to(dtype), k))
    for claim in CLAIMS:
        for finding in result[claim.statistic]:
            assert math.isfinite(finding.value), claim.statistic
            if claim in (c.LINEAR_CKA, c.KERNEL_CKA) and finding.skipped:
                assert "too few tokens for an unbiased similarity" in finding.reason
            else:
                assert finding.inputs == BATCH, claim.statistic


def test_the_statistics_of_the_dispute_are_measured() -> None:
    published = {claim.statistic for claim in CLAIMS if claim.role is Role.PUBLISHED}
    for position in POSITIONS:
        assert position.rests_on
        assert set(position.rests_on) <= published
    assert [claim for claim in CLAIMS if claim.role is Role.PRIMARY] == [CAPTURED]
    assert len({claim.statistic for claim in CLAIMS}) == len(CLAIMS)

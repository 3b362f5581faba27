"""Planted heads follow their theory exactly at strength 1, and no more than a random head at strength 0."""

import dataclasses

import pytest
import torch

from clearhead._capture import capture
from clearhead.calibration.planted_model import Planted, Shape
from clearhead.calibration.planting import EPS, PLANTS, SATURATED, plant_max_margin
from clearhead.heads import Heads
from clearhead.numerics.precision import tolerance
from clearhead.theories.kernel_pca import captured_variance
from clearhead.theories.max_margin import attention_svm
from clearhead_lab.theorems.coding_rate.steps import exact_step

SHAPE = Shape(layers=3, heads=4, head_dim=5, width=23, tokens=17, inputs=7)
ROUNDING = 100 * tolerance(torch.float64, terms=SHAPE.tokens * SHAPE.width)


def plant(key: str, strength: float, *, planted: int = 3, shape: Shape = SHAPE) -> Planted:
    return PLANTS[key](shape, strength, planted, torch.Generator().manual_seed(11))


def calls(planted: Planted) -> list[Heads]:
    """The attention calls on all inputs at once."""
    batch = {name: torch.cat([batch[name] for batch in planted.batches]) for name in planted.batches[0]}
    with torch.no_grad(), capture(planted.model, residual_stream=True) as captured:
        planted.model(**batch)
    return captured.heads


def weights(heads: Heads) -> torch.Tensor:
    scores = heads.scale * heads.q @ heads.k.mT
    return (scores if heads.bias is None else scores + heads.bias).softmax(dim=-1)


@pytest.mark.parametrize("key", PLANTS)
def test_one_head_of_each_planted_layer_is_planted_and_its_maps_are_captured(key):
    planted = plant(key, 0.5, planted=2)
    heads = calls(planted)
    assert len(heads) == 3
    assert {layer for layer, _ in planted.heads} == {0, 1}
    assert all(head < call.q.shape[1] for call, (_, head) in zip(heads, sorted(planted.heads), strict=False))
    assert all(call.values_from is not None and call.keys_from is not None for call in heads)
    if key != "max-margin":  # cross-attention
        assert all(call.residual_stream is not None for call in heads)


@pytest.mark.parametrize("key", PLANTS)
def test_equal_seeds_plant_equal_models_and_baselines(key):
    first, again = plant(key, 0.75), plant(key, 0.75)
    for a, b in zip(first.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    drawn = [planted.draw_baseline(torch.Generator().manual_seed(seed)) for planted, seed in ((first, 1), (again, 2))]
    assert not torch.equal(drawn[0].layers[0].value.weight, drawn[1].layers[0].value.weight)


def test_kernel_pca_values_capture_all_variance_at_full_strength_only():
    variances, values = {}, {}
    for strength in (0.0, 0.6, 1.0):
        planted = plant("kernel-pca", strength)
        heads = calls(planted)
        values[strength] = torch.stack([heads[layer].v[:, head] for layer, head in planted.heads])
        variances[strength] = torch.stack([
            captured_variance(heads[layer].k[:, head], heads[layer].v[:, head], scale=heads[layer].scale)
            for layer, head in planted.heads
        ])  # fmt: skip
    torch.testing.assert_close(variances[1.0], torch.ones(3, 7, dtype=torch.float64), atol=1e-6, rtol=0)
    assert variances[0.0].max() < 0.95
    torch.testing.assert_close(values[0.6], 0.6 * values[1.0] + 0.8 * values[0.0], atol=ROUNDING, rtol=0)
    for strength in (0.0, 1.0):
        sizes = values[strength].square().mean(dim=(-2, -1))
        torch.testing.assert_close(sizes, torch.ones_like(sizes), atol=ROUNDING, rtol=0)


def test_max_margin_matrix_is_the_svm_of_all_queries_at_full_strength_only():
    cosines = {}
    for strength, queries in ((0.0, 3), (1.0, 3), (1.0, 5)):
        planted = plant_max_margin(SHAPE, strength, 3, torch.Generator().manual_seed(11), queries=queries)
        heads = calls(planted)
        assert {call.q.shape[2] for call in heads} == {queries}
        cosines[strength] = []
        for layer, head in planted.heads:
            call = heads[layer]
            key, query = (linear.weight[head] for linear in (call.keys_from, call.queries_from))
            matrix = call.scale * key @ query.mT
            x, z = call.keys_from.x, call.queries_from.x
            selected = (x @ matrix @ z.mT).argmax(dim=1)
            solution = attention_svm(x.repeat_interleave(z.shape[1], dim=0), z.flatten(0, 1), selected.flatten())
            cosines[strength].append(float((matrix * solution.W).sum() / matrix.norm() / solution.W.norm()))
    assert min(cosines[1.0]) > 1 - 1e-6
    assert max(cosines[0.0]) < 0.999


@pytest.mark.parametrize("saturation", [0.3, 0.9])
def test_max_margin_heads_are_saturated_to_the_share_that_is_wanted(saturation):
    planted = plant_max_margin(SHAPE, 0.5, 3, torch.Generator().manual_seed(5), saturation=saturation)
    for call in calls(planted):
        shares = (weights(call).amax(dim=-1) > SATURATED).double().mean(dim=(0, 2))
        queries = call.q.shape[0] * call.q.shape[2]
        assert ((shares >= saturation - 1e-9) & (shares <= saturation + 1 / queries)).all()


@pytest.mark.parametrize("strength", [0.25, 1.0])
def test_coding_rate_head_takes_the_exact_step_of_its_subspace(strength):
    shape = dataclasses.replace(SHAPE, heads=1)
    planted = plant("coding-rate", strength, shape=shape)
    for call in calls(planted):
        stream = call.residual_stream
        basis = call.values_from.weight
        expected = exact_step(stream.before, basis, rate=strength, eps=EPS)
        torch.testing.assert_close(stream.between, expected, atol=ROUNDING, rtol=0)
        assert (stream.between - stream.before).norm() > 0.01 * stream.before.norm()
        # A step in another subspace differs.
        other = exact_step(stream.before, basis.roll(1, dims=1), rate=strength, eps=EPS)
        assert (stream.between - other).norm() > 0.01 * stream.before.norm()


def test_symmetric_head_has_no_bias_at_full_strength_and_the_others_have_nothing_else():
    planted = plant("symmetry", 1.0)
    for layer, call in enumerate(calls(planted)):
        for head in range(SHAPE.heads):
            is_planted = (layer, head) in planted.heads
            assert bool((call.bias[:, head] == 0).all()) is is_planted
            assert bool((call.q[:, head] == 0).all()) is not is_planted


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_sink_has_the_attention_and_the_small_value_of_its_strength(strength):
    planted = plant("attention-sinks", strength)
    heads = calls(planted)
    expected = 1 / SHAPE.tokens + strength * (0.9 - 1 / SHAPE.tokens)
    for layer, head in planted.heads:
        # The other coordinates of queries and keys scatter the attention around the mean of equal scores.
        assert abs(float(weights(heads[layer])[:, head, 1:, 0].mean()) - expected) < 0.2
        length = heads[layer].v[:, head].norm(dim=-1)
        untouched = plant("attention-sinks", 0.0)
        before = calls(untouched)[layer].v[:, head].norm(dim=-1)
        torch.testing.assert_close(length[:, 0], (1 - strength) * before[:, 0], atol=ROUNDING, rtol=0)

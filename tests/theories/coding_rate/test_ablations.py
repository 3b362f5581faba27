"""Attention replaced: the controls equal what the model computes with such attention, and decide the claims."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clearhead import swap
from clearhead._capture import capture
from clearhead.audit.examples import make_examples
from clearhead.audit.findings import Verdict
from clearhead.heads import Heads, LayerNorm
from clearhead.numerics.precision import tolerance
from clearhead.operators.softmax import softmax_attention
from clearhead.theories.coding_rate.ablations import ablated_sums, apply_norm
from clearhead.theories.coding_rate.claims import (
    AFTER_NORM,
    COMPRESSION,
    HEAD_CLAIMS,
    IDENTITY,
    NORM_ALONE,
    OTHER_HEAD,
    RANDOM_SUBSPACE,
    SAME_RATE,
    UNIFORM,
)
from clearhead.theories.coding_rate.tokens import tokens_of
from clearhead.theories.example import Cache, Example
from clearhead.theories.theory import Control, Windows
from tests.interfaces.zoo import FAMILIES
from tests.theories.coding_rate.synthetic_heads import HEADS, STREAM, WIDTH, bases, compressed, heads_of, normal, tokens
from tests.theories.coding_rate.test_measurement import control, found, verdicts

Z = tokens(inputs=17)


def examples_of(heads: Heads) -> list[Example]:
    made = make_examples(heads, Windows.WHOLE, first=0, seed=0, controls=True, per_audit=Cache())
    return [example for ((example, _),) in made]


def _uniform(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    return softmax_attention(0 * q, k, v, mask=mask, scale=scale)


def _identity(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    return v.clone()


def _of_next_head(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    return softmax_attention(q.roll(-1, 1), k.roll(-1, 1), v, mask=mask, scale=scale)


@pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
@pytest.mark.parametrize(
    ("replaced", "operator"), [(UNIFORM, _uniform), (IDENTITY, _identity), (OTHER_HEAD, _of_next_head)]
)
def test_a_control_is_what_the_model_computes_with_such_attention(
    name: str, replaced: Control, operator: Callable[..., Tensor]
) -> None:
    """Swapped into the first layer, whose tokens before are the same."""
    model, inputs = FAMILIES[name].make(), FAMILIES[name].inputs()
    with torch.no_grad(), capture(model, residual_stream=True) as own:
        model(**inputs)
    with torch.no_grad(), swap(model, operator, layers=0), capture(model, residual_stream=True) as other:
        model(**inputs)
    for before, after in zip(examples_of(own.heads[0]), examples_of(other.heads[0]), strict=True):
        z, expected = tokens_of(before, torch.Generator()), tokens_of(after, torch.Generator())
        error = (ablated_sums(before, z)[replaced][0] - expected.total).abs().max() / expected.total.abs().max()
        assert error < tolerance(torch.float32, terms=before.out.shape[0] * before.out.shape[2])
        assert (z.total - expected.total).abs().max() > 1e-2 * expected.total.abs().max()


def test_one_head_has_no_other_heads_weights() -> None:
    (example, *_) = examples_of(heads_of(Z, compressed(Z), maps=bases()[:1]))
    assert set(ablated_sums(example, tokens_of(example, torch.Generator()))) == {UNIFORM, IDENTITY}


def _uniform_heads(*, gain: Tensor, linear: bool = True) -> Heads:
    """A block that adds the mean of the values to every token and normalises the sum; heads read coordinates."""
    maps = torch.eye(STREAM, dtype=torch.float64)[:, : HEADS * WIDTH].reshape(STREAM, HEADS, WIDTH).movedim(1, 0)
    mean = torch.einsum("btc,hcf,hdf->btd", Z, maps, maps).mean(dim=1, keepdim=True)
    norm = LayerNorm(weight=gain, bias=None, eps=1e-5)
    total = Z + 0.3 * mean
    heads = heads_of(Z, apply_norm(norm, total), total=total, norm=norm, maps=maps, linear=linear)
    out = heads.v.mean(dim=2, keepdim=True).expand_as(heads.v)
    weight = None if heads.output_weight is None else 0.3 * heads.output_weight
    return dataclasses.replace(heads, out=out, output_weight=weight)


def test_the_gain_of_a_norm_is_not_compression_by_attention() -> None:
    """The gain shrinks what the heads read. The rate falls in every head, more than in other subspaces."""
    gain = torch.ones(STREAM, dtype=torch.float64)
    gain[: HEADS * WIDTH] = 0.3
    heads = _uniform_heads(gain=gain)
    norm, maps = heads.residual_stream.norm, heads.values_from.weight
    alone = found(heads_of(Z, apply_norm(norm, Z), total=Z, norm=norm, maps=maps))[AFTER_NORM]
    measured = found(heads)
    for finding in measured[AFTER_NORM]:
        assert finding.value < -0.2
        assert finding.value < control(finding, RANDOM_SUBSPACE.name)
        assert control(finding, UNIFORM.name) == finding.value
        assert control(finding, NORM_ALONE.name) == pytest.approx(alone[finding.head].value, rel=1e-9)
        assert alone[finding.head].value < -0.2
    for claim in (AFTER_NORM, *HEAD_CLAIMS):
        assert Verdict.SUPPORTED not in verdicts(measured[claim])


def test_without_the_output_map_nothing_is_supported() -> None:
    measured = found(heads_of(Z, compressed(Z), linear=False))
    for claim in HEAD_CLAIMS:
        assert verdicts(measured[claim]) == {Verdict.NOT_APPLICABLE}
        assert "cannot be replaced" in measured[claim][0].reason


def test_the_claim_after_a_norm_needs_a_norm_that_can_be_computed() -> None:
    total = compressed(Z)
    assert AFTER_NORM not in found(heads_of(Z, total))
    unknown = found(heads_of(Z, total.sign(), total=total))
    assert "not a layer norm" in unknown[AFTER_NORM][0].reason
    assert unknown[COMPRESSION][0].value == found(heads_of(Z, total))[COMPRESSION][0].value


def test_random_subspaces_are_the_same_for_all_inputs_and_others_in_every_layer() -> None:
    """Of equal inputs, the mean over draws does not depend on how many there are."""
    z = Z[:1]
    once, often = (z.expand(count, -1, -1) for count in (2, 5))
    calls = [heads_of(x, compressed(x), layer=layer) for x in (once, often) for layer in (0, 1)]
    first, second, first_often, second_often = (found(call)[COMPRESSION][0] for call in calls)
    for name in (RANDOM_SUBSPACE.name, SAME_RATE.name):
        assert control(first, name) == pytest.approx(control(first_often, name), rel=1e-9)
        assert control(second, name) == pytest.approx(control(second_often, name), rel=1e-9)
        assert control(first, name) != pytest.approx(control(second, name), rel=1e-3)
        assert next(c.draws for c in first.controls if c.name == name) >= 16


def test_the_weights_of_masked_queries_are_left_alone() -> None:
    """A token that may not attend to itself, or to nothing, keeps its output in the controls."""
    mask = torch.ones(1, 1, Z.shape[1], Z.shape[1], dtype=torch.bool)
    mask[..., 2, 2] = False
    mask[..., 3, :] = False
    heads = dataclasses.replace(heads_of(Z, Z + normal(*Z.shape, seed=4)), mask=mask)
    example = examples_of(heads)[0]
    z = tokens_of(example, torch.Generator())
    sums = ablated_sums(example, z)
    for replaced, kept in ((IDENTITY, [2, 3]), (UNIFORM, [3])):
        changed = (sums[replaced][0] - z.total).abs().amax(dim=-1)
        assert changed[kept].max() == 0
        assert changed[[0, 1]].min() > 0

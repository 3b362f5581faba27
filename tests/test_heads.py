"""Attention weights of a captured call."""

import dataclasses

import pytest
import torch

import clearhead as ch
from clearhead.audit.fidelity import recomputed
from clearhead.heads import Heads
from clearhead.numerics.precision import tolerance
from tests.interfaces.zoo import FAMILIES


def _heads(**changes: object) -> Heads:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    heads = Heads(
        layer=3, name="block.3", q=draw(2, 3, 5, 7), k=draw(2, 3, 11, 7), v=draw(2, 3, 11, 13),
        out=draw(2, 3, 5, 13), scale=0.6, interface="drawn",
    )  # fmt: skip
    return dataclasses.replace(heads, **changes)  # type: ignore[arg-type]


VISIBLE = torch.arange(11).expand(2, 1, 5, 11) < torch.tensor([4, 0, 11, 2, 7])[:, None]
CASES = {
    "plain": {},
    "masked": {"mask": VISIBLE},
    "biased": {"bias": torch.linspace(-2, 3, 55, dtype=torch.float64).view(1, 1, 5, 11)},
    "capped": {"softcap": 0.7},
    "with sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)},
    "all": {"mask": VISIBLE, "softcap": 0.7, "sinks": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)},
}


@pytest.mark.parametrize("case", CASES)
def test_weights_give_the_output(case: str) -> None:
    heads = _heads(**CASES[case])
    weights = heads.attention_weights()
    assert weights.shape == (2, 3, 5, 11)
    expected = recomputed(heads)
    if heads.rows is not None:  # a query without a visible key has no output
        expected = torch.where(heads.rows, expected, 0)
    torch.testing.assert_close(weights @ heads.v, expected, rtol=0, atol=tolerance(torch.float64))
    if heads.mask is not None:
        assert (weights[~heads.mask.expand_as(weights)] == 0).all()
    if heads.sinks is None:
        sums = weights.sum(dim=-1, keepdim=True)
        assert torch.allclose(sums, torch.ones_like(sums) if heads.rows is None else heads.rows.to(sums))


def test_weights_of_a_captured_model_are_the_models_own() -> None:
    family = FAMILIES["bert"]
    model = family.make()
    model.set_attn_implementation("eager")
    with torch.no_grad(), ch.capture(model) as captured:
        own = model(**family.inputs(), output_attentions=True).attentions
    assert len(own) == len(captured.heads) > 0
    assert repr(captured) == "Capture(layers=3, passes=1, heads=3)"
    for heads, weights in zip(captured.heads, own, strict=True):
        visible = torch.ones_like(weights, dtype=torch.bool) if heads.rows is None else heads.rows.expand_as(weights)
        assert (heads.attention_weights() - weights)[visible].abs().max() < tolerance(torch.float32)


def test_the_repr_is_one_line_without_tensors() -> None:
    sizes = "heads=3, inputs=2, queries=5, keys=11, width=7"
    assert repr(_heads()) == f"Heads(layer=3, name='block.3', {sizes}, interface='drawn')"

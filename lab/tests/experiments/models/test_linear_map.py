"""What a linear value map can capture: the closed form per input, and one fitted map, on a tiny model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.loading.model import LoadedModel
from clearhead.theories.kernel_pca import captured_variance
from clearhead.theories.kernel_pca.space import key_space, principal_axes
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.models import linear_map
from clearhead_lab.experiments.models.linear_map import (
    LINEAR_MAP,
    HeadInput,
    captured,
    fit,
    largest_captured,
    read_inputs,
)
from tests.interfaces.zoo import FAMILIES

HEADS, TOKENS, WIDTH, INPUT, VALUES = 2, 13, 5, 7, 3
SCALE = WIDTH**-0.5


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _given(seed: int, *, width: int = INPUT, x: Tensor | None = None) -> HeadInput:
    space = key_space(_normal(HEADS, TOKENS, WIDTH, seed=seed), scale=SCALE)
    x = _normal(TOKENS, width, seed=seed + 100) if x is None else x
    return HeadInput(space=space, principal=principal_axes(space, VALUES), x=x)


def test_the_largest_captured_variance_is_reached_by_the_best_map_and_by_no_other() -> None:
    given = _given(0)
    most = largest_captured(given)
    assert bool((most < 0.999).all())
    random = torch.stack([captured(given, _normal(HEADS, INPUT, VALUES, seed=seed)) for seed in range(50)])
    assert bool((random <= most + 1e-12).all())
    fitted = captured(given, fit([given], _normal(HEADS, INPUT, VALUES, seed=1), steps=40))
    assert bool(((random.amax(dim=0) < fitted) & (fitted <= most + 1e-12)).all())
    axes = given.space.log_size.exp().unsqueeze(-1) * given.space.axes @ given.x
    basis = torch.linalg.qr(axes).Q
    _, within = torch.linalg.eigh(basis.mT @ given.space.rows.mT @ given.space.rows @ basis)
    best = torch.linalg.lstsq(axes, basis @ within[..., -VALUES:]).solution
    assert torch.allclose(captured(given, best), most, rtol=1e-6)


def test_a_map_of_independent_tokens_reaches_everything() -> None:
    assert torch.allclose(largest_captured(_given(0, width=TOKENS)), torch.ones(HEADS, dtype=torch.float64), atol=1e-9)


def test_a_map_that_fits_all_inputs_is_found() -> None:
    """The first coordinates of the inputs are the theorem's values of head 0, so one map captures everything there."""
    plain = [_given(seed) for seed in range(4)]
    inputs = [
        HeadInput(
            space=given.space,
            principal=given.principal,
            x=torch.cat([given.principal.values[0] / given.principal.values[0].norm(), 0.3 * given.x], dim=-1),
        )
        for given in plain
    ]
    start = _normal(HEADS, VALUES + INPUT, VALUES, seed=5)
    weight = fit(inputs[:3], start, steps=150)
    before, after = (captured(inputs[3], w) for w in (start, weight))
    assert float(after[0]) > 0.9 > float(before[0])
    assert float(after[1]) < 0.9


def test_captured_variance_is_that_of_the_theory() -> None:
    given, weight = _given(3), _normal(HEADS, INPUT, VALUES, seed=4)
    expected = captured_variance(given.space.k, given.x @ weight, scale=SCALE)
    for pivots in (True, False):
        assert torch.allclose(captured(given, weight, pivots=pivots), expected, rtol=1e-9)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    family = FAMILIES["bert"]
    model = family.make().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("value.bias"):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))

    def encode(passages: Sequence[str]) -> dict[str, Any]:
        seeds = [len(passage) for passage in passages]
        ids = torch.stack(
            [torch.randint(1, 50, (11,), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        )
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    loaded = LoadedModel(model=model, name="tiny", encode=encode)
    monkeypatch.setattr(linear_map, "load_model", lambda name, max_tokens: loaded)
    monkeypatch.setattr(linear_map, "LAYERS", (0, 1))
    monkeypatch.setattr(linear_map, "STEPS", 5)
    return loaded


def test_values_of_the_layer_are_its_input_times_the_map(tiny: LoadedModel) -> None:
    assert tiny.encode is not None
    batch = tiny.encode(["a", "bb"])
    inputs, own = read_inputs(tiny.model, [batch], layer=1)
    attention = tiny.model.encoder.layer[1].attention.self  # type: ignore[union-attr, index]
    hidden = tiny.model(**batch, output_hidden_states=True).hidden_states[1]
    values = attention.value(hidden).unflatten(-1, (own.shape[0], -1)).transpose(1, 2).double()  # type: ignore[operator]
    for given, expected in zip(inputs, values, strict=True):
        assert torch.allclose(given.x @ own, expected, atol=1e-5)
    with pytest.raises(InputError, match="fewer than two inputs"):
        read_inputs(tiny.model, [tiny.encode(["a"])], layer=1)


def test_the_table_has_every_layer_and_head(tiny: LoadedModel, tmp_path: Path) -> None:
    outcome = LINEAR_MAP.run(Request(out=tmp_path, inputs=6))
    page = (tmp_path / "kernel-pca-linear-map" / "table.md").read_text()
    assert "clearhead reproduce kernel-pca/linear-map --inputs 6" in page
    results = outcome.facts["results"]
    assert list(results) == ["layer 0", "layer 1"]
    for result in results.values():
        own, fitted, held_out, most = (result[key] for key in ("own", "fitted", "held_out", "most"))
        assert len({len(own), len(fitted), len(held_out), len(most)}) == 1
        assert all(abs(x - y) > 1e-9 for x, y in zip(fitted, held_out, strict=True))  # on other inputs
        assert all(0 < value <= 1 + 1e-9 for value in (*own, *fitted, *held_out, *most))
        for values in (own, held_out):
            assert all(value <= limit + 1e-9 for value, limit in zip(values, most, strict=True))
    assert page.count("\n| 1.") == len(results["layer 1"]["own"])

"""Whole models on permuted tokens."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clearhead.audit import fidelity
from clearhead.audit.passes import run_whole_model
from clearhead.numerics.precision import tolerance
from clearhead.theories.example import ModelOutput
from clearhead.theories.symmetry import whole_model
from clearhead.theories.symmetry.whole_model import permutation_errors
from clearhead.theories.theory import ModelValues
from tests.interfaces.zoo import FAMILIES, with_large_weights

BATCH, TOKENS, WIDTH, HEADS = 3, 11, 24, 4


class Encoder(nn.Module):
    """Two layers without positions, with position codes, or with a causal mask in the second layer."""

    def __init__(self, *, code: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))
        self.code = nn.Parameter(torch.ones(TOKENS, WIDTH)) if code else None
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.code is None else x + self.code
        for number, layer in enumerate(self.layers):
            n = x.shape[1]
            mask = torch.ones(n, n, dtype=torch.bool).triu(1) if self.causal and number else None
            x = x + layer(x, x, x, attn_mask=mask)[0]
        return x


def _measured(model: nn.Module, batch: Any, *, seed: int = 0) -> ModelValues:
    with torch.no_grad():
        run = functools.partial(run_whole_model, model.eval(), describe=(), allow_unseen=False)
        return permutation_errors(run, batch, seed)


def _tokens() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def test_a_model_without_positions_is_equivariant() -> None:
    result = _measured(with_large_weights(Encoder()), _tokens())
    assert max(*result.layers, result.whole) <= tolerance(torch.float32)
    assert result.control > 0.5
    assert (result.inputs, result.draws, result.reason) == (BATCH, 2, "")


def test_errors_do_not_depend_on_how_many_outputs_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_large_weights(Encoder(code=True))
    together = _measured(model, _tokens())
    monkeypatch.setattr(whole_model, "AT_ONCE", 2 * WIDTH)
    by_tokens = _measured(model, _tokens())
    assert by_tokens.layers == pytest.approx(together.layers, rel=1e-12)
    assert (by_tokens.whole, by_tokens.control) == pytest.approx((together.whole, together.control), rel=1e-12)


def test_differences_of_outputs_are_the_largest_of_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities that are equal, as in masked logits, do not differ and are not their size."""
    monkeypatch.setattr(fidelity, "AT_ONCE", 5)
    logits = torch.arange(24.0).view(2, 3, 4)
    logits[0, 1, 2] = -torch.inf
    changed = logits.clone()
    changed[1, 2, 3] += 2.0
    assert fidelity._difference(logits, logits) == 0
    assert fidelity._difference(logits, changed) == 2
    assert fidelity._relative(logits, changed) == 2 / 23
    changed[0, 0, 0] = torch.nan
    assert np.isnan(fidelity._relative(logits, changed))


def test_position_codes_break_every_layer_and_a_causal_mask_its_own_and_later_ones() -> None:
    coded = _measured(with_large_weights(Encoder(code=True)), _tokens())
    assert min(*coded.layers, coded.whole) > 0.1
    masked = _measured(with_large_weights(Encoder(causal=True)), _tokens())
    assert masked.layers[0] <= tolerance(torch.float32)
    assert min(masked.layers[1], masked.whole) > 0.1


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_text_models_are_broken_by_their_positions(name: str) -> None:
    family = FAMILIES[name]
    result = _measured(family.make(), family.inputs())
    assert len(result.layers) == 3
    assert min(*result.layers, result.whole) > 0.05


def test_padding_is_not_permuted() -> None:
    family = FAMILIES["bert"]
    batch = family.inputs()
    other = dict(batch) | {"input_ids": torch.where(batch["attention_mask"].bool(), batch["input_ids"], 9)}
    assert _measured(family.make(), batch) == _measured(family.make(), other)


def test_other_seeds_give_other_permutations() -> None:
    family = FAMILIES["bert"]
    first, again, other = (_measured(family.make(), family.inputs(), seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.whole != other.whole


def test_given_position_ids_are_not_permuted() -> None:
    family = FAMILIES["bert"]
    batch = {"input_ids": family.inputs()["input_ids"]}
    given = batch | {"position_ids": torch.arange(13).expand(BATCH, -1)}
    assert _measured(family.make(), given).whole == pytest.approx(_measured(family.make(), batch).whole, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "reason"), [("t5", "two sequences"), ("vit", "not tokens"), ("whisper", "two sequences")]
)
def test_models_without_a_single_sequence_are_not_measured(name: str, reason: str) -> None:
    family = FAMILIES[name]
    result = _measured(family.make(), family.inputs())
    assert reason in result.reason
    assert np.isnan(result.whole)
    assert result.layers == ()


def test_layers_are_measured_if_the_output_is_not_by_token() -> None:
    class Pooled(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(dim=1)

    result = _measured(with_large_weights(Pooled()), _tokens())
    assert max(result.layers) <= tolerance(torch.float32)
    assert np.isnan(result.whole)
    assert result.reason == "the model's output is not one vector per token"


def test_inputs_too_short_to_permute_are_skipped() -> None:
    assert "fewer than 3 tokens" in _measured(with_large_weights(Encoder()), _tokens()[:, :2]).reason


def test_of_a_wide_output_some_columns_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones in every run, copied, so that the others need not be held."""
    generator = torch.Generator().manual_seed(0)
    weight, places = (torch.randn(*shape, generator=generator) for shape in ((5, 400), (TOKENS, 400)))
    batch = torch.randn(2, TOKENS, 5, generator=generator)
    held: list[int] = []

    def run(positions: float) -> Any:
        return lambda tokens: ModelOutput(attention=[], output=tokens @ weight + positions * places)

    def measured(positions: float) -> ModelValues:
        compare = whole_model._error

        def error(actual: Tensor | None, *others: Any) -> float:
            assert actual is not None
            held.append(actual.untyped_storage().nbytes() // 4)
            return compare(actual, *others)

        with monkeypatch.context() as patch:
            patch.setattr(whole_model, "_error", error)
            return permutation_errors(run(positions), batch, 0)

    everything = measured(1.0)
    assert set(held) == {TOKENS * 400}
    monkeypatch.setattr(whole_model, "LARGEST_OUTPUT", 100 * TOKENS)
    held.clear()
    some = measured(1.0)
    assert set(held) == {TOKENS * 100}
    assert measured(0.0).whole < tolerance(torch.float32)
    assert some.whole == pytest.approx(everything.whole, rel=0.2)
    assert some.control == pytest.approx(everything.control, rel=0.2)

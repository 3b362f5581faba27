"""Examples of a call: every tensor of an example belongs to its own input and window."""

import dataclasses

import torch
from torch import Tensor

from clearhead.audit.examples import make_examples
from clearhead.heads import Heads, LinearMap, ResidualStream
from clearhead.theories.example import Cache, Example
from clearhead.theories.theory import Windows

INPUTS, WINDOWS, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 5, 7, 11, 13
ENTRIES = INPUTS * WINDOWS


def _heads(*, shared: bool = False) -> Heads:
    """Return a call with random tensors. If `shared`, all entries and heads have the same mask and bias."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, out, out_gradient = (drawn(ENTRIES, HEADS, QUERIES, WIDTH) for _ in range(3))
    k, v = (drawn(ENTRIES, HEADS, KEYS, WIDTH) for _ in range(2))
    added = (1, 1) if shared else (ENTRIES, HEADS)
    before, total, between, after = (drawn(INPUTS, QUERIES, WIDTH) for _ in range(4))
    return Heads(
        layer=0, name="a", scale=1.0, windows=WINDOWS, q=q, k=k, v=v, out=out, out_gradient=out_gradient,
        mask=drawn(*added, QUERIES, KEYS) > 0, bias=drawn(*added, QUERIES, KEYS),
        keys_from=LinearMap(x=drawn(ENTRIES, KEYS, WIDTH), weight=drawn(HEADS, WIDTH, WIDTH)),
        residual_stream=ResidualStream(before=before, total=total, between=between, after=after),
    )  # fmt: skip


def _examples(heads: Heads, windows: Windows) -> list[list[Example]]:
    made = make_examples(heads, windows, first=0, seed=0, controls=True, per_audit=Cache())
    return [[example for example, _ in pairs] for pairs in made]


def test_examples_hold_the_tensors_of_their_own_entry() -> None:
    heads = _heads()
    by_input = _examples(heads, Windows.EACH)
    assert [len(examples) for examples in by_input] == [WINDOWS] * INPUTS
    assert heads.keys_from is not None
    assert heads.residual_stream is not None
    for index, examples in enumerate(by_input):
        for window, example in enumerate(examples):
            entry = index * WINDOWS + window
            for name in ("q", "k", "v", "out", "out_gradient", "mask", "bias"):
                assert torch.equal(getattr(example, name), getattr(heads, name)[entry]), name
            assert example.keys_from is not None
            assert torch.equal(example.keys_from.x[0], heads.keys_from.x[entry])
            assert example.stream is not None
            for name in ("before", "total", "between", "after"):
                assert torch.equal(getattr(example.stream, name)[0], getattr(heads.residual_stream, name)[index]), name


def test_a_shared_mask_and_bias_hold_for_every_entry() -> None:
    heads = _heads(shared=True)
    assert heads.mask is not None
    assert heads.bias is not None
    for examples in _examples(heads, Windows.EACH):
        for example in examples:
            assert example.mask is not None
            assert torch.equal(example.mask, heads.mask[0])
            assert example.bias is not None
            assert torch.equal(example.bias, heads.bias[0])


def test_examples_of_a_whole_input_hold_its_first_window() -> None:
    heads = _heads()
    for index, (example,) in enumerate(_examples(heads, Windows.WHOLE)):
        assert torch.equal(example.q, heads.q[index * WINDOWS])


def test_one_window_of_each_input_is_drawn() -> None:
    heads = _heads()
    for index, (example,) in enumerate(_examples(heads, Windows.ONE)):
        windows = heads.q[index * WINDOWS : (index + 1) * WINDOWS]
        assert sum(torch.equal(example.q, window) for window in windows) == 1


def test_attention_weights_are_those_of_the_call() -> None:
    """Each part of the call matters, and the weights lead to its output."""
    heads = dataclasses.replace(_heads(), softcap=1.5, sinks=torch.arange(HEADS, dtype=torch.float64))
    expected = heads.attention_weights()
    for by_input, entry in zip(_examples(heads, Windows.WHOLE), range(0, ENTRIES, WINDOWS), strict=True):
        (example,) = by_input
        weights = example.attention_weights()
        torch.testing.assert_close(weights, expected[entry])
        for name in ("mask", "bias", "softcap", "sinks"):
            without = dataclasses.replace(example, **{name: None}).attention_weights()
            assert not torch.allclose(without, weights), name
        half = dataclasses.replace(example, q=example.q.float(), k=example.k.float()).attention_weights()
        assert half.dtype is torch.float64


def test_tokens_are_the_keys_that_a_head_sees() -> None:
    heads = _heads()
    assert heads.mask is not None
    heads.mask[..., [2, 5]] = False
    heads.mask[:, 1:, :, 3] = False
    for (example,) in _examples(heads, Windows.WHOLE):
        assert example.tokens.tolist() == [0, 1, 3, 4, 6, 7, 8, 9, 10]
        assert dataclasses.replace(example, mask=None).tokens.tolist() == list(range(KEYS))

"""Inputs that a report shows: attention weights, tokens, image patches and pictures of theories."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from clearhead._capture import capture
from clearhead.audit.examples import make_examples
from clearhead.audit.run import audit
from clearhead.audit.shown_inputs import MOST_WEIGHTS, InputRecorder, ShownInput, input_texts
from clearhead.heads import Heads
from clearhead.theories.example import Cache, Example
from clearhead.theories.kernel_pca import captured_variance
from clearhead.theories.kernel_pca.measurement import spectrum
from clearhead.theories.max_margin.on_heads.measurement import MAX_QUERIES, margins
from clearhead.theories.theory import Windows

HEADS, LENGTH = 3, 11


def call(inputs: int = 2, length: int = LENGTH, *, layer: int = 0, seed: int = 0, **fields: Any) -> Heads:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(inputs, HEADS, length, 5, generator=generator) for _ in range(3))
    return Heads(layer=layer, name="attention", q=q, k=k, v=v, out=v, scale=0.7, **fields)


def example(**fields: Any) -> Example:
    return make_examples(call(**fields), Windows.WHOLE, first=0, seed=0, controls=False, per_audit=Cache())[0][0][0]


def recorded(batch: Any, *calls: Heads, heads: int = HEADS, decode: Any = None) -> tuple[ShownInput, ...]:
    recorder = InputRecorder(batch, (), heads=heads, decode=decode)
    for heads_of_call in calls:
        recorder(heads_of_call)
    return recorder.inputs()


def words(ids: Any) -> str:
    return " ".join(f"w{i}" for i in ids)


def test_weights_are_those_of_the_model_on_the_tokens_that_are_not_padding() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=7,
        initializer_range=1.0, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    batch = {"input_ids": torch.arange(2, 16).view(2, 7), "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}
    with torch.no_grad():
        expected = model(**batch, output_attentions=True).attentions
    recorder = InputRecorder(batch, (), heads=2 * HEADS, decode=words)
    with torch.no_grad(), capture(model, keep=recorder):
        model(**batch)
    shown = recorder.inputs()
    assert [s.tokens for s in shown] == [tuple(f"w{i}" for i in range(2, 9)), ("w9", "w10", "w11", "w12")]
    for index, length in ((0, 7), (1, 4)):
        for layer in shown[index].layers:
            of_model = expected[layer.layer][index, :, :length, :length].numpy()
            assert np.abs(layer.weights / 255 - np.sqrt(of_model)).max() <= 0.5 / 255 + 1e-6


def test_weights_are_of_the_whole_softmax_and_tokens_are_capped() -> None:
    long = call(length=130)
    (first, _) = recorded({"input_ids": torch.arange(260).view(2, 130)}, long, decode=words)
    assert (len(first.tokens), first.length) == (48, 130)
    full = torch.softmax(0.7 * long.q[0] @ long.k[0].mT, dim=-1)[:, :48, :48]
    assert np.abs(first.layers[0].weights / 255 - full.sqrt().numpy()).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("heads", [72, 144, 1024, 4096])
def test_the_weights_of_all_heads_have_a_limit(heads: int) -> None:
    shown = recorded(None, call(inputs=5, length=200), heads=heads)
    assert 1 <= len(shown) <= 3
    assert heads * sum(len(s.tokens) ** 2 for s in shown) <= MOST_WEIGHTS
    assert min(len(s.tokens) for s in shown) >= 16


def test_patches_of_an_image_keep_their_grid_and_colours() -> None:
    image = torch.zeros(1, 3, 8, 8)
    image[0, 0, :, 4:] = 1
    (shown,) = recorded({"pixel_values": image}, call(inputs=1, length=17))
    assert shown.grid == (4, 4)
    assert shown.colours is not None
    assert (shown.colours[:, 2:] == [255, 0, 0]).all()
    assert (shown.colours[:, :2] == 0).all()
    assert (shown.tokens[0], shown.tokens[1], shown.tokens[-1]) == ("token 0", "row 0, column 0", "row 3, column 3")
    assert shown.queries[0] == 0
    assert shown.layers[0].weights.shape == (HEADS, len(shown.queries), 17)


def test_texts_begin_with_the_tokens_that_are_not_padding() -> None:
    batch = {"input_ids": torch.tensor([[5, 6, 0], [7, 8, 9]]), "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    assert input_texts(batch, 2, words) == ["w5 w6", "w7 w8 w9"]
    assert input_texts({"pixel_values": torch.zeros(2, 3, 4, 4)}, 2, words) == ["", ""]


def test_hostile_and_failing_tokenizers_give_short_text() -> None:
    def fail(ids: Any) -> str:
        raise RuntimeError("no")

    batch = {"input_ids": torch.tensor([[5, 6]])}
    assert input_texts(batch, 1, fail) == ["5 6"]
    (long,) = input_texts(batch, 1, lambda ids: "x" * 1_000_000)
    assert len(long) == 120
    (half,) = input_texts(batch, 1, lambda ids: "a\ud800b")
    assert half == "a?b"


def test_the_spectrum_adds_up_to_the_captured_variance() -> None:
    one = example(length=23)
    picture = spectrum(one)
    assert picture is not None
    assert picture.part is not None
    assert (picture.part <= picture.bars + 1e-12).all()
    expected = captured_variance(one.k.double(), one.v.double(), scale=one.scale)
    assert picture.part.sum(axis=1) == pytest.approx(expected.numpy(), rel=1e-9)
    assert picture.bars[:, : one.v.shape[-1]].sum(axis=1) == pytest.approx(1)


def test_the_shortest_bar_is_the_margin() -> None:
    one = example()
    picture = margins(one)
    assert picture is not None
    top = (one.scale * one.q.double() @ one.k.double().mT).topk(2, dim=-1).values
    assert picture.bars[:, -1] == pytest.approx((top[..., 0] - top[..., 1]).amin(dim=-1).numpy())
    assert margins(example(bias=torch.zeros(1, 1, LENGTH, LENGTH))) is None


def test_margins_of_a_long_causal_input_are_of_its_first_queries_with_two_keys() -> None:
    length = MAX_QUERIES + 13
    visible = torch.ones(length, length, dtype=torch.bool).tril() & (torch.arange(length) != 5)
    one = example(length=length, mask=visible[None, None])
    picture = margins(one)
    assert picture is not None
    scores = (one.scale * one.q.double() @ one.k.double().mT).masked_fill(~visible, -torch.inf)
    top = scores.topk(2, dim=-1).values
    gaps = (top[..., 0] - top[..., 1])[:, [q for q in range(1, length) if q != 5]][:, :MAX_QUERIES]
    assert picture.bars == pytest.approx(gaps.sort(dim=-1, descending=True).values.numpy())


def test_an_audit_records_the_first_inputs_and_every_text() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=6, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7
    )
    batches = [{"input_ids": torch.randint(1, 31, (2, 9))} for _ in range(3)]
    record = audit(
        transformers.BertModel(config).eval(), batches, theories=["kernel-pca", "symmetry"], decode=words, baseline=None
    )
    assert len(record.texts) == 6
    assert record.texts[4] == words(batches[2]["input_ids"][0].tolist())
    assert [s.number for s in record.shown] == [1, 2]
    assert [p.theory for p in record.shown[0].layers[0].pictures] == ["kernel PCA"]
    assert set(record.words) == {"kernel PCA", "symmetry"}

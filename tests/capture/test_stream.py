"""The captured residual stream is bit-identical to that in the code of each family."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture, capture_gradients
from clearhead._swap import swap
from clearhead.heads import Heads, ResidualStream
from clearhead.numerics.precision import tolerance
from clearhead.operators import softmax_attention
from tests.capture.models import loss_of
from tests.capture.stream_truth import CASES, IN, Case, recorded
from tests.interfaces.zoo import FAMILIES, _size, _text, _transformers
from tests.swap.models import same, tensors

PARTS = ("before", "between", "after")


def _captured(model: nn.Module, inputs: dict[str, Any]) -> tuple[list[Heads], list[Tensor]]:
    with torch.no_grad(), capture(model, residual_stream=True) as captured:
        output = model(**inputs)
    return captured.heads, list(tensors(output))


def _truth(case: Case, heads: list[Heads], seen: dict[tuple[str, str], list[Tensor]]) -> list[list[Tensor | None]]:
    """Return the three tensors of the residual stream of each call; an empty list for calls without one."""
    count: Counter[str] = Counter()
    result: list[list[Tensor | None]] = []
    for call in heads:
        path = call.name.split(", call ")[0]
        places = case.place(path)
        result.append(
            [] if places is None else [None if place is None else seen[place][count[path]] for place in places.of(path)]
        )
        count[path] += 1
    return result


def _is(ours: Tensor | None, theirs: Tensor | None) -> bool:
    """Return whether two are bit-identical; rows and columns of an image are tokens on one axis."""
    if ours is None or theirs is None:
        return ours is theirs
    return torch.equal(ours, theirs.reshape(ours.shape))


@pytest.mark.parametrize("name", CASES)
def test_the_residual_stream_is_what_each_family_adds_to(name: str) -> None:
    case = CASES[name]
    model, inputs = case.family.make(), case.family.inputs()
    with torch.no_grad(), recorded(model) as seen:
        alone = list(tensors(model(**inputs)))
    heads, while_capturing = _captured(model, inputs)
    assert same(alone, while_capturing)
    assert [call.layer for call in heads] == list(range(case.family.calls))
    for call, truth in zip(heads, _truth(case, heads, seen), strict=True):
        if not truth:
            assert call.residual_stream is None, call.name
            continue
        assert call.residual_stream is not None, call.name
        for part, theirs in zip(PARTS, truth, strict=True):
            assert _is(getattr(call.residual_stream, part), theirs), (call.name, part)
        assert not any(x.requires_grad for x in (call.residual_stream.before, call.residual_stream.between))
        _assert_controls(call.residual_stream)
        _assert_sum(name, call)


def _assert_controls(stream: ResidualStream) -> None:
    """The three tensors differ, so that none can be mistaken for another."""
    assert not torch.equal(stream.before, stream.between)
    assert stream.after is None or not torch.equal(stream.after, stream.between)


POST_NORM = {"bert", "roberta", "albert", "mpnet", "distilbert", "bart"}
NOT_LINEAR = {"gemma2", "olmo2", "swin", "timm swin"}
"""A norm between the output projection and the sum, or windows."""
SHRINK = 0.3


def _assert_sum(name: str, call: Heads) -> None:
    """The sum is the tokens before plus the heads' outputs by their weights, and a constant; the norm follows it."""
    stream = call.residual_stream
    assert (not torch.equal(stream.total, stream.between)) is (name in POST_NORM) is (stream.norm is not None)
    if stream.norm is not None:
        norm = stream.norm
        expected = nn.functional.layer_norm(stream.total, stream.total.shape[-1:], norm.weight, norm.bias, norm.eps)
        assert torch.equal(stream.between, expected)
    assert (call.output_weight is None) is (name in NOT_LINEAR)
    if call.output_weight is None:
        return
    added = torch.einsum("bhne,hec->bnc", call.out.double(), call.output_weight.double())
    constant = stream.total.double() - (1 - SHRINK if name == "crate, paper" else 1) * stream.before.double() - added
    error = (constant - constant[:1, :1]).abs().max() / stream.total.abs().max()
    assert error < tolerance(torch.float32, terms=call.out.shape[1] * call.out.shape[3])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_normalised_inputs_of_attention_are_not_the_residual_stream(name: str) -> None:
    """The control: the comparison fails for a tensor of the same shape on the other side of a norm."""
    case, norm = CASES[name], {"gpt2": "h.1.ln_1", "llama": "layers.1.input_layernorm"}[name]
    model, inputs = case.family.make(), case.family.inputs()
    with torch.no_grad(), recorded(model) as seen:
        model(**inputs)
    heads, _ = _captured(model, inputs)
    assert _is(heads[1].residual_stream.before, seen[norm, IN][0])
    assert not _is(heads[1].residual_stream.before, seen[norm, "out"][0])


@pytest.mark.parametrize("name", ["bert", "gemma2", "swin", "timm vit", "t5", "crate, released"])
def test_gradient_captures_have_the_residual_stream_too(name: str) -> None:
    case = CASES[name]
    model, inputs = case.family.make(), case.family.inputs()
    with recorded(model) as seen:
        model(**inputs)
    with capture_gradients(model, residual_stream=True) as captured:
        captured.differentiate(loss_of(model(**inputs)))
    assert all(call.out_gradient is not None for call in captured.heads)
    for call, truth in zip(captured.heads, _truth(case, captured.heads, seen), strict=True):
        if truth:
            for part, theirs in zip(PARTS, truth, strict=True):
                assert _is(getattr(call.residual_stream, part), theirs), (call.name, part)
            assert not call.residual_stream.between.requires_grad
            _assert_sum(name, call)
        else:
            assert call.residual_stream is None
    assert all(parameter.grad is None for parameter in model.parameters())


PARALLEL = {
    "gpt-neox": ("GPTNeoXModel", "GPTNeoXConfig", _size()),
    "falcon": ("FalconModel", "FalconConfig", _size()),
    "cohere": ("CohereModel", "CohereConfig", _size()),
    "phi": ("PhiModel", "PhiConfig", _size(hidden_size=32)),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_attention_parallel_to_an_mlp_has_no_residual_stream(name: str) -> None:
    model_class, config, values = PARALLEL[name]
    model = _transformers(model_class, config, **values)()
    heads, while_capturing = _captured(model, _text())
    with torch.no_grad():
        assert same(list(tensors(model(**_text()))), while_capturing)
    assert len(heads) == 3
    assert all(call.residual_stream is None for call in heads)


def test_the_sequential_form_of_the_same_family_has_a_residual_stream() -> None:
    """The control: GPT-NeoX can also be configured with its MLP after its attention."""
    heads, _ = _captured(
        _transformers("GPTNeoXModel", "GPTNeoXConfig", use_parallel_residual=False, **_size())(), _text()
    )
    assert all(call.residual_stream is not None for call in heads)


def test_the_residual_stream_is_recorded_only_on_request() -> None:
    family = FAMILIES["bert"]
    model = family.make()
    with torch.no_grad(), capture(model) as captured:
        model(**family.inputs())
    assert all(call.residual_stream is None for call in captured.heads)


def test_half_precision_and_inference_mode() -> None:
    family = FAMILIES["llama"]
    model, inputs = family.make().to(torch.bfloat16), family.inputs()
    with torch.no_grad(), recorded(model) as seen:
        model(**inputs)
    with torch.inference_mode(), capture(model, residual_stream=True) as captured:
        model(**inputs)
    for call, truth in zip(captured.heads, _truth(CASES["llama"], captured.heads, seen), strict=True):
        for part, theirs in zip(PARTS, truth, strict=True):
            assert _is(getattr(call.residual_stream, part), theirs), (call.name, part)
        assert call.output_weight.dtype == torch.bfloat16


def test_generation_with_a_cache_records_the_residual_stream_of_new_tokens() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=67, n_embd=24, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    prompt = torch.randint(5, 60, (2, 5))
    with capture(model, residual_stream=True) as captured:
        model.generate(prompt, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert [tuple(call.residual_stream.before.shape) for call in captured.heads] == [(2, 5, 24)] * 2 + [(2, 1, 24)] * 4


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("path", ["fused", "open", "swapped", "gradients"])
def test_the_output_weight_of_torch_attention_has_its_output_projection(path: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 13, batch_first=batch_first, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(5, 7, 12, dtype=torch.float64)
    if path == "gradients":
        with capture_gradients(model, residual_stream=True) as captured:
            captured.differentiate(model(x).sum())
    else:
        if path == "swapped":
            swap(model, softmax_attention)
        elif path == "open":
            for block in model.layers:
                block.register_forward_pre_hook(lambda *_: None)
        with torch.no_grad(), capture(model, residual_stream=True) as captured:
            model(x)
    for call, block in zip(captured.heads, model.layers, strict=True):
        attention, stream = block.self_attn, call.residual_stream
        projected = torch.einsum("bhne,hec->bnc", call.out, call.output_weight) + attention.out_proj.bias
        torch.testing.assert_close(stream.before + projected, stream.total)
        wrong = torch.einsum("bhne,hec->bnc", call.out, call.output_weight.flip(0)) + attention.out_proj.bias
        assert not torch.allclose(stream.before + wrong, stream.total)

"""torch.nn.MultiheadAttention and torch's encoder and decoder, on their fused paths and off them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.audit.fidelity import FidelityError, check_fidelity, recompute_error
from clearhead.interfaces import AttentionNotSeenError
from clearhead.numerics.precision import tolerance
from clearhead.operators.softmax import slow_softmax_attention
from tests.interfaces.zoo import with_large_weights

BATCH, TOKENS, MEMORY, WIDTH, HEADS = 3, 11, 5, 24, 4

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)


def _tokens(n: int = TOKENS, width: int = WIDTH) -> Tensor:
    return torch.randn(BATCH, n, width, generator=torch.Generator().manual_seed(n + width))


def _padding(n: int = TOKENS) -> Tensor:
    padding = torch.zeros(BATCH, n, dtype=torch.bool)
    padding[0, n - 2 :] = True
    padding[1, n // 2 :] = True
    return padding


def _encoder(*, norm_first: bool = False, batch_first: bool = True, dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 29, dropout, batch_first=batch_first, norm_first=norm_first)
    return with_large_weights(nn.TransformerEncoder(layer, 2))


def _decoder() -> nn.Module:
    return with_large_weights(
        nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 29, 0.0, batch_first=True), 2)
    )


CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)
RUNS = {
    "encoder": (_encoder, lambda m: m(_tokens()), 2),
    "encoder, padded": (_encoder, lambda m: m(_tokens(), src_key_padding_mask=_padding()), 2),
    "encoder, norm first, padded": (
        lambda: _encoder(norm_first=True),
        lambda m: m(_tokens(), src_key_padding_mask=_padding()),
        2,
    ),
    "encoder, causal": (_encoder, lambda m: m(_tokens(), mask=CAUSAL, is_causal=True), 2),
    "encoder, tokens first, padded": (
        lambda: _encoder(batch_first=False),
        lambda m: m(_tokens().transpose(0, 1), src_key_padding_mask=_padding()),
        2,
    ),
    "decoder, causal, padded": (
        _decoder,
        lambda m: m(
            _tokens(),
            _tokens(MEMORY),
            tgt_mask=CAUSAL,
            tgt_key_padding_mask=torch.zeros(BATCH, TOKENS).masked_fill(_padding(), -torch.inf),
            memory_key_padding_mask=_padding(MEMORY),
        ),
        4,
    ),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_torchs_encoder_and_decoder_are_captured(name: str, training: bool, gradients: bool) -> None:
    make, run, calls = RUNS[name]
    model = make().train(training)
    with torch.set_grad_enabled(gradients):
        fidelity = check_fidelity(model, lambda: run(model))
        with capture(model) as captured:
            run(model)
    assert fidelity.output_difference == 0.0
    assert len(fidelity.layers) == len(captured.heads) == calls
    for heads in captured.heads:
        slow = slow_softmax_attention(heads.q, heads.k, heads.v, mask=heads.mask, bias=heads.bias, scale=heads.scale)
        rows = torch.ones(1, 1, 1, 1, dtype=torch.bool) if heads.rows is None else heads.rows
        assert float(torch.where(rows, slow - heads.out, 0).abs().max()) <= 8 * tolerance(torch.float32)
        assert (heads.mask is not None) == (("padded" in name) or ("causal" in name))


VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "learned key": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "other widths": {"kdim": 7, "vdim": 13},
    "all": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 7, "vdim": 13, "batch_first": True},
}


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_torchs_module_is_captured(variant: str, weights: bool) -> None:
    options = VARIANTS[variant]
    model = with_large_weights(nn.MultiheadAttention(WIDTH, HEADS, **options)).eval()
    inputs = (_tokens(), _tokens(MEMORY, options.get("kdim", WIDTH)), _tokens(MEMORY, options.get("vdim", WIDTH)))
    if not options.get("batch_first", False):
        inputs = tuple(x.transpose(0, 1) for x in inputs)
    extra = options.get("add_bias_kv", False) + options.get("add_zero_attn", False)

    def run() -> object:
        return model(*inputs, key_padding_mask=_padding(MEMORY), need_weights=weights)

    with torch.no_grad():
        fidelity = check_fidelity(model, run)
        with capture(model) as captured:
            run()
    assert fidelity.output_difference == 0.0
    assert captured.heads[0].k.shape == (BATCH, HEADS, MEMORY + extra, WIDTH // HEADS)


@pytest.mark.parametrize("batched", [True, False])
def test_self_attention_on_torchs_fused_path_is_captured(batched: bool) -> None:
    model = with_large_weights(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)).eval()
    x = _tokens() if batched else _tokens()[0]
    with torch.no_grad():
        assert check_fidelity(model, lambda: model(x, x, x)).output_difference == 0.0


def test_a_mask_per_head_is_captured() -> None:
    model = with_large_weights(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)).eval()
    x = _tokens()
    hidden = torch.rand(BATCH * HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(8)) > 0.6
    hidden &= ~torch.eye(TOKENS, dtype=torch.bool)
    with torch.no_grad():
        check_fidelity(model, lambda: model(x, x, x, attn_mask=hidden))
        with capture(model) as captured:
            model(x, x, x, attn_mask=hidden)
    assert torch.equal(captured.heads[0].mask, ~hidden.view(BATCH, HEADS, TOKENS, TOKENS))


@pytest.mark.parametrize("weights", [False, True])
def test_capturing_does_not_change_the_dropout_mask(weights: bool) -> None:
    model = with_large_weights(nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, batch_first=True)).train()
    x = _tokens()
    torch.manual_seed(0)
    alone, after_alone = model(x, x, x, need_weights=weights)[0], torch.rand(3)
    torch.manual_seed(0)
    with capture(model) as captured:
        while_capturing = model(x, x, x, need_weights=weights)[0]
    assert torch.equal(alone, while_capturing)
    assert torch.equal(torch.rand(3), after_alone)
    assert captured.heads[0].dropout == 0.3
    joined = model.out_proj(captured.heads[0].out.transpose(1, 2).flatten(2))
    assert torch.allclose(joined, alone, atol=tolerance(torch.float32))
    with pytest.raises(FidelityError, match=r"model\.eval\(\)"):
        recompute_error(captured.heads[0])


def test_a_subclass_that_changes_the_output_raises_an_error() -> None:
    class Doubled(nn.MultiheadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output, weights = super().forward(*args, **kwargs)
            return 2 * output, weights

    model, x = with_large_weights(Doubled(WIDTH, HEADS, batch_first=True)).eval(), _tokens()
    message = "attention computed again on torch's open path differs from its output"
    with pytest.raises(AttentionNotSeenError, match=message), torch.no_grad(), capture(model):
        model(query=x, key=x, value=x)

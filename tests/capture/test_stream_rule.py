"""One rule finds the residual stream in all kinds of blocks, and reports none where there is none."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture, capture_gradients
from clearhead._capture.blocks import Axes
from clearhead._capture.dataflow import Dataflow
from clearhead.numerics.precision import tolerance
from tests.capture import stream_models as toys
from tests.capture.models import loss_of
from tests.capture.stream_checks import assert_carried, captured
from tests.capture.stream_models import BATCH, BLOCKS, HEADS, TOKENS, WIDTH, Carried, Step, Toy, tokens, toy_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)

SERIAL = [
    toys.pre_norm, toys.post_norm, toys.scaled, toys.scaled_stream, toys.copied, toys.in_place,
    toys.overwritten, toys.flattened, toys.inner_residual, toys.crate, toys.crate_by_subtraction,
    toys.attention_alone, toys.attention_alone_with_sums, toys.values_added, toys.post_norm_twice,
]  # fmt: skip
WITHOUT = [
    toys.no_residual, toys.residual_elsewhere, toys.parallel, toys.parallel_in_turn, toys.parallel_in_place,
    toys.beside_in_one_map, toys.stream_taken_away, toys.stream_halved,
]  # fmt: skip


@pytest.mark.parametrize("step", [*SERIAL, *WITHOUT])
@pytest.mark.parametrize("blocks", [1, 2, BLOCKS])
def test_the_residual_stream_is_found_in_every_way_to_write_a_block(step: Step, blocks: int) -> None:
    model = toy_model(step, blocks)
    heads = captured(model, tokens())
    if blocks == 1 and step in (toys.crate, toys.crate_by_subtraction):
        assert heads[0].residual_stream.after is None  # No earlier block shows where a block ends.
        model.carried = [(*model.carried[0][:2], None)]
    assert_carried(heads, model.carried)


@pytest.mark.parametrize("step", SERIAL)
def test_replacing_the_output_of_attention_changes_the_sum_by_the_output_weight(step: Step) -> None:
    """Compared with the model itself, with values twice as large."""
    first, doubled = captured(toy_model(step, 1), tokens())[0], toy_model(step, 1)
    if step in (toys.values_added, toys.attention_alone_with_sums):
        assert first.output_weight is None  # Something is added before the projection.
        return
    with torch.no_grad():
        for parameter in doubled.blocks[0].attention.project.parameters():
            parameter[2 * WIDTH :] *= 2
    second = captured(doubled, tokens())[0]
    added = torch.einsum("bhne,hec->bnc", first.out, first.output_weight)
    change = second.residual_stream.total - first.residual_stream.total
    assert torch.allclose(change, added, atol=tolerance(torch.float32, terms=WIDTH))
    assert not torch.allclose(change, 0 * added, atol=1e-2)


def _scaled_by_feature(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = x + block.norm.weight * (block.attention(x) / 3)
    return between, (x, between, None)


def _gated(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried]:
    attended = block.attention(x)
    between = x + attended.mean(dim=(0, 1)) * attended
    return between, (x, between, None)


def _features_first(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """The projection reads the first feature of every head, then the second."""
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in block.attention.project(x).chunk(3, dim=-1))
    attended = nn.functional.scaled_dot_product_attention(q, k, v)
    between = x + block.attention.out(attended.permute(0, 2, 3, 1).flatten(2))
    return between, (x, between, None)


def _unprojected(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried]:
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in block.attention.project(x).chunk(3, dim=-1))
    between = x + 0.5 * nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return between, (x, between, None)


def test_attention_without_a_projection_has_the_identity_as_output_weight() -> None:
    weight = captured(toy_model(_unprojected, 1), tokens())[0].output_weight
    assert torch.equal(weight.flatten(0, 1), 0.5 * torch.eye(WIDTH))


def test_the_output_weight_has_scales_of_features_but_no_gates_and_no_other_order() -> None:
    model = toy_model(_scaled_by_feature, 1)
    scale, projection = model.blocks[0].norm.weight, model.blocks[0].attention.out
    nn.init.normal_(scale)
    weight = captured(model, tokens())[0].output_weight
    assert torch.allclose(weight.flatten(0, 1), projection.weight.mT * scale / 3, atol=tolerance(torch.float32))
    for step in (_gated, _features_first):
        assert captured(toy_model(step, 1), tokens())[0].output_weight is None


def test_modules_before_and_after_attention_are_handled() -> None:
    """The next attention is added after both the norm and the half step."""
    model = toy_model(toys.macaron)
    heads = captured(model, tokens())
    for call, following, truth in zip(heads, [*heads[1:], None], model.carried, strict=True):
        assert torch.equal(call.residual_stream.before, truth[0])
        assert torch.equal(call.residual_stream.between, truth[1])
        assert following is None or torch.equal(call.residual_stream.after, following.residual_stream.before)


def test_attention_layers_that_are_added_together_share_a_residual_stream() -> None:
    model = toy_model(toys.two_in_one_sum)
    heads = captured(model, tokens())
    assert_carried(heads[::2], model.carried)
    assert_carried(heads[1::2], model.carried)


@pytest.mark.parametrize("inputs", [BATCH, TOKENS])
def test_models_with_tokens_first(inputs: int) -> None:
    """Also if there are as many tokens as inputs, so that sizes do not distinguish them."""
    model = toy_model(toys.tokens_first)
    heads = captured(model, tokens(TOKENS, inputs))
    assert_carried(heads, model.carried)
    assert heads[0].residual_stream.before.shape == (inputs, TOKENS, WIDTH)


@pytest.mark.parametrize("inputs", [BATCH, TOKENS])
def test_attention_with_tokens_first_in_a_model_with_batch_first(inputs: int) -> None:
    model = toy_model(toys.turned_for_attention)
    assert_carried(captured(model, tokens(inputs, TOKENS)), model.carried)


def test_a_reused_storage_is_not_mistaken_for_the_old_tensor() -> None:
    """Torch reuses addresses of storages; during a traced pass they are not reused."""
    flow = Dataflow()
    assert [flow.node(torch.randn(7)) for _ in range(29)] == list(range(29))


def test_only_tensors_with_the_calls_tokens_are_accepted() -> None:
    """Images must have rows, columns and channels last; ambiguous tensors are not accepted."""
    axes = Axes(inputs=3, tokens=35, windows=1, tokens_first=False)
    image = torch.randn(3, 5, 7, 11)
    assert torch.equal(axes.by_input(image), image.reshape(3, 35, 11))
    assert axes.by_input(image.movedim(-1, 1)) is None
    assert axes.by_input(torch.randn(3, 5, 7, 5)) is None
    assert axes.by_input(torch.randn(3, 34, 11)) is None
    windows = Axes(inputs=3, tokens=9, windows=4, tokens_first=False)
    assert windows.by_input(image).shape == (3, 35, 11)
    assert windows.by_input(torch.randn(3, 37, 11)) is None
    assert windows.by_input(torch.randn(2, 35, 11)) is None
    alone = Axes(inputs=1, tokens=35, windows=1, tokens_first=False)
    assert alone.by_input(torch.randn(35, 11)).shape == (1, 35, 11)


def test_a_sum_over_several_blocks_does_not_close_a_block() -> None:
    class Long(Toy):
        def forward(self, x: Tensor) -> Tensor:
            first = x
            x = super().forward(x) @ self.head.weight
            again: Tensor = super().forward(x + first)
            return again

    torch.manual_seed(0)
    model = Long(toys.pre_norm).eval()
    heads = captured(model, tokens())
    assert len(heads) == 2 * BLOCKS
    assert_carried(heads[BLOCKS:], model.carried)
    assert torch.equal(heads[1].residual_stream.before, heads[0].residual_stream.after)


def test_training_mode_works_and_keeps_the_random_state() -> None:
    def dropped(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried]:
        between = x + nn.functional.dropout(block.attention(block.norm(x)), 0.3)
        after = between + nn.functional.dropout(block.mlp(block.mlp_norm(between)), 0.3)
        return after, (x, between, after)

    model = toy_model(dropped).train()
    torch.manual_seed(5)
    alone = model(tokens())
    torch.manual_seed(5)
    with capture(model, residual_stream=True) as recorded:
        while_capturing = model(tokens())
    assert torch.equal(alone, while_capturing)
    assert_carried(recorded.heads, model.carried)


@pytest.mark.parametrize("step", [toys.pre_norm, toys.post_norm, toys.crate, toys.parallel])
def test_gradient_captures_record_the_residual_stream(step: Step) -> None:
    model = toy_model(step)
    with capture_gradients(model, residual_stream=True) as recorded:
        for seed in range(2):
            recorded.differentiate(loss_of(model(tokens() + seed)))
            assert_carried(recorded.heads[-BLOCKS:], model.carried)
    assert all(call.out_gradient is not None for call in recorded.heads)


def _encoder(layers: int = 3, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 23, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=options.get("batch_first", False)).eval()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("batch_first", "inputs"), [(True, BATCH), (False, BATCH), (False, TOKENS)])
def test_the_residual_stream_of_torchs_encoder(batch_first: bool, inputs: int, norm_first: bool, fused: bool) -> None:
    """On the fused path a second run is recorded: its tokens equal the model's up to rounding."""
    model = _encoder(batch_first=batch_first, norm_first=norm_first)
    x = tokens(inputs, TOKENS) if batch_first else tokens(TOKENS, inputs)
    with torch.set_grad_enabled(not fused), capture(model, residual_stream=True) as recorded:
        while_capturing = model(x)
    with torch.set_grad_enabled(not fused):
        assert torch.equal(while_capturing, model(x))
    allowed = 4 * tolerance(torch.float32, terms=23) if fused else 0.0
    for call, layer in zip(recorded.heads, model.layers, strict=True):
        with torch.enable_grad():
            attended = layer._sa_block(layer.norm1(x) if norm_first else x, None, None)
            between = x + attended if norm_first else layer.norm1(x + attended)
            after = between + layer._ff_block(layer.norm2(between) if norm_first else between)
            after = after if norm_first else layer.norm2(after)
        truth = [part.detach() if batch_first else part.detach().transpose(0, 1) for part in (x, between, after)]
        assert torch.equal(call.residual_stream.before, truth[0])
        for ours, theirs in zip((call.residual_stream.between, call.residual_stream.after), truth[1:], strict=True):
            assert float((ours - theirs).abs().max()) <= allowed * float(theirs.abs().max())
        with torch.set_grad_enabled(not fused):
            x = layer(x)


def test_the_residual_stream_of_a_padded_fused_encoder() -> None:
    model = _encoder(batch_first=True)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[0, 7:] = True
    with torch.no_grad():
        alone = model(tokens(), src_key_padding_mask=padding)
        with capture(model, residual_stream=True) as recorded:
            while_capturing = model(tokens(), src_key_padding_mask=padding)
    assert torch.equal(alone, while_capturing)
    assert torch.equal(recorded.heads[0].residual_stream.before, tokens().masked_fill(padding.unsqueeze(-1), 0))
    last = recorded.heads[-1].residual_stream.after
    assert float((last - while_capturing)[~padding].abs().max()) <= 4 * tolerance(torch.float32, terms=23) * float(
        last.max()
    )

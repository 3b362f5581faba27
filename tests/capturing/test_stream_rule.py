"""One rule finds the stream however a block is written, and does not where there is none."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from clearhead.capturing import capture, capture_gradients
from clearhead.fidelity import recompute_error
from clearhead.heads import Heads
from clearhead.numerics.precision import tolerance
from clearhead.sockets.blocks import Axes
from clearhead.swapping import swap
from tests.capturing import stream_models as toys
from tests.capturing.models import loss_of
from tests.capturing.stream_models import BATCH, BLOCKS, HEADS, TOKENS, WIDTH, Carried, Step, Toy, made, tokens

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)

SERIAL = [
    toys.pre_norm, toys.post_norm, toys.scaled, toys.scaled_stream, toys.copied, toys.in_place,
    toys.overwritten, toys.flattened, toys.inner_residual, toys.crate, toys.crate_by_subtraction,
    toys.attention_alone, toys.attention_alone_with_sums, toys.values_added, toys.post_norm_twice,
]  # fmt: skip
WITHOUT = [
    toys.no_residual, toys.residual_elsewhere, toys.beside, toys.beside_in_turn, toys.beside_in_place,
    toys.beside_in_one_map, toys.stream_taken_away, toys.stream_halved,
]  # fmt: skip


def _captured(model: nn.Module, x: Tensor) -> list[Heads]:
    with torch.no_grad(), capture(model, stream=True) as tape:
        watched = model(x.clone())
    with torch.no_grad():
        assert torch.equal(model(x.clone()), watched)
    return tape.heads


def _assert_carried(heads: list[Heads], carried: list[Carried | None]) -> None:
    for call, truth in zip(heads, carried, strict=True):
        if truth is None:
            assert call.stream is None, call.name
            continue
        assert call.stream is not None, call.name
        parts = (call.stream.before, call.stream.between, call.stream.after)
        for name, ours, theirs in zip(("before", "between", "after"), parts, truth, strict=True):
            assert (ours is None) == (theirs is None), (call.name, name)
            assert ours is None or torch.equal(ours, theirs), (call.name, name)


@pytest.mark.parametrize("step", [*SERIAL, *WITHOUT])
@pytest.mark.parametrize("blocks", [1, 2, BLOCKS])
def test_however_it_is_written(step: Step, blocks: int) -> None:
    model = made(step, blocks)
    heads = _captured(model, tokens())
    if blocks == 1 and step in (toys.crate, toys.crate_by_subtraction):
        assert heads[0].stream.after is None  # No block before has shown where one ends.
        model.carried = [(*model.carried[0][:2], None)]
    _assert_carried(heads, model.carried)


def test_parts_before_and_after_attention_are_past_it() -> None:
    """What the next attention is added to comes after both, the norm and its own half step."""
    model = made(toys.macaron)
    heads = _captured(model, tokens())
    for call, following, truth in zip(heads, [*heads[1:], None], model.carried, strict=True):
        assert torch.equal(call.stream.before, truth[0])
        assert torch.equal(call.stream.between, truth[1])
        assert following is None or torch.equal(call.stream.after, following.stream.before)


def test_attentions_that_are_added_together_have_one_stream() -> None:
    model = made(toys.two_in_one_sum)
    heads = _captured(model, tokens())
    _assert_carried(heads[::2], model.carried)
    _assert_carried(heads[1::2], model.carried)


@pytest.mark.parametrize("inputs", [BATCH, TOKENS])
def test_tokens_may_come_first(inputs: int) -> None:
    """Also where there are as many as inputs, so that no length tells."""
    model = made(toys.tokens_first)
    heads = _captured(model, tokens(TOKENS, inputs))
    _assert_carried(heads, model.carried)
    assert heads[0].stream.before.shape == (inputs, TOKENS, WIDTH)


def test_only_tokens_of_the_call_are_laid_out() -> None:
    """Images have rows, columns and a width at last, or they are left alone; what fits both ways is no one's."""
    axes = Axes(inputs=3, tokens=35, windows=1, tokens_first=False)
    image = torch.randn(3, 5, 7, 11)
    assert torch.equal(axes.laid_out(image), image.reshape(3, 35, 11))
    assert axes.laid_out(image.movedim(-1, 1)) is None
    assert axes.laid_out(torch.randn(3, 5, 7, 5)) is None
    assert axes.laid_out(torch.randn(3, 34, 11)) is None
    windows = Axes(inputs=3, tokens=9, windows=4, tokens_first=False)
    assert windows.laid_out(image).shape == (3, 35, 11)
    assert windows.laid_out(torch.randn(3, 37, 11)) is None
    assert windows.laid_out(torch.randn(2, 35, 11)) is None
    alone = Axes(inputs=1, tokens=35, windows=1, tokens_first=False)
    assert alone.laid_out(torch.randn(35, 11)).shape == (1, 35, 11)


def test_a_sum_over_several_blocks_is_no_part_of_one() -> None:
    class Long(Toy):
        def forward(self, x: Tensor) -> Tensor:
            first = x
            x = super().forward(x) @ self.head.weight
            again: Tensor = super().forward(x + first)
            return again

    torch.manual_seed(0)
    model = Long(toys.pre_norm).eval()
    heads = _captured(model, tokens())
    assert len(heads) == 2 * BLOCKS
    _assert_carried(heads[BLOCKS:], model.carried)
    assert torch.equal(heads[1].stream.before, heads[0].stream.after)


def test_in_training_too_and_with_the_same_chance() -> None:
    def dropped(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried]:
        between = x + nn.functional.dropout(block.attention(block.norm(x)), 0.3)
        after = between + nn.functional.dropout(block.mlp(block.mlp_norm(between)), 0.3)
        return after, (x, between, after)

    model = made(dropped).train()
    torch.manual_seed(5)
    alone = model(tokens())
    torch.manual_seed(5)
    with capture(model, stream=True) as tape:
        watched = model(tokens())
    assert torch.equal(alone, watched)
    _assert_carried(tape.heads, model.carried)


@pytest.mark.parametrize("step", [toys.pre_norm, toys.post_norm, toys.crate, toys.beside])
def test_with_gradients(step: Step) -> None:
    model = made(step)
    with capture_gradients(model, stream=True) as tape:
        for seed in range(2):
            tape.differentiate(loss_of(model(tokens() + seed)))
            _assert_carried(tape.heads[-BLOCKS:], model.carried)
    assert all(call.out_gradient is not None for call in tape.heads)


def _encoder(layers: int = 3, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 23, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=options.get("batch_first", False)).eval()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("batch_first", "inputs"), [(True, BATCH), (False, BATCH), (False, TOKENS)])
def test_torchs_encoder(batch_first: bool, inputs: int, norm_first: bool, fused: bool) -> None:
    """On its fused path a second run is seen, whose tokens are the model's to rounding; those before are its own."""
    model = _encoder(batch_first=batch_first, norm_first=norm_first)
    x = tokens(inputs, TOKENS) if batch_first else tokens(TOKENS, inputs)
    with torch.set_grad_enabled(not fused), capture(model, stream=True) as tape:
        watched = model(x)
    with torch.set_grad_enabled(not fused):
        assert torch.equal(watched, model(x))
    allowed = 4 * tolerance(torch.float32, terms=23) if fused else 0.0
    for call, layer in zip(tape.heads, model.layers, strict=True):
        with torch.enable_grad():
            attended = layer._sa_block(layer.norm1(x) if norm_first else x, None, None)
            between = x + attended if norm_first else layer.norm1(x + attended)
            after = between + layer._ff_block(layer.norm2(between) if norm_first else between)
            after = after if norm_first else layer.norm2(after)
        truth = [part.detach() if batch_first else part.detach().transpose(0, 1) for part in (x, between, after)]
        assert torch.equal(call.stream.before, truth[0])
        for ours, theirs in zip((call.stream.between, call.stream.after), truth[1:], strict=True):
            assert float((ours - theirs).abs().max()) <= allowed * float(theirs.abs().max())
        with torch.set_grad_enabled(not fused):
            x = layer(x)


def test_a_padded_fused_encoder_has_its_tokens() -> None:
    model = _encoder(batch_first=True)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[0, 7:] = True
    with torch.no_grad():
        alone = model(tokens(), src_key_padding_mask=padding)
        with capture(model, stream=True) as tape:
            watched = model(tokens(), src_key_padding_mask=padding)
    assert torch.equal(alone, watched)
    assert torch.equal(tape.heads[0].stream.before, tokens().masked_fill(padding.unsqueeze(-1), 0))
    last = tape.heads[-1].stream.after
    assert float((last - watched)[~padding].abs().max()) <= 4 * tolerance(torch.float32, terms=23) * float(last.max())


def test_calls_are_handed_on_as_soon_as_they_can_be() -> None:
    model = made(toys.pre_norm, 7)
    living: list[weakref.ref[Tensor]] = []
    most, order = 0, []

    def look(heads: Heads) -> None:
        nonlocal most
        order.append(heads.layer)
        living.append(weakref.ref(heads.stream.between))
        most = max(most, sum(tensor() is not None for tensor in living))

    with torch.no_grad(), capture(model, keep=look, stream=True) as tape:
        model(tokens())
        assert order == list(range(7))
        model(tokens())
    assert order == [*range(7), *range(7)]
    assert tape.heads == []
    assert most <= 2
    assert not any(tensor() is not None for tensor in living)


def test_attention_without_a_stream_keeps_no_other_waiting() -> None:
    model = made(toys.pre_norm, 7)
    late = []

    def mixed(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried | None]:
        return toys.pre_norm(block, x) if block is model.blocks[0] else toys.no_residual(block, x)

    model.step = mixed
    with torch.no_grad(), capture(model, stream=True, keep=lambda heads: late.append(len(model.carried) - heads.layer)):
        model(tokens())
    assert len(late) == 7
    assert max(late) <= 2


def test_what_attention_saw_is_kept_from_being_written_over() -> None:
    model = made(toys.overwritten)
    plain: list[Tensor] = []
    with torch.no_grad(), capture(model, keep=lambda heads: plain.append(heads.out.clone())):
        model(tokens())
    for ours, theirs in zip(_captured(model, tokens()), plain, strict=True):
        assert torch.equal(ours.out, theirs)
        assert theirs.any()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_left_when_the_model_or_its_observer_raises(block: int) -> None:
    model = made(toys.pre_norm)
    before = [sorted(vars(module)) for module in model.modules()]

    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    def refuse(heads: Heads) -> None:
        if heads.layer == block:
            raise RuntimeError("refused on purpose")

    with pytest.raises(RuntimeError, match="refused"), torch.no_grad(), capture(model, keep=refuse, stream=True):
        model(tokens())
    assert _get_current_dispatch_mode() is None
    handle = model.blocks[block].mlp.register_forward_pre_hook(broken)
    with torch.no_grad(), capture(model, stream=True) as tape:
        with pytest.raises(RuntimeError, match="broken"):
            model(tokens())
        assert _get_current_dispatch_mode() is None
        handle.remove()
        tape.heads.clear()
        model(tokens())
    _assert_carried(tape.heads, model.carried)
    assert [sorted(vars(module)) for module in model.modules()] == before


def test_other_watchers_of_operations_go_on_seeing_them() -> None:
    """One around the capture counts what it counts alone, and one inside the model does not hide the stream."""

    def counted(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried | None]:
        with FlopCounterMode(display=False):
            return toys.pre_norm(block, x)

    model = made(counted)
    with torch.no_grad(), FlopCounterMode(display=False) as alone:
        model(tokens())
    with torch.no_grad(), FlopCounterMode(display=False) as outer, capture(model, stream=True) as tape:
        model(tokens())
    assert outer.get_total_flops() >= alone.get_total_flops() > 0
    _assert_carried(tape.heads, model.carried)


@pytest.mark.filterwarnings("ignore:.*leaves out the queries")
def test_checkpointed_blocks_and_swapped_operators_have_their_stream() -> None:
    def checkpointed(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried | None]:
        result: tuple[Tensor, Carried | None] = checkpoint(toys.post_norm, block, x, use_reentrant=False)
        return result

    model = made(checkpointed)
    with swap(model, "symmetric", layers=[2]), capture_gradients(model, stream=True) as tape:
        output = model(tokens())
        carried = list(model.carried)
        tape.differentiate(loss_of(output))
    _assert_carried(tape.heads, carried)
    assert [recompute_error(call) > tolerance(torch.float32) for call in tape.heads] == [False, True, False]


def test_one_pass_inside_another_is_a_part_of_it() -> None:
    class Twice(Toy):
        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            return super().forward(self(x, again=False) @ self.head.weight if again else x)

    torch.manual_seed(0)
    model = Twice(toys.pre_norm).eval()
    with torch.no_grad(), capture(model, stream=True) as tape:
        watched = model(tokens())
    assert torch.equal(watched, model(tokens()))
    assert [call.stream is not None for call in tape.heads] == [True] * BLOCKS

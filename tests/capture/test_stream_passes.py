"""Forward passes with the residual stream: timely calls, no overwritten tensors, no side effects."""

import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from clearhead._capture import capture, capture_gradients
from clearhead._swap import swap
from clearhead.audit.fidelity import recompute_error
from clearhead.heads import Heads
from clearhead.numerics.precision import tolerance
from tests.capture import stream_models as toys
from tests.capture.models import loss_of
from tests.capture.stream_checks import assert_carried, captured
from tests.capture.stream_models import BLOCKS, Carried, Toy, tokens, toy_model


def test_calls_are_passed_on_as_soon_as_their_stream_is_known() -> None:
    model = toy_model(toys.pre_norm, 7)
    living: list[weakref.ref[Tensor]] = []
    most, order = 0, []

    def look(heads: Heads) -> None:
        nonlocal most
        order.append(heads.layer)
        living.append(weakref.ref(heads.residual_stream.between))
        most = max(most, sum(tensor() is not None for tensor in living))

    with torch.no_grad(), capture(model, keep=look, residual_stream=True) as recorded:
        model(tokens())
        assert order == list(range(7))
        model(tokens())
    assert order == [*range(7), *range(7)]
    assert recorded.heads == []
    assert most <= 2
    assert not any(tensor() is not None for tensor in living)


def test_attention_without_a_residual_stream_does_not_delay_others() -> None:
    model = toy_model(toys.pre_norm, 7)
    late = []

    def mixed(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried | None]:
        return toys.pre_norm(block, x) if block is model.blocks[0] else toys.no_residual(block, x)

    model.step = mixed
    with (
        torch.no_grad(),
        capture(model, residual_stream=True, keep=lambda heads: late.append(len(model.carried) - heads.layer)),
    ):
        model(tokens())
    assert len(late) == 7
    assert max(late) <= 2


def test_captured_tensors_are_copied_before_the_model_overwrites_them() -> None:
    model = toy_model(toys.overwritten)
    plain: list[Tensor] = []
    with torch.no_grad(), capture(model, keep=lambda heads: plain.append(heads.out.clone())):
        model(tokens())
    for ours, theirs in zip(captured(model, tokens()), plain, strict=True):
        assert torch.equal(ours.out, theirs)
        assert theirs.any()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_left_when_the_model_or_its_observer_raises(block: int) -> None:
    model = toy_model(toys.pre_norm)
    before = [sorted(vars(module)) for module in model.modules()]

    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    def refuse(heads: Heads) -> None:
        if heads.layer == block:
            raise RuntimeError("refused on purpose")

    with (
        pytest.raises(RuntimeError, match="refused"),
        torch.no_grad(),
        capture(model, keep=refuse, residual_stream=True),
    ):
        model(tokens())
    assert _get_current_dispatch_mode() is None
    handle = model.blocks[block].mlp.register_forward_pre_hook(broken)
    with torch.no_grad(), capture(model, residual_stream=True) as recorded:
        with pytest.raises(RuntimeError, match="broken"):
            model(tokens())
        assert _get_current_dispatch_mode() is None
        handle.remove()
        recorded.heads.clear()
        model(tokens())
    assert_carried(recorded.heads, model.carried)
    assert [sorted(vars(module)) for module in model.modules()] == before


def test_other_dispatch_modes_still_see_all_operations() -> None:
    """A mode around the capture counts the same operations, and a mode inside the model does not hide the stream."""

    def counted(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried | None]:
        with FlopCounterMode(display=False):
            return toys.pre_norm(block, x)

    model = toy_model(counted)
    with torch.no_grad(), FlopCounterMode(display=False) as alone:
        model(tokens())
    with torch.no_grad(), FlopCounterMode(display=False) as outer, capture(model, residual_stream=True) as recorded:
        model(tokens())
    assert outer.get_total_flops() >= alone.get_total_flops() > 0
    assert_carried(recorded.heads, model.carried)


@pytest.mark.filterwarnings("ignore:.*does not use the queries")
def test_checkpointed_blocks_and_swapped_operators_have_a_residual_stream() -> None:
    def checkpointed(block: toys.Parts, x: Tensor) -> tuple[Tensor, Carried | None]:
        result: tuple[Tensor, Carried | None] = checkpoint(toys.post_norm, block, x, use_reentrant=False)
        return result

    model = toy_model(checkpointed)
    with (
        swap(model, "symmetric", layers="blocks.1.attention"),
        capture_gradients(model, residual_stream=True) as recorded,
    ):
        output = model(tokens())
        carried = list(model.carried)
        recorded.differentiate(loss_of(output))
    assert_carried(recorded.heads, carried)
    assert [recompute_error(call) > tolerance(torch.float32) for call in recorded.heads] == [False, True, False]


def test_a_nested_forward_pass_belongs_to_the_outer_one() -> None:
    class Twice(Toy):
        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            return super().forward(self(x, again=False) @ self.head.weight if again else x)

    torch.manual_seed(0)
    model = Twice(toys.pre_norm).eval()
    with torch.no_grad(), capture(model, residual_stream=True) as recorded:
        while_capturing = model(tokens())
    assert torch.equal(while_capturing, model(tokens()))
    assert recorded.passes == 1
    assert [call.residual_stream is not None for call in recorded.heads] == [True] * 2 * BLOCKS

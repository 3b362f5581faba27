"""Capture with gradients: attention calls together with the gradient of a loss at each layer's output."""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from clearhead._capture.blocks import BlockCall
from clearhead._capture.recording import Capture, recorded
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.interfaces import AttentionNotSeenError, AttentionSpec, Call, Original
from clearhead.interfaces.layouts import Layout
from clearhead.interfaces.passes import Passes
from clearhead.numerics.memory import is_allocation_error
from clearhead.private_names import tensor_version

_REENTRANT = (
    "the model checkpoints its activations with use_reentrant=True, which leaves no graph to the layers inside: "
    "switch checkpointing off, as model.gradient_checkpointing_disable() does, or use use_reentrant=False"
)


class GradientCapture(Capture):
    """A capture whose calls wait for the loss of their forward pass: `differentiate` keeps them with gradients."""

    replaces = True

    def __init__(
        self, keep: Callable[[Heads], None] | None, *, residual_stream: bool = False, linear_maps: bool = True
    ) -> None:
        super().__init__(keep, residual_stream=residual_stream, linear_maps=linear_maps)
        self._waiting: list[_Waiting] = []
        self._differentiating = False

    def __call__(self, call: Call, original: Original) -> Tensor:
        """Record one call; the model continues with its own output plus a tensor of zeros, the probe."""
        output = original()
        listening = self.counter.listening
        if not listening and not self._differentiating:
            return output
        if not torch.is_grad_enabled() and _on_stack(CheckpointFunction.forward):
            raise AttentionNotSeenError(_REENTRANT)
        if torch.is_inference_mode_enabled():
            raise AttentionNotSeenError(
                f"{call.name} runs in torch.inference_mode, where nothing has gradients: use torch.no_grad in it"
            )
        block_call = None
        with Passes.paused():
            # Also when a checkpoint computes a part again, which must save as many tensors as at first.
            probe = torch.zeros_like(output, requires_grad=True)
            replaced = output + probe
            layout = Layout.of(call, self.counter.inputs)
            heads = None
            if listening:
                heads = self.number(self.with_maps(layout.heads(call, output, name=self.name_of(call))))
            if heads is not None:
                block_call = self.block_call(heads, original)
                self._waiting.append(_Waiting(heads, layout, probe, _versions(heads), block_call))
        if self.stream is not None and block_call is not None:
            self.stream.note_replacement(block_call, replaced)
        return replaced

    def differentiate(self, loss: Tensor) -> None:
        """Keep every call since the last time, with the gradient of the loss at its output.

        loss: one finite number, computed from the model's output in this block
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            raise InputError("no attention ran since the last loss: run the model in the block, then differentiate")
        _require_loss(loss)
        self._differentiating = True
        try:
            gradients = torch.autograd.grad(loss, [call.probe for call in waiting], allow_unused=True)
        except RuntimeError as error:
            if is_allocation_error(error):
                raise
            if "use_reentrant=True" in str(error):
                raise InputError(_REENTRANT) from error
            line = str(error).partition("\n")[0]
            raise InputError(f"the loss cannot be differentiated: {line}; does the model train?") from error
        finally:
            self._differentiating = False
        if all(gradient is None for gradient in gradients):
            raise InputError("the loss does not depend on any attention: compute it from the model's output")
        with torch.no_grad(), Passes.paused():
            for call, gradient in zip(waiting, gradients, strict=True):
                self._keep(call.with_gradient(gradient))

    def require_loss(self) -> None:
        """Raise InputError if calls still wait for a loss."""
        if self._waiting:
            raise InputError(
                f"{len(self._waiting)} attention calls have no gradient: call differentiate(loss) after each pass"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits for the loss.

    probe: the zeros added to its output
    versions: number of in-place writes to its tensors so far
    """

    heads: Heads
    layout: Layout
    probe: Tensor
    versions: list[int]
    block_call: BlockCall | None

    def with_gradient(self, gradient: Tensor | None) -> Heads:
        """Return the call with its gradient, None if that is zero; raise if its tensors have been overwritten."""
        if _versions(self.heads) != self.versions:
            raise InputError(
                f"{self.heads.name}: the model writes into tensors that attention got, so they are lost before "
                "the loss: add out of place, or capture without a loss"
            )
        depends = gradient is not None and bool(gradient.any())
        return dataclasses.replace(
            self.heads,
            out_gradient=self.layout.four_axes(gradient) if gradient is not None and depends else None,
            **({} if self.block_call is None else self.block_call.block_fields),
        )


def _versions(heads: Heads) -> list[int]:
    maps = [linear for linear in (heads.queries_from, heads.keys_from, heads.values_from) if linear is not None]
    tensors = [heads.q, heads.k, heads.v, heads.out, heads.mask, heads.bias, *(linear.x for linear in maps)]
    return [tensor_version(x) for x in tensors if x is not None]


def _require_loss(loss: Any) -> None:
    got = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise InputError(f"the loss must be one number, a floating tensor without axes; got {got}: average it")
    if not math.isfinite(loss.item()):
        raise InputError(f"the loss is {loss.item()}, so its gradients mean nothing: check the inputs and the loss")
    if not loss.requires_grad:
        raise InputError(
            "the loss has no gradient: compute it from the model's output, without detach, .item() or torch.no_grad()"
        )


def _on_stack(function: Callable[..., Any]) -> bool:
    """Return whether the function is on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@contextmanager
def capture_gradients(
    model: nn.Module,
    *,
    describe: Sequence[AttentionSpec] = (),
    keep: Callable[[Heads], None] | None = None,
    allow_unseen: bool = False,
    residual_stream: bool = False,
    linear_maps: bool = True,
) -> Iterator[GradientCapture]:
    """Record `Heads` of every attention call with the gradient of a loss at its output, `out_gradient`.

    Inside the block gradients are enabled, and `differentiate(loss)` follows each forward pass:

        with capture_gradients(model, keep=look) as captured:
            for batch in batches:
                captured.differentiate(loss(model(**batch), batch))

    Everything else is as in `capture`: the calls and their numbers, the errors, and that no trace is left. Parameters
    get no `.grad`, whether they are frozen or not, and the model's mode stays as it is. The model's output equals its
    own to rounding, as torch's fused paths have no gradients. A layer whose output does not reach the loss, or that
    runs under torch.no_grad, has None. All calls of a pass are held until its loss is given.
    """
    if any(x.is_inference() for x in chain(model.parameters(), model.buffers())):
        raise InputError("the model was made in torch.inference_mode and has no gradients: load it outside of that")
    result = GradientCapture(keep, residual_stream=residual_stream, linear_maps=linear_maps)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        recorded(model, result, describe=describe, allow_unseen=allow_unseen),
    ):
        yield result
        result.require_loss()

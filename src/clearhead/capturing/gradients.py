"""Record what a model's attention layers see together with the gradient of a loss at each layer's output."""

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

from clearhead.capturing.recording import Tape, recording
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.sockets import AttentionNotSeenError, AttentionSpec, Tap
from clearhead.sockets.blocks import BlockCall

__all__ = ["GradientTape", "capture_gradients"]

_REENTRANT = (
    "the model checkpoints its activations with use_reentrant=True, which leaves no graph to the layers inside: "
    "switch checkpointing off, as model.gradient_checkpointing_disable() does, or use use_reentrant=False"
)


class GradientTape(Tape):
    """A tape whose calls wait for the loss of their forward pass: `differentiate` hands them on with gradients."""

    def __init__(self, keep: Callable[[Heads], None] | None) -> None:
        super().__init__(keep)
        self._waiting: list[_Waiting] = []
        self._tap: Tap | None = None

    def receive(self, heads: Heads, tap: Tap) -> Tensor | None:
        """Take one call and number it; the model goes on with its own output and a probe of zeros added to it."""
        if not torch.is_grad_enabled() and _inside(CheckpointFunction.forward):
            raise AttentionNotSeenError(_REENTRANT)
        if torch.is_inference_mode_enabled():
            raise AttentionNotSeenError(
                f"{heads.name} runs in torch.inference_mode, where nothing has gradients: let it use torch.no_grad"
            )
        # Also when a checkpoint computes a part again, which must save as many tensors as at first.
        probe = torch.zeros_like(heads.out, requires_grad=True)
        numbered = self.numbered(heads, tap)
        self._tap = tap
        if numbered is not None:
            self._waiting.append(_Waiting(heads=numbered, probe=probe, versions=_versions(numbered), call=tap.call))
        return heads.out + probe

    def differentiate(self, loss: Tensor) -> None:
        """Hand on every call since the last time, with the gradient of the loss at its output.

        loss: one finite number, computed from the model's output in this block
        """
        waiting, self._waiting = self._waiting, []
        if not waiting or self._tap is None:
            raise InputError("no attention ran since the last loss: run the model in the block, then differentiate")
        _require_loss(loss)
        try:
            gradients = torch.autograd.grad(loss, [call.probe for call in waiting], allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant=True" in str(error):
                raise InputError(_REENTRANT) from error
            said = str(error).partition("\n")[0]
            raise InputError(f"the loss cannot be differentiated: {said}; does the model train?") from error
        if all(gradient is None for gradient in gradients):
            raise InputError("the loss does not depend on any attention: compute it from the model's output")
        with torch.no_grad(), self._tap.received():
            for call, gradient in zip(waiting, gradients, strict=True):
                self._keep(call.answered(gradient))

    def require_answered(self) -> None:
        """ValueError if calls wait for a loss still."""
        if self._waiting:
            raise InputError(
                f"{len(self._waiting)} attention calls got no gradient: call tape.differentiate(loss) after each pass"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """One call, what was added to its output, and how often its tensors had been written to by then."""

    heads: Heads
    probe: Tensor
    versions: list[int]
    call: BlockCall | None

    def answered(self, gradient: Tensor | None) -> Heads:
        """The call with its gradient, None if that is zero. ValueError if what was seen has been written over since."""
        if _versions(self.heads) != self.versions:
            raise InputError(
                f"{self.heads.name}: the model writes into tensors that attention was given, so they are lost before "
                "the loss: let it add out of place, or capture without a loss"
            )
        return dataclasses.replace(
            self.heads,
            out_gradient=gradient if gradient is not None and bool(gradient.any()) else None,
            stream=None if self.call is None else self.call.stream,
        )


def _versions(heads: Heads) -> list[int]:
    made = [found for found in (heads.queries_from, heads.keys_from, heads.values_from) if found is not None]
    seen = [heads.q, heads.k, heads.v, heads.out, heads.mask, heads.bias, *(found.x for found in made)]
    return [x._version for x in seen if x is not None]


def _require_loss(loss: Any) -> None:
    got = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise InputError(f"the loss must be one number, a floating tensor without axes; got {got}: average it")
    if not math.isfinite(loss.item()):
        raise InputError(f"the loss is {loss.item()}: its gradients would say nothing; check the inputs and the loss")
    if not loss.requires_grad:
        raise InputError(
            "the loss has no gradient: compute it from the model's output, without detach, .item() or torch.no_grad()"
        )


def _inside(function: Callable[..., Any]) -> bool:
    """Whether the function is on the stack."""
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
    stream: bool = False,
) -> Iterator[GradientTape]:
    """Record `Heads` of every attention call with the gradient of a loss at its output, `out_gradient`.

    Inside the block gradients are enabled, and `tape.differentiate(loss)` follows each forward pass:

        with capture_gradients(model, keep=look) as tape:
            for batch in batches:
                tape.differentiate(loss(model(**batch), batch))

    Everything else is as in `capture`: the calls and their numbers, the errors, and that no trace is left. Parameters
    get no `.grad`, whether they are frozen or not, and the model's mode stays as it is. The model's output is its own
    to rounding, as torch's fused paths have no gradients. A layer whose output does not reach the loss, or that runs
    under torch.no_grad, has None. All calls of a pass are kept until its loss is there, with their
    `stream` where asked for.
    """
    if any(x.is_inference() for x in chain(model.parameters(), model.buffers())):
        raise InputError("the model was made in torch.inference_mode and has no gradients: load it outside of that")
    tape = GradientTape(keep)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        recording(model, tape, describe=describe, allow_unseen=allow_unseen, stream=stream, replaces=True),
    ):
        yield tape
        tape.require_answered()

"""A model watched while it runs on batches: every attention call is shown to the measurements."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._capture import Capture, capture
from clearhead._gradients import GradientCapture, capture_gradients
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.interfaces import AttentionNotSeenError, AttentionSpec
from clearhead.theories.theory import Measurement

__all__ = ["AuditError", "Seen", "evaluated", "run", "run_on", "watch"]


class AuditError(InputError):
    """An audit that cannot give numbers. The message names the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How much a model was watched on."""

    inputs: int
    tokens: int


def watch(
    model: nn.Module,
    batches: Iterable[Any],
    chosen: Sequence[tuple[str, Measurement]],
    clock: dict[str, float],
    tell: Callable[[int], None],
    *,
    layers: Collection[int] | None,
    checked: Sequence[str],
    describe: Sequence[AttentionSpec],
    allow_unseen: bool,
    loss: Callable[[Any, Any], Tensor] | None,
    stream: bool,
) -> Seen:
    """Show the measurements every attention call of the model on the batches.

    `clock` gains the seconds of each measurement by its name. With `stream`, calls come with the tokens that the model
    carries past the block.
    """
    seen = Seen(0, 0)
    observer = _Observer(chosen, layers, clock, checked)
    captured = capture if loss is None else capture_gradients
    with captured(model, describe=describe, keep=observer, allow_unseen=allow_unseen, stream=stream) as tape:
        for batch in batches:
            tell(seen.inputs)
            which = f"the batch after {seen.inputs} inputs"
            if loss is None:
                run_on(model, batch, which, observer)
            else:
                _differentiate(tape, loss, run_on(model, batch, which, observer), batch, which)
            inputs, tokens = _size(batch)
            seen = Seen(seen.inputs + inputs, seen.tokens + tokens)
    tell(seen.inputs)
    return seen


def run(model: nn.Module, batch: Any) -> Any:
    """Call the model with one batch, on the model's device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        return model(**{key: _moved(value, device) for key, value in batch.items()})
    if isinstance(batch, list | tuple):
        return model(*(_moved(value, device) for value in batch))
    return model(_moved(batch, device))


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


class _Observer:
    """Shows the theories every call. They look on inside the model's call, so their failure is kept apart from its."""

    def __init__(
        self,
        chosen: Sequence[tuple[str, Measurement]],
        layers: Collection[int] | None,
        clock: dict[str, float],
        checked: Sequence[str],
    ) -> None:
        self.failure: Exception | None = None
        self._checked = checked
        self._chosen = chosen
        self._layers = layers
        self._clock = clock

    def __call__(self, heads: Heads) -> None:
        if heads.name not in self._checked:
            raise AttentionNotSeenError(
                f"{heads.name} runs on a later batch and not on the first, so it was never checked; "
                "begin with a batch on which every layer runs"
            )
        if self._layers is not None and heads.layer not in self._layers:
            return
        try:
            for title, measurement in self._chosen:
                begun = time.perf_counter()
                measurement.observe(heads)
                self._clock[title] += time.perf_counter() - begun
        except Exception as error:
            self.failure = error
            raise


def run_on(model: nn.Module, batch: Any, which: str, observer: _Observer | None = None) -> Any:
    """Call the model; what it raises is said of it and of `which` input, what an observer raised stays as it is."""
    try:
        output = run(model, batch)
    except AttentionNotSeenError:
        raise
    except Exception as error:
        if observer is None or observer.failure is None:
            raise AuditError(f"the model fails on {which}: {error}; do the inputs fit it?") from error
    # Also where the model caught it.
    if observer is not None and observer.failure is not None:
        raise observer.failure
    return output


def _differentiate(tape: Capture, loss: Callable[[Any, Any], Tensor], output: Any, batch: Any, which: str) -> None:
    """Show the observer the calls of one batch, which waited for the loss."""
    assert isinstance(tape, GradientCapture)
    try:
        value = loss(output, batch)
    except Exception as error:
        raise AuditError(
            f"the loss fails on {which}: {error}; it is called with the model's output and the batch"
        ) from error
    tape.differentiate(value)


def _size(batch: Any) -> tuple[int, int]:
    """Inputs and tokens of a batch; no tokens where it does not tell."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    inputs = next((v.shape[0] for v in values if isinstance(v, Tensor) and v.ndim), 0)
    if not isinstance(batch, Mapping):
        return inputs, 0
    mask, ids = batch.get("attention_mask"), batch.get("input_ids")
    if isinstance(mask, Tensor):
        return inputs, int(mask.sum())
    return inputs, ids.numel() if isinstance(ids, Tensor) else 0


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and each of its modules as it was at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

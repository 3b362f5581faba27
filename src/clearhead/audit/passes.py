"""Passes: a model runs on batches, and theories get every attention call."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from clearhead._capture import Capture, GradientCapture, capture, capture_gradients
from clearhead.audit.fidelity import require_tokens, tensors
from clearhead.audit.options import AuditOptions
from clearhead.audit.part import Pass, history_start
from clearhead.audit.shown_inputs import input_texts
from clearhead.audit.workers import OneProcess, Workers
from clearhead.errors import AuditError
from clearhead.heads import Heads
from clearhead.interfaces import AttentionNotSeenError, AttentionSpec
from clearhead.interfaces.placement import input_device, without_compiling
from clearhead.loading.encoding import Decode
from clearhead.numerics.memory import return_freed_memory
from clearhead.theories.example import ModelOutput
from clearhead.theories.theory import Need

__all__ = [
    "AuditError",
    "Observe",
    "call_model",
    "count_inputs",
    "evaluation_mode",
    "first_inputs",
    "forward",
    "measure",
    "run_whole_model",
]


@runtime_checkable
class Observe(Protocol):
    """A function that measures attention calls."""

    def __call__(self, heads: Heads, *, inputs: int | None, ahead: int) -> None:
        """Measure one call of a batch of `inputs` inputs that begins `ahead` inputs before those that count."""


def measure(
    model: nn.Module,
    batches: Iterable[Any],
    pass_: Pass,
    processes: OneProcess | Workers,
    options: AuditOptions,
    *,
    sizes: list[int],
    checked: Sequence[str],
    end: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    after: Callable[[], None] = lambda: None,
    decode: Decode | None = None,
    record: Callable[[Heads], None] | None = None,
) -> float:
    """Run the model on the batches of a pass and give every attention call to its theories; return their seconds.

    The batches are those from the next one of the pass on, up to its limit of inputs. Those with the inputs just before
    are run too, as history that does not count. The residual stream is captured if a theory needs it, linear maps
    likewise, and gradients if there is a loss. Every call is moved once to the device of the theories' arithmetic.

    options: what they name was found, as `usable_options` does
    sizes: numbers of inputs of the batches of the whole audit; those that are not known yet are added
    end: number of the first batch after those of the pass; None for all
    progress, after: called before each batch with the inputs so far, and after each batch that counts
    decode: turns token ids into text; the pass keeps the beginning of every input
    record: called with the attention calls of the first batch too
    """
    start = pass_.next_batch
    history = history_start(sizes, start)
    pass_.first, counted = sum(sizes[:start]), pass_.inputs
    ahead = pass_.first - sum(sizes[:history])
    processes.begin(pass_)
    observer = _Observer(processes.feed, options.layers, checked, torch.device(options.device))
    loss = options.loss_function
    needs = frozenset[Need]().union(*(theory.needs for theory in pass_.theories))
    open_capture = capture if loss is None else capture_gradients
    with open_capture(
        model,
        describe=options.descriptions,
        keep=observer,
        allow_unseen=options.allow_unseen,
        residual_stream=Need.RESIDUAL_STREAM in needs,
        linear_maps=Need.WEIGHTS in needs,
    ) as captured:
        for index, batch in enumerate(itertools.islice(batches, end)):
            before = pass_.first + pass_.inputs - counted
            if pass_.limit is not None and before >= pass_.limit:
                break
            if index < history:
                continue
            progress(pass_.inputs)
            observer.ahead, observer.inputs = ahead, count_inputs(batch)
            ahead = max(ahead - observer.inputs, 0)
            observer.record = record if index == 0 and start == 0 else None
            which = f"the batch after {before} inputs"
            output = call_model(model, batch, which, observer)
            if loss is not None:
                _differentiate(captured, loss, output, batch, which)
            del output  # logits of many words, which would stay in memory while the next are made
            if index >= start:
                tokens = _count_tokens(batch)
                pass_.inputs += observer.inputs
                pass_.tokens += observer.attended if tokens is None else tokens
                pass_.texts += [] if decode is None else input_texts(batch, observer.inputs, decode)
                pass_.next_batch = index + 1
                if index >= len(sizes):
                    sizes.append(observer.inputs)
                after()
    progress(pass_.inputs)
    return observer.seconds


def run_whole_model(
    model: nn.Module, batch: Any, *, describe: Sequence[AttentionSpec], allow_unseen: bool
) -> ModelOutput:
    """Run the model once on a batch of a theory's making and return what its attention and the model return."""
    attention: list[Tensor | None] = []

    def keep(heads: Heads) -> None:
        attention.append(heads.out if heads.out.shape[-2] == heads.k.shape[-2] else None)

    with capture(model, describe=describe, allow_unseen=allow_unseen, keep=keep, linear_maps=False):
        output = next(tensors(call_model(model, batch, "one of its first inputs alone")))
    return_freed_memory()
    return ModelOutput(attention=attention, output=output)


def forward(model: nn.Module, batch: Any) -> Any:
    """Call the model with one batch, on the model's device."""
    device = input_device(model)
    if isinstance(batch, Mapping):
        return model(**{key: _moved(value, device) for key, value in batch.items()})
    if isinstance(batch, list | tuple):
        return model(*(_moved(value, device) for value in batch))
    return model(_moved(batch, device))


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


class _Observer:
    """Gives every call of the chosen layers to `observe`, and keeps an error of it apart from the model's."""

    def __init__(
        self,
        observe: Observe,
        layers: Collection[int] | None,
        checked: Sequence[str],
        device: torch.device,
    ) -> None:
        self._device = device
        self.seconds = 0.0
        """Time that the measurements took of this process."""
        self.failure: Exception | None = None
        self.attended = 0
        """Number of keys of the first layer that a query sees, in the last batch."""
        self.inputs = 0
        """Number of inputs of the batch."""
        self.record: Callable[[Heads], None] | None = None
        """Gets every call too."""
        self.ahead = 0
        """How many inputs the batch begins before those that count here; 0 if it counts."""
        self._checked = checked
        self._observe = observe
        self._layers = layers

    def __call__(self, heads: Heads) -> None:
        if heads.name not in self._checked:
            raise AttentionNotSeenError(
                f"{heads.name} runs on a later batch and not on the first, so it was never checked; "
                "begin with a batch on which every layer runs"
            )
        require_tokens(heads)
        if heads.layer == 0:
            self.attended = _visible_keys(heads)
        if self._layers is not None and heads.layer not in self._layers:
            return
        try:
            if self.record is not None:
                self.record(heads)
            start = time.perf_counter()
            self._observe(heads.to(self._device), inputs=self.inputs or None, ahead=self.ahead)
            self.seconds += time.perf_counter() - start
            return_freed_memory()
        except Exception as error:
            self.failure = error
            raise


def call_model(model: nn.Module, batch: Any, which: str, observer: _Observer | None = None) -> Any:
    """Call the model. Its errors become AuditError naming the input; a measurement's errors propagate unchanged."""
    try:
        output = forward(model, batch)
    except AttentionNotSeenError:
        raise
    except Exception as error:
        if observer is None or observer.failure is None:
            raise AuditError(f"the model fails on {which}: {error}; do the inputs fit it?") from error
    # Also if the model caught it.
    if observer is not None and observer.failure is not None:
        raise observer.failure
    return output


def _differentiate(captured: Capture, loss: Callable[[Any, Any], Tensor], output: Any, batch: Any, which: str) -> None:
    """Differentiate the loss and give the calls of one batch, which waited for it, to the measurements."""
    assert isinstance(captured, GradientCapture)
    try:
        value = loss(output, batch)
    except Exception as error:
        raise AuditError(
            f"the loss fails on {which}: {error}; it is called with the model's output and the batch"
        ) from error
    captured.differentiate(value)


def count_inputs(batch: Any) -> int:
    """Return the number of inputs of a batch: the length of its first tensor, 0 without one."""
    return next((x.shape[0] for x in _tensors_of(batch) if x.ndim), 0)


def _tensors_of(batch: Any) -> list[Tensor]:
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    return [value for value in values if isinstance(value, Tensor)]


def first_inputs(batch: Any, most: int) -> Any:
    """Return the batch with its first inputs alone if all its tensors have one row for each input, else the batch.

    A tensor with a second axis of the same length could belong to another axis of the others, such as tokens.
    """
    count = count_inputs(batch)
    shapes = [x.shape for x in _tensors_of(batch)]
    if count <= most or not all(shape and shape[0] == count and count not in shape[1:] for shape in shapes):
        return batch

    def cut(value: Any) -> Any:
        return value[:most] if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        return {name: cut(value) for name, value in batch.items()}
    return [cut(value) for value in batch] if isinstance(batch, list | tuple) else cut(batch)


def _count_tokens(batch: Any) -> int | None:
    """Return the number of tokens that are not padding; None if the batch has no token ids.

    The mask of other inputs, such as sound, counts samples, not tokens.
    """
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not isinstance(ids, Tensor):
        return None
    mask = batch.get("attention_mask")
    return int((mask != 0).sum()) if isinstance(mask, Tensor) and mask.shape == ids.shape else ids.numel()


def _visible_keys(heads: Heads) -> int:
    """Return the number of tokens that are keys of some query, over all inputs."""
    b, m = len(heads.k), heads.k.shape[-2]
    if heads.mask is None:
        return b * m
    return int(heads.mask.any(dim=-2).expand(b, -1, m).any(dim=1).sum())


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode inside the block, uncompiled; restore the mode of each module at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with without_compiling():
            yield
    finally:
        for module, training in modes:
            module.training = training

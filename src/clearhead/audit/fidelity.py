"""The fidelity check: evidence that what is captured is what the model computes. No audit reports without it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead._swap.notes import swapped_operators
from clearhead.audit.record import Fidelity
from clearhead.heads import Heads
from clearhead.interfaces import INTERFACES, AttentionNotSeenError, AttentionSpec, Call, Original
from clearhead.interfaces.layouts import Layout
from clearhead.interfaces.passes import Passes
from clearhead.interfaces.whole_model import attached
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators.softmax import softmax_attention

__all__ = [
    "FidelityError",
    "Replacement",
    "check_fidelity",
    "recompute_error",
    "recomputed",
    "replaced",
    "require_tokens",
    "tensors",
]


AT_ONCE = 2**20
"""Number of outputs that are compared at once."""


class FidelityError(AttentionNotSeenError):
    """A difference between what was captured and what the model computes."""


def recomputed(heads: Heads) -> Tensor:
    """Return attention computed from the captured q, k, v and mask alone."""
    return softmax_attention(
        heads.q,
        heads.k,
        heads.v,
        mask=heads.mask,
        bias=None if heads.bias is None else heads.bias.to(heads.q.dtype),
        scale=heads.scale,
        softcap=heads.softcap,
        sinks=heads.sinks,
    )


def require_tokens(heads: Heads) -> None:
    """Raise FidelityError if a call has no inputs, no queries or no keys."""
    if heads.out.numel() == 0 or heads.k.numel() == 0:
        shapes = f"queries {tuple(heads.q.shape)}, keys {tuple(heads.k.shape)}"
        raise FidelityError(f"{heads.name} attends over nothing ({shapes}): a batch is empty; leave it out")


def recompute_error(heads: Heads) -> float:
    """Return the largest difference of recomputed attention to the layer's own output, relative to the largest value.

    Only queries with a visible key count. An output is an average of values, so their size is its scale.
    """
    if heads.dropout:
        raise FidelityError(f"{heads.name}: weights are dropped at random in training; call model.eval() first")
    require_tokens(heads)
    difference = (recomputed(heads) - heads.out).abs()
    if heads.rows is not None:
        difference = torch.where(heads.rows, difference, 0)
    return float(difference.amax() / heads.v.abs().amax().clamp_min(torch.finfo(heads.v.dtype).tiny))


class Replacement:
    """A handler that returns `function(heads)` instead of a layer's own output.

    Unlike a swap, the function gets that output too. Queries without a visible key keep what the model gave them.

    calls: number of calls so far
    """

    permanent = False
    replaces = True

    def __init__(self, function: Callable[[Heads], Tensor]) -> None:
        self.function, self.counter, self.calls = function, Passes(), 0

    def __call__(self, call: Call, original: Original) -> Tensor:
        """Return the function's output for a call in this thread."""
        output = original()
        if not self.counter.listening:
            return output
        self.calls += 1
        with Passes.paused():
            layout = Layout.of(call, self.counter.inputs)
            heads = layout.heads(call, output, name=call.name)
            out = self.function(heads)
            out = out if heads.rows is None else torch.where(heads.rows, out, heads.out)
        return layout.restore(out.to(output.dtype), output)


@contextmanager
def replaced(
    model: nn.Module, function: Callable[[Heads], Tensor], *, describe: Sequence[AttentionSpec] = ()
) -> Iterator[Replacement]:
    """Let every attention call of the model return `function(heads)` inside the block, in this thread."""
    handler = Replacement(function)
    with attached(model, handler, handler.counter, describe=describe):
        yield handler


def check_fidelity(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    describe: Sequence[AttentionSpec] = (),
    allow_unseen: bool = False,
    allow_swapped: bool = False,
) -> Fidelity:
    """Run the model on one batch alone, captured, and with its attention replaced by exact softmax and uniform.

    Captured it must give the same bits, and recomputed attention must equal its own. Exact softmax must change nothing
    beyond rounding; if it changes more than a few roundings, how much the model amplifies rounding is measured by noise
    of that size on the layers' own outputs.
    Uniform attention must change more: otherwise what was captured does not reach the output.

    allow_swapped: leave layers with a swapped operator as they are and check the others; without it such a layer is an
        error, because it does not compute softmax attention
    """
    swapped = swapped_operators(model)
    unchecked = swapped if allow_swapped else {}

    def softmax_layers(function: Callable[[Heads], Tensor]) -> Callable[[Heads], Tensor]:
        """Return the function for layers of softmax attention; a swapped layer keeps its own output."""
        return lambda heads: heads.out if heads.name in unchecked else function(heads)

    try:
        alone = list(tensors(run()))
    except Exception as error:
        raise FidelityError(f"the model fails on its first batch: {error}; do the inputs fit it?") from error
    if not alone or any(bool(x.isnan().any()) for x in alone):
        raise FidelityError("the model's output is not finite; its weights may hold NaN")
    worst: list[tuple[float, Heads]] = []

    def check(heads: Heads) -> None:
        if heads.name not in unchecked:
            worst.append((recompute_error(heads), _without_tensors(heads)))

    # Every output is compared at once and dropped: those of language models may be larger than the model.
    with capture(model, describe=describe, keep=check, allow_unseen=allow_unseen) as captured:
        output_difference = _largest(_difference, alone, tensors(run()))
    if not captured.passes:
        raise FidelityError("run() does not call the model that was passed")
    if not worst:
        raise FidelityError("every layer has a swapped operator, so no softmax attention is left to measure; undo one")
    with replaced(model, softmax_layers(recomputed), describe=describe) as replacement:
        swap_error = _largest(_relative, alone, tensors(run()))
    largest, allowed = max(error for error, _ in worst), swap_tolerance(alone[0].dtype)
    if not swap_error <= allowed:
        with replaced(model, _disturbed(largest), describe=describe):
            allowed = swap_tolerance(alone[0].dtype, _largest(_relative, alone, tensors(run())))
    with replaced(model, softmax_layers(_uniform), describe=describe):
        control_change = _largest(_relative, alone, tensors(run()))
    fidelity = Fidelity(
        layers=tuple(captured.layers),
        output_difference=output_difference,
        recompute_error=largest,
        swap_error=swap_error,
        control_change=control_change,
        tolerance=allowed,
        unseen=captured.unseen,
    )
    _require(fidelity, worst, replacement.calls, swapped)
    return fidelity


def swap_tolerance(dtype: torch.dtype, disturbed: float = 0.0) -> float:
    """Return 1e-5 or 84 roundings, whichever is less, or four times the change by disturbed outputs if that is more."""
    return max(min(84 * machine_epsilon(dtype), 1e-5), 4 * disturbed)


def _require(
    fidelity: Fidelity,
    worst: Sequence[tuple[float, Heads]],
    replaced_calls: int,
    swapped_in: Mapping[str, str] | None = None,
) -> None:
    swapped_in = swapped_in or {}
    if fidelity.output_difference != 0:
        raise FidelityError(
            f"capturing the model changed its output by {fidelity.output_difference:.1e}; is it random, or stateful?"
        )
    for error, heads in worst:
        if math.isnan(error):
            raise FidelityError(
                f"{heads.name} ({heads.interface}): its queries, keys or values hold NaN or infinity, or its scores "
                "overflow, so its attention is not a number; check the layer's weights and the inputs"
            )
        if not error <= 4 * tolerance(heads.q.dtype, terms=heads.k.shape[-2] + heads.q.shape[-1]):
            others = f"check the scale, the mask and the layout (b, h, n, d) of the interface {heads.interface}"
            remedy = "describe it" if INTERFACES.is_own(heads.interface) else others
            raise FidelityError(
                f"{heads.name} ({heads.interface}): attention recomputed from q, k, v and mask differs from the "
                f"layer's own output by {error:.1e}; it is not softmax attention of these tensors: "
                + (f"{swapped_in[heads.name]} is swapped in; undo it" if heads.name in swapped_in else remedy)
            )
    if replaced_calls != len(fidelity.layers):
        raise FidelityError(
            f"{len(fidelity.layers)} attention calls were captured but {replaced_calls} replaced; does the model run "
            "the same layers every time?"
        )
    if not fidelity.swap_error <= fidelity.tolerance:
        raise FidelityError(
            f"exact softmax attention changes the output by {fidelity.swap_error:.1e}, more than rounding's "
            f"{fidelity.tolerance:.1e}"
        )
    if not fidelity.control_change > fidelity.swap_error:
        raise FidelityError(
            "uniform attention does not change the output: the model ignores its attention, or what was captured"
        )


def _without_tensors(heads: Heads) -> Heads:
    """Return the call with empty storage, so that a check over many layers holds only their shapes."""
    empty = {name: getattr(heads, name).to("meta") for name in ("q", "k", "v", "out")}
    return Heads(layer=heads.layer, name=heads.name, scale=heads.scale, interface=heads.interface, **empty)


def _disturbed(error: float) -> Callable[[Heads], Tensor]:
    """Return a function that adds noise to a layer's own output, as large as `error` and at least one rounding."""

    def operator(heads: Heads) -> Tensor:
        generator = torch.Generator(heads.out.device).manual_seed(heads.out.shape[-2])
        noise = torch.randn(heads.out.shape, generator=generator, dtype=torch.float32, device=heads.out.device)
        size = max(error, machine_epsilon(heads.out.dtype)) * heads.v.abs().amax()
        return heads.out + noise.to(heads.out.dtype) * size

    return operator


def _uniform(heads: Heads) -> Tensor:
    return softmax_attention(torch.zeros_like(heads.q), heads.k, heads.v, mask=heads.mask)


def tensors(output: Any) -> Iterator[Tensor]:
    """Yield the floating tensors of a model's output, whatever holds them; caches of keys and values are left out."""
    if isinstance(output, Tensor):
        if output.is_nested:
            yield from (row.detach() for row in output.unbind())
        elif output.is_floating_point():
            yield output.detach()
    elif isinstance(output, Mapping):
        for name, value in output.items():
            if name != "past_key_values":
                yield from tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from tensors(getattr(output, field.name))


def _largest(measure: Callable[[Tensor, Tensor], float], ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """Return the largest over all outputs; NaN if one is NaN, which a plain maximum may lose."""
    values = [measure(a, b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _difference(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    return max(_largest_distance(a, b), math.ulp(0.0))


def _relative(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    largest = torch.stack([torch.where(x.isinf(), 0, x).abs().amax() for x in torch.split(a.flatten(), AT_ONCE)]).amax()
    return _largest_distance(a, b) / max(float(largest), 1e-30)


def _largest_distance(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; equal infinities, as in masked logits, do not differ."""
    pairs = zip(*(torch.split(x.flatten(), AT_ONCE) for x in (a, b)), strict=True)
    return float(torch.stack([torch.where(x == y, 0, x.double() - y.double()).abs().amax() for x, y in pairs]).amax())

"""Evidence that what is captured is what the model computes. Without it, no number about a model is reported."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.audit.record import Fidelity
from clearhead.capturing import capture
from clearhead.heads import Heads
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.operators.softmax import softmax_attention
from clearhead.sockets import AttentionNotSeenError, AttentionSpec, Tap, open_sockets
from clearhead.swapping import find_swaps

__all__ = ["FidelityError", "check_fidelity", "recompute_error", "recomputed", "replaced"]


class FidelityError(AttentionNotSeenError):
    """What was captured is not what the model computes."""


def recomputed(heads: Heads) -> Tensor:
    """Attention from the captured q, k, v and mask alone."""
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


def recompute_error(heads: Heads) -> float:
    """Largest difference of the recomputed attention to the layer's own output, relative to the largest value.

    Over the queries that may look somewhere. An output is an average of values, so their size is its scale.
    """
    if heads.dropout:
        raise FidelityError(f"{heads.name}: weights are dropped at random in training; call model.eval() first")
    difference = (recomputed(heads) - heads.out).abs()
    if heads.rows is not None:
        difference = torch.where(heads.rows, difference, 0)
    return float(difference.amax() / heads.v.abs().amax().clamp_min(torch.finfo(heads.v.dtype).tiny))


@contextmanager
def replaced(
    model: nn.Module, function: Callable[[Heads], Tensor], *, describe: Sequence[AttentionSpec] = ()
) -> Iterator[Tap]:
    """While inside, every attention call of the model returns `function(heads)` instead of its own output.

    Unlike a swap, the function sees that output too. Queries that may look nowhere keep what the model gave them.
    """

    def receive(heads: Heads) -> Tensor:
        out = function(heads)
        return out if heads.rows is None else torch.where(heads.rows, out, heads.out)

    tap = Tap(model, receive, replaces=True)
    with open_sockets(tap, describe):
        yield tap


def check_fidelity(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    describe: Sequence[AttentionSpec] = (),
    allow_unseen: bool = False,
) -> Fidelity:
    """Run the model on one batch alone, watched, and with three operators swapped in: exact softmax, noise, uniform.

    Watched it must give the same bits; recomputed attention must equal its own; exact softmax must change nothing
    beyond rounding, as large as the model itself makes it: the layers' own outputs, disturbed by as little, are the
    measure; uniform attention must change more, or the sockets are not in the model's path at all.
    """
    try:
        alone = list(tensors(run()))
    except Exception as error:
        raise FidelityError(f"the model fails on its first batch: {error}; do the inputs fit it?") from error
    if not alone or any(bool(x.isnan().any()) for x in alone):
        raise FidelityError("the model's output is not finite; its weights may hold NaN")
    worst: list[tuple[float, Heads]] = []
    with capture(
        model,
        describe=describe,
        keep=lambda heads: worst.append((recompute_error(heads), _without_tensors(heads))),
        allow_unseen=allow_unseen,
    ) as tape:
        watched = list(tensors(run()))
    if not tape.passes:
        raise FidelityError("run() does not call the model that was given")
    with replaced(model, recomputed, describe=describe) as tap:
        exact = list(tensors(run()))
    largest = max(error for error, _ in worst)
    with replaced(model, _disturbed(largest), describe=describe):
        disturbed = list(tensors(run()))
    with replaced(model, _uniform, describe=describe):
        uniform = list(tensors(run()))
    dtype = alone[0].dtype
    fidelity = Fidelity(
        layers=tuple(tape.layers),
        output_difference=_largest(_difference, alone, watched),
        recompute_error=largest,
        swap_error=_largest(_relative, alone, exact),
        control_change=_largest(_relative, alone, uniform),
        tolerance=swap_tolerance(dtype, _largest(_relative, alone, disturbed)),
        unseen=tape.unseen,
    )
    _require(fidelity, worst, tap.calls, _swapped_in(model))
    return fidelity


def _swapped_in(model: nn.Module) -> dict[str, str]:
    """Which operator is swapped in where."""
    return {layer.path: repr(swap.operator) for swap in find_swaps(model) for layer in swap.layers}


def swap_tolerance(dtype: torch.dtype, disturbed: float) -> float:
    """1e-5, or 84 roundings where that is less, or four times what disturbed outputs come to in this model."""
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
            f"watching the model changed its output by {fidelity.output_difference:.1e}; is it random, or stateful?"
        )
    for error, heads in worst:
        if math.isnan(error):
            raise FidelityError(
                f"{heads.name} ({heads.socket}): its queries, keys or values hold NaN or infinity, or its scores "
                "overflow, so its attention is not a number; check the layer's weights and the inputs"
            )
        if not error <= 4 * tolerance(heads.q.dtype, terms=heads.k.shape[-2] + heads.q.shape[-1]):
            raise FidelityError(
                f"{heads.name} ({heads.socket}): attention recomputed from q, k, v and mask differs from the layer's "
                f"own output by {error:.1e}; it is not softmax attention as seen there: "
                + (f"{swapped_in[heads.name]} is swapped in; undo it" if heads.name in swapped_in else "describe it")
            )
    if replaced_calls != len(fidelity.layers):
        raise FidelityError(f"{len(fidelity.layers)} attention calls were seen but {replaced_calls} could be replaced")
    if not fidelity.swap_error <= fidelity.tolerance:
        raise FidelityError(
            f"exact softmax swapped in changes the output by {fidelity.swap_error:.1e}, more than rounding's "
            f"{fidelity.tolerance:.1e}"
        )
    if not fidelity.control_change > fidelity.swap_error:
        raise FidelityError(
            "uniform attention swapped in does not change the output: the model ignores attention, or what was captured"
        )


def _without_tensors(heads: Heads) -> Heads:
    """The call with empty storage, so that a check over many layers keeps only their shapes."""
    empty = {name: getattr(heads, name).to("meta") for name in ("q", "k", "v", "out")}
    return Heads(layer=heads.layer, name=heads.name, scale=heads.scale, socket=heads.socket, **empty)


def _disturbed(error: float) -> Callable[[Heads], Tensor]:
    """The layer's own output with noise as large as recomputing it makes, and no less than its last bits."""

    def operator(heads: Heads) -> Tensor:
        generator = torch.Generator(heads.out.device).manual_seed(heads.out.shape[-2])
        noise = torch.randn(heads.out.shape, generator=generator, dtype=torch.float32, device=heads.out.device)
        size = max(error, machine_epsilon(heads.out.dtype)) * heads.v.abs().amax()
        return heads.out + noise.to(heads.out.dtype) * size

    return operator


def _uniform(heads: Heads) -> Tensor:
    return softmax_attention(torch.zeros_like(heads.q), heads.k, heads.v, mask=heads.mask)


def tensors(output: Any) -> Iterator[Tensor]:
    """The floating tensors of a model's output, whatever holds them; caches of keys and values are not output."""
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


def _largest(measure: Callable[[Tensor, Tensor], float], ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest over all outputs; NaN if one is, which a plain maximum may lose."""
    values = [measure(a, b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _difference(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    return max(float(_apart(a, b).amax()), math.ulp(0.0))


def _relative(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    size = a.double().abs()
    return float(_apart(a, b).amax() / torch.where(size.isinf(), 0, size).amax().clamp_min(1e-30))


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Absolute differences; equal infinities, as in masked logits, do not differ."""
    return torch.where(a == b, 0, a.double() - b.double()).abs()

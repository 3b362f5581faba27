"""The kernel's calls on tensors on the CPU: attention (b, h, n, d) in single precision with any strides, and spans.

Heads whose scores spread so widely that the symmetric form would lose exponentials are computed row by row. A call
returns which heads these are, since the gradient needs it.
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import NotEnoughMemoryError
from clearhead.kernels.library import INSTRUCTIONS, Kernel
from clearhead.shapes import Bool, Float


class View(ctypes.Structure):
    """A tensor by its address and the steps of its first three axes; the last is contiguous."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch_step", "head_step", "token_step")),
    ]


class Sizes(ctypes.Structure):
    """The sizes of a call."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "key_width", "value_width")]


class Call(ctypes.Structure):
    """Attention: its operands, and where its results go."""

    _fields_ = [
        ("sizes", Sizes),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        *((name, View) for name in ("k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("visible", "totals", "by_row")),
    ]


_GRADIENTS: list[Any] = [(name, View) for name in ("out_gradient", "k_gradient", "v_gradient")]


class Backward(Call):
    """The gradient of attention."""

    _fields_ = _GRADIENTS


class Pursuit(Call):
    """Principal attention pursuit."""

    _fields_ = [
        ("iterations", ctypes.c_int64),
        ("pull", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("thresholds", "between")),
    ]


class PursuitBackward(Pursuit):
    """The gradient of a pursuit."""

    _fields_ = [*_GRADIENTS, ("threshold_gradients", ctypes.c_void_p)]


class Spans(ctypes.Structure):
    """Values, and the keys whose part in their span is wanted."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heads", "draws", "width", "tokens")),
        ("threads", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("head_step", "draw_step", "value_step")),
        *((name, ctypes.c_void_p) for name in ("kernels", "lengths", "factors", "energies", "pivots")),
    ]


_IMPORTED_IN = os.getpid()


@dataclass(frozen=True, slots=True)
class Attended:
    """Symmetric attention, the divisor of each row, and the heads that were computed row by row."""

    out: Float[Tensor, "b h n e"]
    totals: Float[Tensor, "b h n"]
    by_row: Bool[Tensor, "b h"]


@dataclass(frozen=True, slots=True)
class Pursued:
    """The last iterate, those before it, and for each the divisors of its rows and the heads computed row by row."""

    out: Float[Tensor, "b h n d"]
    between: Float[Tensor, "before b h n d"]
    totals: Float[Tensor, "iterations b h n"]
    by_row: Bool[Tensor, "iterations b h"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Settings of a pursuit: `pull` is 2 for the published sign of the dual variable, 0 for ADMM's."""

    iterations: int
    pull: float
    scale: float
    visible: Bool[Tensor, "b n"] | None
    causal: bool = False


def allocate_attention(k: Tensor, v: Tensor) -> Attended:
    """Allocate the result of `attend`."""
    return Attended(empty_by_token(v), k.new_empty(k.shape[:-1]), k.new_empty(k.shape[:2], dtype=torch.bool))


def allocate_pursuit(k: Tensor, v: Tensor, iterations: int, *, for_gradient: bool) -> Pursued:
    """Allocate the result of `pursue`: the last iterate, and with `for_gradient` also what the gradient needs."""
    between = k.new_empty((iterations - 1 if for_gradient else 0, *k.shape))
    totals = k.new_empty((iterations if for_gradient else 0, *k.shape[:-1]))
    return Pursued(empty_by_token(v), between, totals, k.new_empty(totals.shape[:-1], dtype=torch.bool))


def attend(
    kernel: Kernel,
    k: Tensor,
    v: Tensor,
    *,
    visible: Bool[Tensor, "b n"] | None,
    scale: float,
    causal: bool = False,
) -> Attended:
    """Compute symmetric attention, with `causal` over each token and those before it.

    Tokens that are not `visible` are hidden as keys, and attend as queries.
    """
    attended = allocate_attention(k, v)
    _attend(kernel, k, v, attended.out, visible, attended.totals, attended.by_row, scale, causal)
    return attended


def attended_output(
    kernel: Kernel, k: Tensor, v: Tensor, *, visible: Bool[Tensor, "b n"] | None, scale: float, causal: bool
) -> Float[Tensor, "b h n e"]:
    """Return the output of `attend` without what a gradient needs."""
    out = empty_by_token(v)
    _attend(kernel, k, v, out, visible, None, None, scale, causal)
    return out


def _attend(
    kernel: Kernel,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    visible: Tensor | None,
    totals: Tensor | None,
    by_row: Tensor | None,
    scale: float,
    causal: bool,
) -> None:
    k, v, visible = _in_rows(k), _in_rows(v), _contiguous_mask(visible)
    call = Call(*_common(k, v, out, visible, totals, by_row, scale, causal))
    _run(kernel, "clearhead_forward", call, tokens=k.shape[-2])


def attend_backward(
    kernel: Kernel,
    gradient: Tensor,
    k: Tensor,
    v: Tensor,
    attended: Attended,
    *,
    visible: Bool[Tensor, "b n"] | None,
    scale: float,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of k and v."""
    k, v, gradient, out = _in_rows(k), _in_rows(v), _in_rows(gradient), _in_rows(attended.out)
    visible, totals, by_row = _contiguous_mask(visible), attended.totals.contiguous(), attended.by_row.contiguous()
    k_gradient, v_gradient = empty_by_token(k), empty_by_token(v)
    common = _common(k, v, out, visible, totals, by_row, scale, causal)
    call = Backward(*common, _view(gradient), _view(k_gradient), _view(v_gradient))
    _run(kernel, "clearhead_backward", call, tokens=k.shape[-2])
    return k_gradient, v_gradient


def pursue(
    kernel: Kernel,
    k: Tensor,
    v: Tensor,
    thresholds: Float[Tensor, "b h n"],
    schedule: Schedule,
    *,
    for_gradient: bool,
) -> Pursued:
    """Run principal attention pursuit (see pursuit.h); with `for_gradient` also return what the gradient needs."""
    k, v, thresholds, visible = _in_rows(k), _in_rows(v), thresholds.contiguous(), _contiguous_mask(schedule.visible)
    pursued = allocate_pursuit(k, v, schedule.iterations, for_gradient=for_gradient)
    totals, by_row = (pursued.totals, pursued.by_row) if for_gradient else (None, None)
    common = _common(k, v, pursued.out, visible, totals, by_row, schedule.scale, schedule.causal)
    between = pursued.between.data_ptr() if for_gradient else None
    call = Pursuit(*common, schedule.iterations, schedule.pull, thresholds.data_ptr(), between)
    _run(kernel, "clearhead_pursuit", call, tokens=k.shape[-2])
    return pursued


def pursue_backward(
    kernel: Kernel,
    gradient: Tensor,
    k: Tensor,
    v: Tensor,
    thresholds: Float[Tensor, "b h n"],
    schedule: Schedule,
    pursued: Pursued,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of k, v and the thresholds."""
    k, v, gradient, out = _in_rows(k), _in_rows(v), _in_rows(gradient), _in_rows(pursued.out)
    thresholds, visible, by_row = (
        thresholds.contiguous(),
        _contiguous_mask(schedule.visible),
        pursued.by_row.contiguous(),
    )
    totals, between = pursued.totals.contiguous(), pursued.between.contiguous()
    k_gradient, v_gradient, threshold_gradient = empty_by_token(k), empty_by_token(v), torch.empty_like(thresholds)
    call = PursuitBackward(
        *_common(k, v, out, visible, totals, by_row, schedule.scale, schedule.causal),
        schedule.iterations, schedule.pull, thresholds.data_ptr(), between.data_ptr(),
        _view(gradient), _view(k_gradient), _view(v_gradient), threshold_gradient.data_ptr(),
    )  # fmt: skip
    _run(kernel, "clearhead_pursuit_backward", call, tokens=k.shape[-2])
    return k_gradient, v_gradient, threshold_gradient


def span_energies(
    kernel: Kernel,
    values: Float[Tensor, "h t e m"],
    kernels: Float[Tensor, "h m m"],
    lengths: Float[Tensor, "h m"],
    factors: Float[Tensor, "h m"],
) -> tuple[Float[Tensor, "h t"], Float[Tensor, "h t"]]:
    """Return the energies of centred keys in spans of values, in float64 (see span.h), and the least pivots.

    A pivot is squared and relative to the diagonal. Where it is not positive, the energy is undefined.
    """
    h, t, e, m = values.shape
    values, kernels, lengths, factors = _in_rows(values), *(x.contiguous() for x in (kernels, lengths, factors))
    energies, pivots = values.new_empty(h, t), values.new_empty(h, t)
    steps = values.stride()[:3]
    addresses = (x.data_ptr() for x in (kernels, lengths, factors, energies, pivots))
    call = Spans(h, t, e, m, _threads(), values.data_ptr(), *steps, *addresses)
    _run(kernel, "clearhead_spans", call, tokens=m)
    return energies, pivots


def empty_by_token(like: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n e"]:
    """Allocate a tensor of this shape with memory in the order (b, n, h, e), in which the next layer reads it."""
    b, h, n, e = like.shape
    return like.new_empty_strided((b, h, n, e), (n * h * e, e, h * e, 1))


def _in_rows(x: Tensor) -> Tensor:
    """Return the tensor, or a copy of it whose last axis is contiguous."""
    return x if x.stride()[-1] == 1 or x.shape[-1] == 1 else x.contiguous()


def _contiguous_mask(visible: Tensor | None) -> Tensor | None:
    """Return the mask, contiguous: the kernel gets its address without strides."""
    return None if visible is None else visible.contiguous()


def _view(x: Tensor) -> View:
    return View(x.data_ptr(), *x.stride()[:3])


def _common(
    k: Tensor,
    v: Tensor,
    out: Tensor,
    visible: Tensor | None,
    totals: Tensor | None,
    by_row: Tensor | None,
    scale: float,
    causal: bool,
) -> tuple[object, ...]:
    return (
        Sizes(*k.shape, v.shape[-1]), scale, _threads(), causal, _view(k), _view(v), _view(out),
        *(None if x is None else x.data_ptr() for x in (visible, totals, by_row)),
    )  # fmt: skip


def _threads() -> int:
    """Return torch's number of threads; one after a fork, where the pool would wait forever for lost threads.

    The kernel detects a fork after it was loaded; this detects one before, since the pool is shared with torch.
    """
    return torch.get_num_threads() if os.getpid() == _IMPORTED_IN else 1


def _run(kernel: Kernel, name: str, call: ctypes.Structure, *, tokens: int) -> None:
    outcome = getattr(kernel.handle, name)(ctypes.byref(call), INSTRUCTIONS[kernel.instructions])
    if outcome == 2:
        raise NotEnoughMemoryError(
            f"attention over {tokens} tokens ran out of memory. The kernel could not allocate more; pass fewer tokens "
            "at once"
        )
    assert outcome == 0, f"the kernel has no variant for {kernel.instructions}"

"""The structures of interface.h, through which calls reach the kernel."""

import ctypes
from typing import Any

__all__ = ["Backward", "Call", "Pursuit", "PursuitBackward", "Sizes", "Spans", "View"]


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

"""The checks of operators, (q, k, v, *, mask) -> o. A check takes an `OperatorSubject` and raises if it fails.

A mask is True where a query may attend. A query without keys gets zeros.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.shapes import ShapeError
from clearhead.testing.operators import HEADS, VALUE_WIDTH, WIDTH, OperatorSubject
from clearhead.testing.subject import BATCH, SHARED_CHECKS, Inputs, require, require_close, require_finite

LARGE = 2.0**20
"""The entries of hidden keys and values: any weight on them shows, and no product of two overflows."""


def _agrees_with_reference(subject: OperatorSubject, dtype: torch.dtype, *, backward: bool, **options: Tensor) -> None:
    for value_width in (VALUE_WIDTH, WIDTH):  # fused kernels take another path where e = d
        inputs = subject.draw(value_width=value_width, dtype=dtype)
        got, want = subject.output(inputs, **options), subject.expected(inputs, **options)
        what = f"{dtype} against the reference, e = {value_width}"
        require_close(got, want, within=subject.tolerance(dtype), what=what)
        if not backward:
            continue
        got_gradients = subject.gradients(inputs, **options)
        want_gradients = _reference_gradients(subject, inputs, **options)
        size = max(x.abs().max().item() for x in want_gradients.values())
        for name, x in got_gradients.items():
            within, y = subject.tolerance(dtype), want_gradients[name]
            require_close(x, y, within=within, what=f"{what}: gradient for {name}", size=size)


def _reference_gradients(subject: OperatorSubject, inputs: Inputs, **options: Tensor) -> Inputs:
    reference = OperatorSubject(operator=subject.reference, reference=subject.reference)
    return reference.gradients(inputs, **options)


def _against_reference(*dtypes: torch.dtype, backward: bool = False) -> Callable[[OperatorSubject], None]:
    def check(subject: OperatorSubject) -> None:
        for dtype in dtypes:
            _agrees_with_reference(subject, dtype, backward=backward)

    return check


def _under(draw: Callable[[OperatorSubject], Tensor]) -> Callable[[OperatorSubject], None]:
    """Return the check that output and gradients agree with the reference under a mask."""
    return lambda subject: _agrees_with_reference(subject, torch.float64, backward=True, mask=draw(subject))


def _half_range(subject: OperatorSubject) -> None:
    inputs = subject.draw(dtype=torch.float16)
    side = 2.0 ** math.ceil(math.log2(torch.finfo(torch.float16).max) / 2)  # its square overflows float16
    inputs |= {name: side * inputs[name].sign() for name in "qk"}
    out = subject.output(inputs)
    require(out.isfinite().all(), "scores beyond the range of float16 gave an output that is not finite")


def _leading_axes(subject: OperatorSubject) -> None:
    for count in subject.leading:
        leading = (BATCH, HEADS)[2 - count :]
        inputs = subject.draw(leading=leading)
        got, want = subject.output(inputs), subject.expected(inputs)
        require_close(got, want, within=subject.tolerance(torch.float64), what=f"leading axes {leading}")


def _vmap(subject: OperatorSubject) -> None:
    inputs = subject.draw()
    for options in (Inputs(), subject.options()):
        names = tuple(options)

        def operator(q: Tensor, k: Tensor, v: Tensor, *values: Tensor, names: tuple[str, ...] = names) -> Tensor:
            return subject.operator(q, k, v, **dict(zip(names, values, strict=True)))

        got, want = torch.vmap(operator)(*inputs.values(), *options.values()), subject.output(inputs, **options)
        what = "torch.vmap over the batch, with a mask" if options else "torch.vmap over the batch"
        require_close(got, want, within=subject.tolerance(torch.float64), what=what)


def _mismatched_shapes(subject: OperatorSubject) -> None:
    q, k, v = subject.draw().values()
    cases = {
        "another d": (q, k[..., 1:], v),
        "another m": (q, k, v[..., 1:, :]),
        "no n": (q[0, 0, 0], k, v),
    }
    if subject.strict_errors:  # others may broadcast
        cases["another b"] = (q, k[1:], v[1:])
    if subject.square:
        cases["n other than m"] = (q[..., 1:, :], k, v)
    for what, operands in cases.items():
        _require_error(subject, operands, kind=ShapeError, what=what)


def _wrong_dtypes(subject: OperatorSubject) -> None:
    q, k, v = subject.draw().values()
    cases = {"integers": (q.long(), k.long(), v.long()), "mixed dtypes": (q, k.float(), v)}
    for what, operands in cases.items():
        _require_error(subject, operands, kind=ValueError, what=what)


def _wrong_masks(subject: OperatorSubject) -> None:
    operands, mask = tuple(subject.draw().values()), subject.causal_mask()
    _require_error(subject, operands, kind=ShapeError, what="a mask one key short", mask=mask[:, 1:])
    _require_error(subject, operands, kind=ValueError, what="a mask that is not boolean", mask=mask.double())


def _require_error(
    subject: OperatorSubject, operands: tuple[Tensor, ...], *, kind: type[ValueError], what: str, **options: Tensor
) -> None:
    """Raise unless the operator raises `kind`, and every shape is in the message of a `ShapeError`.

    Without `strict_errors` any error is accepted. jaxtyping's import hook may raise before the operator can; its errors
    are accepted as well.
    """
    named = dict(zip("qkv", operands, strict=True)) | options
    try:
        subject.operator(*operands, **options)
    except Exception as error:
        if not subject.strict_errors or type(error).__module__.startswith("jaxtyping"):
            return
        require(isinstance(error, kind), f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}")
        for name, x in named.items() if kind is ShapeError else ():
            require(str(tuple(x.shape)) in str(error), f"{what}: the error does not show the shape of {name}: {error}")
    else:
        raise AssertionError(f"{what}: expected {kind.__name__ if subject.strict_errors else 'an error'}, got none")


def _mask_shapes(subject: OperatorSubject) -> None:
    inputs, mask = subject.draw(), subject.boolean_mask()
    for smaller in (mask[:1], mask[:, :1], mask[..., :1, :], mask[0, 0], mask[0, 0, 0]):
        what = f"mask of shape {tuple(smaller.shape)}"
        want = subject.output(inputs, mask=smaller.expand(mask.shape))
        try:
            got = subject.output(inputs, mask=smaller)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        require_close(got, want, within=subject.tolerance(torch.float64), what=what)


def _fully_masked_rows(subject: OperatorSubject) -> None:
    mask = subject.boolean_mask()
    mask[0, :, 0] = False
    mask[-1] = False
    without_keys = ~mask.any(dim=-1)
    for value_width in (VALUE_WIDTH, WIDTH):
        inputs = subject.draw(value_width=value_width)
        require_finite(subject, inputs, "a query without keys", mask=mask)
        zeros = (subject.output(inputs, mask=mask)[without_keys] == 0).all()
        require(zeros, "a query without keys must get zeros")
    _agrees_with_reference(subject, torch.float64, backward=True, mask=mask)


def _hidden_keys(subject: OperatorSubject) -> None:
    mask, inputs, within = subject.padding_mask(), subject.draw(), subject.tolerance(torch.float64)
    hidden = ~mask.mT
    others = inputs | {name: inputs[name].masked_fill(hidden, LARGE) for name in "kv"}
    # Within one sequence a hidden token is also a query, and its own output may change.
    rows = slice(0, subject.keys - BATCH) if subject.square else slice(None)

    def visible(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor) -> Tensor:
        return subject.operator(q, k, v, mask=mask)[..., rows, :]

    part = OperatorSubject(operator=visible, reference=subject.reference)
    got, want = part.output(others, mask=mask), part.output(inputs, mask=mask)
    require_close(got, want, within=within, what="output with other hidden keys")
    for name in "kv":
        x = part.gradients(inputs, mask=mask)[name]
        at_hidden = x.masked_fill(~hidden.expand_as(x), 0)
        what = f"gradient for a hidden {name}"
        require_close(at_hidden, torch.zeros_like(x), within=within, size=1.0, what=what)


def _causality(subject: OperatorSubject) -> None:
    mask, inputs = subject.causal_mask(), subject.draw()
    last = torch.arange(subject.keys, device=subject.device)[:, None] == subject.keys - 1
    others = inputs | {name: inputs[name].masked_fill(last, LARGE) for name in "kv"}
    got, want = subject.output(others, mask=mask), subject.output(inputs, mask=mask)
    within = subject.tolerance(torch.float64)
    require_close(got[..., :-1, :], want[..., :-1, :], within=within, what="earlier outputs with another last token")


_REFERENCE_MASK_CHECKS = {
    "padding_mask": _under(OperatorSubject.padding_mask),
    "causal_mask": _under(OperatorSubject.causal_mask),
    "boolean_mask": _under(OperatorSubject.boolean_mask),
}

REFERENCE_CHECKS: dict[str, Callable[[OperatorSubject], None]] = {
    "reference_float64": _against_reference(torch.float64),
    "reference_float32": _against_reference(torch.float32),
    "reference_gradients": _against_reference(torch.float64, torch.float32, backward=True),
    **_REFERENCE_MASK_CHECKS,
}
"""Checks that need a reference: without one they would compare the operator with itself."""

MASK_CHECKS: dict[str, Callable[[OperatorSubject], None]] = {
    **_REFERENCE_MASK_CHECKS,
    "mask_shapes": _mask_shapes,
    "fully_masked_rows": _fully_masked_rows,
    "hidden_keys": _hidden_keys,
    "causality": _causality,
    "wrong_masks": _wrong_masks,
}
"""Checks of operators that take a mask."""

OPERATOR_CHECKS: dict[str, Callable[[OperatorSubject], None]] = {
    **SHARED_CHECKS,
    "half_range": _half_range,
    "leading_axes": _leading_axes,
    "vmap": _vmap,
    "mismatched_shapes": _mismatched_shapes,
    "wrong_dtypes": _wrong_dtypes,
    **REFERENCE_CHECKS,
    **MASK_CHECKS,
}
"""All checks of an operator by name."""

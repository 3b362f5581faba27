"""What every attention operator owes its callers, one check per promise; the promises about masks have a file beside.

A check takes a `Subject` and raises if the promise is broken.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.numerics.precision import difference_step
from clearhead.operators.contract_subject import (
    BATCH,
    HEADS,
    QUERIES,
    VALUE_WIDTH,
    WIDTH,
    Subject,
    gradients,
    require,
    require_close,
    require_gradients_close,
    require_refusal,
)
from clearhead.shapes import ShapeError

__all__ = ["PLAIN_CHECKS"]


def _output_shape(subject: Subject) -> None:
    out = subject.operator(*subject.draw())
    want = (BATCH, HEADS, QUERIES, VALUE_WIDTH)
    require(tuple(out.shape) == want, f"expected (b, h, n, e) = {want}, got {tuple(out.shape)}")
    require(out.dtype == torch.float64, f"expected the operands' dtype torch.float64, got {out.dtype}")


def _twin_forward(subject: Subject, dtype: torch.dtype) -> None:
    for value_width in (VALUE_WIDTH, WIDTH):  # fused kernels take another path where e = d
        operands = subject.draw(value_width=value_width, dtype=dtype)
        got, want = subject.operator(*operands), subject.twin(*operands)
        require_close(got, want, within=subject.tolerance(dtype), what=f"output against the twin's, e = {value_width}")


def _twin_forward_float64(subject: Subject) -> None:
    _twin_forward(subject, torch.float64)


def _twin_forward_float32(subject: Subject) -> None:
    _twin_forward(subject, torch.float32)


def _twin_backward(subject: Subject) -> None:
    for value_width in (VALUE_WIDTH, WIDTH):
        for dtype in (torch.float64, torch.float32):
            operands = subject.draw(value_width=value_width, dtype=dtype)
            require_gradients_close(subject, operands, what=f"{dtype}, e = {value_width}")


def _depends_on_values(subject: Subject) -> None:
    q, k, v = subject.draw()
    change = (subject.operator(q, k, v) - subject.operator(q, k, v.flip(-2))).abs().max().item()
    require(change > subject.tolerance(torch.float64), "other values gave the same output: the operator is constant")


def _gradcheck(subject: Subject) -> None:
    step = difference_step(torch.float64)
    keys = 2 if subject.square else 3  # small, for every entry of every operand is moved twice
    leaves = tuple(x.requires_grad_() for x in subject.draw(leading=(1, HEADS), queries=2, keys=keys))
    torch.autograd.gradcheck(subject.operator, leaves, eps=step, atol=step, rtol=step)


def _dtype_ladder(subject: Subject) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        operands = subject.draw(dtype=dtype)
        got, want = subject.operator(*operands), subject.twin(*(x.double() for x in operands))
        require(got.dtype == dtype, f"expected the operands' dtype {dtype}, got {got.dtype}")
        require_close(got, want, within=subject.tolerance(dtype), what=f"{dtype} against the twin in float64")


def _half_range(subject: Subject) -> None:
    q, k, v = subject.draw(dtype=torch.float16)
    side = 2.0 ** math.ceil(math.log2(torch.finfo(torch.float16).max) / 2)  # whose square is beyond half precision
    out = subject.operator(side * q.sign(), side * k.sign(), v)
    require(out.isfinite().all(), "scores beyond the range of float16 made the output not finite: compute them wider")


def _single_token(subject: Subject) -> None:
    operands = subject.draw(queries=1, keys=1)
    got, want = subject.operator(*operands), subject.twin(*operands)
    require_close(got, want, within=subject.tolerance(torch.float64), what="one query and one key")


def _empty_batch(subject: Subject) -> None:
    operands = subject.draw(leading=(0, HEADS))
    out, want = subject.operator(*operands), (0, HEADS, QUERIES, VALUE_WIDTH)
    require(tuple(out.shape) == want, f"expected shape {want}, got {tuple(out.shape)}")
    for x, y in zip(gradients(subject.operator, operands), operands, strict=True):
        require(x.shape == y.shape, f"expected a gradient of shape {tuple(y.shape)}, got {tuple(x.shape)}")


def _non_contiguous(subject: Subject) -> None:
    operands = subject.draw()
    want = subject.operator(*operands)
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "transposed": lambda x: x.mT.contiguous().mT,
        "strided": lambda x: torch.stack([x, x], dim=-1).flatten(-2)[..., ::2],
        "heads behind tokens": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    }
    for name, laid_out in layouts.items():
        got = subject.operator(*(laid_out(x) for x in operands))
        require_close(got, want, within=subject.tolerance(torch.float64), what=f"{name} operands")
    shared = [x[:, :1].expand_as(x) for x in operands]
    got, want = subject.operator(*shared), subject.operator(*(x.contiguous() for x in shared))
    require_close(got, want, within=subject.tolerance(torch.float64), what="operands that the heads share")


def _leading_axes(subject: Subject) -> None:
    for count in subject.leading:
        leading = (BATCH, HEADS)[2 - count :]
        operands = subject.draw(leading=leading)
        got, want = subject.operator(*operands), subject.twin(*operands)
        require_close(got, want, within=subject.tolerance(torch.float64), what=f"leading axes {leading}")


def _inputs_apart(subject: Subject) -> None:
    q, k, v = subject.draw()
    whole = subject.operator(q, k, v)
    for i in range(BATCH):
        only = slice(i, i + 1)
        got = subject.operator(q[only], k[only], v[only])
        what = f"input {i} by itself and within a batch"
        require_close(got, whole[only], within=subject.tolerance(torch.float64), what=what)


def _determinism(subject: Subject) -> None:
    operands = subject.draw(dtype=torch.float32)
    require(torch.equal(subject.operator(*operands), subject.operator(*operands)), "two runs differ")
    first, second = gradients(subject.operator, operands), gradients(subject.operator, operands)
    for name, x, y in zip("qkv", first, second, strict=True):
        require(torch.equal(x, y), f"gradients for {name} differ between two runs")


def _operands_untouched(subject: Subject) -> None:
    operands = subject.draw()
    copies = [x.clone() for x in operands]
    subject.operator(*operands)
    for name, x, y in zip("qkv", operands, copies, strict=True):
        require(torch.equal(x, y), f"{name} was changed in place")


def _compile(subject: Subject) -> None:
    operands = subject.draw()
    torch.compiler.reset()  # else earlier compilations of the same function count toward the limit of recompilations
    compiled = torch.compile(subject.operator, fullgraph=True, backend=subject.backend)
    got, want = compiled(*operands), subject.operator(*operands)
    require_close(got, want, within=subject.tolerance(torch.float64), what="compiled")


def _vmap(subject: Subject) -> None:
    operands = subject.draw()
    got, want = torch.vmap(subject.operator)(*operands), subject.operator(*operands)
    require_close(got, want, within=subject.tolerance(torch.float64), what="mapped over b")


def _mismatched_shapes(subject: Subject) -> None:
    q, k, v = subject.draw()
    wrong = {
        "another d": (q, k[..., 1:], v),
        "another m": (q, k, v[..., 1:, :]),
        "no n": (q[0, 0, 0], k, v),
    }
    if subject.words:  # others broadcast
        wrong["another b"] = (q, k[1:], v[1:])
    if subject.square:
        wrong["n other than m"] = (q[..., 1:, :], k, v)
    for what, operands in wrong.items():
        require_refusal(subject, operands, by=ShapeError, what=what)


def _wrong_dtypes(subject: Subject) -> None:
    q, k, v = subject.draw()
    wrong = {"integers": (q.long(), k.long(), v.long()), "mixed dtypes": (q, k.float(), v)}
    for what, operands in wrong.items():
        require_refusal(subject, operands, by=ValueError, what=what)


PLAIN_CHECKS: dict[str, Callable[[Subject], None]] = {
    "output_shape": _output_shape,
    "twin_forward_float64": _twin_forward_float64,
    "twin_forward_float32": _twin_forward_float32,
    "twin_backward": _twin_backward,
    "depends_on_values": _depends_on_values,
    "gradcheck": _gradcheck,
    "dtype_ladder": _dtype_ladder,
    "half_range": _half_range,
    "single_token": _single_token,
    "empty_batch": _empty_batch,
    "non_contiguous": _non_contiguous,
    "leading_axes": _leading_axes,
    "inputs_apart": _inputs_apart,
    "determinism": _determinism,
    "operands_untouched": _operands_untouched,
    "compile": _compile,
    "vmap": _vmap,
    "mismatched_shapes": _mismatched_shapes,
    "wrong_dtypes": _wrong_dtypes,
}

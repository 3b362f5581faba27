"""An operator as its own twin, where nobody has written another: one input at a time, in double precision.

It finds inputs that get in each other's way, other layouts and axes, and rounding. It cannot find that the formula is
another one: for that the contract needs a twin that somebody wrote.
"""

import torch
from torch import Tensor

from clearhead.operators.contract_subject import Operator, require

__all__ = ["alone"]


def alone(operator: Operator) -> Operator:
    """The twin of an operator that has none: itself, on (1, h, n, d), contiguous and in double precision."""

    def twin(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
        shape = (*q.shape[:-1], v.shape[-1])
        q, k, v = (_four_axes(x.double()).contiguous() for x in (q, k, v))
        outputs = []
        for i in range(len(q)):
            only = slice(i, i + 1)
            seen = mask[only] if mask is not None and mask.ndim == 4 and len(mask) > 1 else mask
            operands = q[only], k[only], v[only]
            out = operator(*operands) if seen is None else operator(*operands, mask=seen)
            want = (1, *q.shape[1:-1], v.shape[-1])
            require(tuple(out.shape) == want, f"one input: expected (1, h, n, e) = {want}, got {tuple(out.shape)}")
            outputs.append(out)
        return torch.cat(outputs).reshape(shape)

    return twin


def _four_axes(x: Tensor) -> Tensor:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)

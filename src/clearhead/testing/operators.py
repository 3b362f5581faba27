"""An operator, (q, k, v, *, mask) -> o, as the subject of checks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.testing.subject import BATCH, Differentiable, Inputs, Subject, require

Operator = Callable[..., Tensor]

HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 3, 5, 7, 11, 13


@dataclass(frozen=True, kw_only=True)
class OperatorSubject(Subject):
    """An operator under check, its reference, and the calls it accepts."""

    operator: Operator
    reference: Operator
    """The slow definition of the same operator; `one_input_at_a_time(operator)` if none is known."""
    masks: bool = True
    """True if it takes `mask`."""
    square: bool = False
    """True if it attends within one sequence only, n = m."""
    leading: tuple[int, ...] = (0, 1, 2)
    """The numbers of axes it takes before (n, d). Two is (b, h), which all other checks use."""
    terms: int = WIDTH
    """Length of its longest sum of products, with which rounding errors grow."""
    strict_errors: bool = True
    """True if bad operands must raise `ShapeError` or ValueError as Clearhead's operators do; False for any error."""
    device: torch.device | str = "cpu"

    @property
    def function(self) -> Operator:
        """The operator."""
        return self.operator

    @property
    def content(self) -> str:
        """The values: an operator may ignore q, as symmetric attention does."""
        return "v"

    @property
    def keys(self) -> int:
        """Number of keys of the inputs drawn."""
        return QUERIES if self.square else KEYS

    def draw(
        self,
        *,
        dtype: torch.dtype = torch.float64,
        tokens: int | None = None,
        seed: int | None = None,
        leading: tuple[int, ...] = (BATCH, HEADS),
        value_width: int = VALUE_WIDTH,
    ) -> Inputs:
        """Draw standard normal q, k and v, the same for the same sizes and seed."""
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        n, m = (QUERIES, self.keys) if tokens is None else (tokens, tokens)
        shapes = {"q": (*leading, n, WIDTH), "k": (*leading, m, WIDTH), "v": (*leading, m, value_width)}
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, dtype)
            for name, shape in shapes.items()
        }

    def options(self) -> Inputs:
        """Return a random mask with at least one key for each query, if the operator takes one."""
        return {"mask": self.boolean_mask()} if self.masks else {}

    def boolean_mask(self) -> Tensor:
        """Draw a mask (b, h, n, m) with at least one key for each query."""
        generator = torch.Generator().manual_seed(self.seed)
        mask = torch.rand(BATCH, HEADS, QUERIES, self.keys, generator=generator) < 0.5
        return (mask | torch.eye(QUERIES, self.keys, dtype=torch.bool)).to(self.device)

    def padding_mask(self) -> Tensor:
        """Return a mask (b, 1, 1, m) that hides the last two keys of the first input and the last of the second."""
        positions = torch.arange(self.keys, device=self.device)
        lengths = self.keys - torch.arange(BATCH, 0, -1, device=self.device)
        return (positions < lengths[:, None])[:, None, None, :]

    def causal_mask(self) -> Tensor:
        """Return a mask (n, m): the last query sees all keys, each query before it one fewer."""
        ones = torch.ones(QUERIES, self.keys, dtype=torch.bool, device=self.device)
        return ones.tril(self.keys - QUERIES)

    def output_shape(self, out: Tensor) -> tuple[int, ...]:
        """Return (b, h, n, e)."""
        return (BATCH, HEADS, QUERIES, VALUE_WIDTH)

    def expected(self, inputs: Inputs, **options: Tensor) -> Tensor:
        """Return the output of the reference."""
        return self.reference(*inputs.values(), **options)

    def rounded(self, dtype: torch.dtype) -> tuple["OperatorSubject", "OperatorSubject"]:
        """Return the subject twice: an operator takes its dtype from its operands."""
        return self, self

    def differentiable(self) -> Differentiable:
        """Return the operator on two queries, where comparing entry by entry is cheap."""
        inputs = self.draw(leading=(1, HEADS), tokens=2)
        if not self.square:
            inputs |= {name: self.draw(leading=(1, HEADS), tokens=3)[name] for name in "kv"}
        return Differentiable(
            function=self.operator, leaves=tuple(value.requires_grad_() for value in inputs.values()), fast=False
        )

    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative error that rounding in `dtype` explains, for sums of `terms` products."""
        return tolerance(dtype, terms=self.terms)


def one_input_at_a_time(operator: Operator) -> Operator:
    """Return the operator on one input (1, h, n, d) at a time, contiguous and in double precision.

    The reference of an operator that has none. Comparing with it detects inputs that influence each other, layouts,
    leading axes and rounding. It cannot detect a wrong formula.
    """

    def reference(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
        shape = (*q.shape[:-1], v.shape[-1])
        q, k, v = (_four_axes(x.double()).contiguous() for x in (q, k, v))
        outputs = []
        for i in range(len(q)):
            row = slice(i, i + 1)
            operands = q[row], k[row], v[row]
            row_mask = mask[row] if mask is not None and mask.ndim == 4 and len(mask) > 1 else mask
            out = operator(*operands) if row_mask is None else operator(*operands, mask=row_mask)
            want = (1, *q.shape[1:-1], v.shape[-1])
            require(tuple(out.shape) == want, f"one input: expected (1, h, n, e) = {want}, got {tuple(out.shape)}")
            outputs.append(out)
        return torch.cat(outputs).reshape(shape)

    return reference


def _four_axes(x: Tensor) -> Tensor:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)

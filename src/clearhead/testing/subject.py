"""The subject of a check: an attention, operator or module, with random inputs and its tolerance; the shared checks.

Sizes are distinct primes, so that no transposition passes by accident. Tolerances come from
`clearhead.numerics.precision`.

Operators and modules share some checks. A check takes a `Subject` and raises if it fails.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import difference_step

BATCH = 2

Inputs = dict[str, Tensor]
"""Tensors by the name of the argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differentiable:
    """A function of tensors that require gradients, as `torch.autograd.gradcheck` takes it."""

    function: Callable[..., Tensor]
    leaves: tuple[Tensor, ...]
    fast: bool
    """True to compare along one random direction per leaf instead of entry by entry."""


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """An attention under check: how to draw inputs for it and how to call it."""

    backend: str = "eager"
    """Backend of torch.compile."""
    seed: int = 0

    @property
    @abstractmethod
    def function(self) -> Callable[..., object]:
        """The attention itself, called with the values of `draw()` and the options as keywords."""

    @property
    @abstractmethod
    def content(self) -> str:
        """Name of the input on which the output must depend."""

    @abstractmethod
    def draw(self, *, dtype: torch.dtype = torch.float64, tokens: int | None = None, seed: int | None = None) -> Inputs:
        """Draw standard normal inputs, the same for the same sizes and seed."""

    @abstractmethod
    def options(self) -> Inputs:
        """Return a mask that hides some keys, by argument name; empty if the attention takes no mask."""

    @abstractmethod
    def output_shape(self, out: Tensor) -> tuple[int, ...]:
        """Return the shape expected of the output for `draw()`, with sizes that may be any taken from `out`."""

    @abstractmethod
    def expected(self, inputs: Inputs, **options: Tensor) -> Tensor:
        """Return the output computed another way, or in double precision, to compare with."""

    @abstractmethod
    def rounded(self, dtype: torch.dtype) -> tuple["Subject", "Subject"]:
        """Return the subject in `dtype`, and the float64 subject with the same (rounded) parameters."""

    @abstractmethod
    def differentiable(self) -> Differentiable:
        """Return the attention as a function of small inputs, and of its parameters if it has any."""

    @abstractmethod
    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative error that rounding in `dtype` explains."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Learned parameters by name."""
        return {}

    @property
    def state(self) -> dict[str, Tensor]:
        """State by name, which a call in evaluation mode must not change."""
        return {}

    def output(self, inputs: Inputs, **options: Tensor | bool) -> Tensor:
        """Return the output for copies of the inputs, so that a change in place shows in its own check only."""
        return first_tensor(self.function(*(value.clone() for value in inputs.values()), **options))

    def gradients(self, inputs: Inputs, **options: Tensor | bool) -> dict[str, Tensor]:
        """Return gradients of a fixed random linear form of the output, for inputs and parameters.

        Gradients are zeros where the output does not use a tensor.
        """
        leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
        out = self.output(leaves, **options)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        form = (out * weights.to(out.device, out.dtype)).sum()
        require(form.requires_grad, "the output is detached from its inputs: it has no gradient")
        named = leaves | self.parameters
        values = torch.autograd.grad(form, list(named.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(named, values, strict=True))


def first_tensor(out: object) -> Tensor:
    """Return the output, or its first element if the attention returns weights or a cache as well."""
    first = out[0] if isinstance(out, tuple | list) and out else out
    if not isinstance(first, Tensor):
        raise AssertionError(f"expected a tensor, or a tuple that starts with one; got {type(out).__name__}")
    return first


def require(condition: bool | Tensor, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def require_close(got: Tensor, want: Tensor, *, within: float, what: str, size: float | None = None) -> None:
    """Raise AssertionError unless max |got - want| <= within * size; by default size = max |want|."""
    require(got.shape == want.shape, f"{what}: expected shape {tuple(want.shape)}, got {tuple(got.shape)}")
    require(got.isfinite().all(), f"{what}: not finite")
    if want.numel() == 0:
        return
    size = want.abs().max().item() if size is None else size
    error = (got.double() - want.double()).abs().max().item() / max(size, torch.finfo(torch.float64).tiny)
    require(error <= within, f"{what}: relative error {error:.1e}, at most {within:.1e} allowed")


def output(subject: Subject) -> None:
    """Raise unless the output has the right shape, the inputs' dtype and finite entries."""
    out = subject.output(subject.draw())
    want = subject.output_shape(out)
    require(tuple(out.shape) == want, f"expected shape {want}, got {tuple(out.shape)}")
    require(out.dtype == torch.float64, f"expected the inputs' dtype torch.float64, got {out.dtype}")
    require(out.isfinite().all(), "the output is not finite")


def depends_on_inputs(subject: Subject) -> None:
    """Raise unless another input (for an operator: other values) gives another output."""
    inputs = subject.draw()
    others = inputs | {subject.content: subject.draw(seed=subject.seed + 1)[subject.content]}
    same = torch.equal(subject.output(inputs), subject.output(others))
    require(not same, f"another {subject.content.removeprefix('the ')} gave the same output: the attention is constant")


def gradients(subject: Subject) -> None:
    """Raise unless gradients agree with finite differences, for all inputs and parameters."""
    problem, step = subject.differentiable(), difference_step(torch.float64)
    out = problem.function(*problem.leaves)
    require(out.requires_grad, "the output is detached from its inputs: it has no gradient")
    rtol = 100 * step if problem.fast else step
    torch.autograd.gradcheck(problem.function, problem.leaves, eps=step, atol=step, rtol=rtol, fast_mode=problem.fast)


def require_finite(subject: Subject, inputs: Inputs, what: str, **options: Tensor) -> None:
    """Raise unless the output and all gradients are finite."""
    require(subject.output(inputs, **options).isfinite().all(), f"{what} made the output not finite")
    for name, value in subject.gradients(inputs, **options).items():
        require(value.isfinite().all(), f"{what} made the gradient for {name} not finite")


def single_token(subject: Subject) -> None:
    """Raise unless one token gives an output for every input, with finite gradients."""
    inputs = subject.draw(tokens=1)
    got, want = subject.output(inputs), subject.expected(inputs)
    require_close(got, want, within=subject.tolerance(torch.float64), what="one token")
    require(len(got) == len(inputs[subject.content]), "one token: expected an output for every input")
    require_finite(subject, inputs, "one token")


def empty_batch(subject: Subject) -> None:
    """Raise unless a batch of no inputs gives an empty output of the right shape, and finite gradients."""
    inputs = subject.draw()
    empty = {name: value[:0] for name, value in inputs.items()}
    out, want = subject.output(empty), (0, *subject.output(inputs).shape[1:])
    require(tuple(out.shape) == want, f"expected shape {want}, got {tuple(out.shape)}")
    for name, value in subject.gradients(empty).items():
        require(value.isfinite().all(), f"an empty batch made the gradient for {name} not finite")
        if name in empty:
            shape = tuple(empty[name].shape)
            require(tuple(value.shape) == shape, f"expected a gradient of shape {shape}, got {tuple(value.shape)}")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: torch.stack([x, x], dim=-1).flatten(-2)[..., ::2],
    "batch-second": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "tokens-before-heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
}


def non_contiguous(subject: Subject) -> None:
    """Raise unless other memory layouts of the inputs give the same output."""
    inputs, within = subject.draw(), subject.tolerance(torch.float64)
    want = subject.output(inputs)
    for name, layout in LAYOUTS.items():
        got = first_tensor(subject.function(*(layout(value) for value in inputs.values())))
        require_close(got, want, within=within, what=f"{name} inputs")
    expanded = {name: value[:, :1].expand_as(value) for name, value in inputs.items()}
    got = first_tensor(subject.function(*expanded.values()))
    want = subject.output({name: value.contiguous() for name, value in expanded.items()})
    require_close(got, want, within=within, what="inputs expanded along axis 1")


def dtype_ladder(subject: Subject) -> None:
    """Raise unless each dtype is kept and gives the float64 output to the precision of that dtype."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        narrow, wide = subject.rounded(dtype)
        inputs, options = subject.draw(dtype=dtype), subject.options()
        got = narrow.output(inputs, **options)
        want = wide.expected({name: value.double() for name, value in inputs.items()}, **options)
        require(got.dtype == dtype, f"expected the inputs' dtype {dtype}, got {got.dtype}")
        require_close(got, want, within=subject.tolerance(dtype), what=f"{dtype} against float64")


def batch_independence(subject: Subject) -> None:
    """Raise unless each input of a batch gives the output it gives alone."""
    inputs, options = subject.draw(), subject.options()
    whole = subject.output(inputs, **options)
    for i in range(len(whole)):
        row = slice(i, i + 1)
        got = subject.output(
            {name: value[row] for name, value in inputs.items()},
            **{name: value[row] for name, value in options.items()},
        )
        what = f"input {i} alone and within a batch"
        require_close(got, whole[row], within=subject.tolerance(torch.float64), what=what)


def determinism(subject: Subject) -> None:
    """Raise unless two runs give the same bits, forward and backward, and change no state."""
    subject, _ = subject.rounded(torch.float32)
    inputs, options = subject.draw(dtype=torch.float32), subject.options()
    before = {name: value.clone() for name, value in subject.state.items()}
    first, second = subject.output(inputs, **options), subject.output(inputs, **options)
    require(torch.equal(first, second), "two runs in evaluation mode differ: dropout, or state that a call changes")
    for name, value in subject.state.items():
        require(torch.equal(before[name], value), f"a call in evaluation mode changed {name}")
    first_gradients, second_gradients = (subject.gradients(inputs, **options) for _ in range(2))
    for name, value in first_gradients.items():
        require(torch.equal(value, second_gradients[name]), f"gradients for {name} differ between two runs")


def inputs_untouched(subject: Subject) -> None:
    """Raise if a call changes an input or a mask in place."""
    inputs, options = subject.draw(), subject.options()
    named = inputs | options
    copies = {name: value.clone() for name, value in named.items()}
    subject.function(*inputs.values(), **options)
    for name, value in named.items():
        require(torch.equal(value, copies[name]), f"{name} was changed in place")


def compiles(subject: Subject) -> None:
    """Raise unless torch.compile takes it without a graph break, with and without a mask, and changes no output."""
    inputs = subject.draw()
    torch.compiler.reset()  # without it, earlier compilations of this function count toward the recompilation limit
    compiled = torch.compile(subject.function, fullgraph=True, backend=subject.backend)
    for options in (Inputs(), subject.options()):
        got = first_tensor(compiled(*(value.clone() for value in inputs.values()), **options))
        want = subject.output(inputs, **options)
        what = "compiled, with a mask" if options else "compiled"
        require_close(got, want, within=subject.tolerance(torch.float64), what=what)


SHARED_CHECKS: dict[str, Callable[[Subject], None]] = {
    "output": output,
    "depends_on_inputs": depends_on_inputs,
    "gradients": gradients,
    "single_token": single_token,
    "empty_batch": empty_batch,
    "non_contiguous": non_contiguous,
    "dtype_ladder": dtype_ladder,
    "batch_independence": batch_independence,
    "determinism": determinism,
    "inputs_untouched": inputs_untouched,
    "compile": compiles,
}

"""An operator under check, the operands it is given, and how its results are compared.

Sizes are distinct primes, so that no transposition passes by luck, and tolerances come from
`clearhead.numerics.precision` alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.shapes import ShapeError

__all__ = [
    "BATCH",
    "HEADS",
    "QUERIES",
    "VALUE_WIDTH",
    "WIDTH",
    "Operands",
    "Operator",
    "Subject",
    "gradients",
    "require",
    "require_close",
    "require_gradients_close",
    "require_refusal",
]

Operator = Callable[..., Tensor]
Operands = tuple[Tensor, Tensor, Tensor]

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 3, 5, 7, 11, 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An operator under check, its slow twin, and what it may be asked."""

    operator: Operator
    twin: Operator
    square: bool = False
    """Whether it attends within one sequence only, n = m."""
    leading: tuple[int, ...] = (0, 1, 2)
    """How many axes it takes before (n, d). Two is (b, h), which all other checks use."""
    terms: int = WIDTH
    """Length of its longest sum of products, by which rounding errors grow."""
    words: bool = True
    """Whether it must refuse wrong operands by the errors that ours raise, or by any."""
    backend: str = "eager"
    """Of torch.compile."""
    device: torch.device | str = "cpu"
    seed: int = 0

    @property
    def keys(self) -> int:
        """How many keys the drawn operands have."""
        return QUERIES if self.square else KEYS

    def draw(
        self,
        *,
        leading: tuple[int, ...] = (BATCH, HEADS),
        queries: int = QUERIES,
        keys: int | None = None,
        value_width: int = VALUE_WIDTH,
        dtype: torch.dtype = torch.float64,
    ) -> Operands:
        """Standard normal q, k and v, the same whenever the sizes are."""
        generator = torch.Generator().manual_seed(self.seed)
        m = self.keys if keys is None else keys
        shapes = ((*leading, queries, WIDTH), (*leading, m, WIDTH), (*leading, m, value_width))
        q, k, v = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, dtype) for shape in shapes
        )
        return q, k, v

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative error that is no error in this dtype."""
        return tolerance(dtype, terms=self.terms)


def require(condition: bool | Tensor, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds, also where Python drops assert statements."""
    if not condition:
        raise AssertionError(message)


def require_close(got: Tensor, want: Tensor, *, within: float, what: str, size: float | None = None) -> None:
    """Raise unless two tensors agree to a share of the wanted one's largest entry, or of the given size."""
    require(got.shape == want.shape, f"{what}: expected shape {tuple(want.shape)}, got {tuple(got.shape)}")
    require(got.isfinite().all(), f"{what}: not finite")
    if want.numel() == 0:
        return
    size = want.abs().max().item() if size is None else size
    error = (got.double() - want.double()).abs().max().item() / max(size, torch.finfo(torch.float64).tiny)
    require(error <= within, f"{what}: relative error {error:.1e}, at most {within:.1e} allowed")


def gradients(operator: Operator, operands: Operands, *, mask: Tensor | None = None) -> list[Tensor]:
    """Gradients for q, k and v of a fixed random form of the output; zeros where an operand is not used."""
    leaves = [x.detach().clone().requires_grad_() for x in operands]
    out = operator(*leaves) if mask is None else operator(*leaves, mask=mask)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    form = (out * weights.to(out.device, out.dtype)).sum()
    require(form.requires_grad, "the output is cut off from its operands: it has no gradient")
    return list(torch.autograd.grad(form, leaves, allow_unused=True, materialize_grads=True))


def require_gradients_close(subject: Subject, operands: Operands, *, mask: Tensor | None = None, what: str) -> None:
    """Raise unless operator and twin have the same gradients, to a share of the largest of them."""
    got, want = gradients(subject.operator, operands, mask=mask), gradients(subject.twin, operands, mask=mask)
    size = max(x.abs().max().item() for x in want)
    for name, x, y in zip("qkv", got, want, strict=True):
        require_close(x, y, within=subject.tolerance(x.dtype), what=f"{what}: gradient for {name}", size=size)


def require_refusal(
    subject: Subject, operands: Operands, *, by: type[ValueError], what: str, mask: Tensor | None = None
) -> None:
    """Raise unless the operator refuses the operands by the given error, a `ShapeError` showing the shape of each.

    Without `words` any error will do. Where jaxtyping's import hook is on, it may refuse the call before the operator
    can; that is accepted.
    """
    named = dict(zip("qkv", operands, strict=True)) | ({} if mask is None else {"mask": mask})
    try:
        subject.operator(*operands) if mask is None else subject.operator(*operands, mask=mask)
    except Exception as error:
        if not subject.words or type(error).__module__.startswith("jaxtyping"):
            return
        require(isinstance(error, by), f"{what}: expected {by.__name__}, got {type(error).__name__}: {error}")
        for name, x in named.items() if by is ShapeError else ():
            require(str(tuple(x.shape)) in str(error), f"{what}: the error does not show the shape of {name}: {error}")
    else:
        raise AssertionError(f"{what}: expected {by.__name__ if subject.words else 'an error'}, got no error")

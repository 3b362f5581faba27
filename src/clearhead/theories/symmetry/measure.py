r"""How far an operator is from a symmetry. The theorems, the tests and the audit all measure by this file.

Equivariance: A(g x) = g A(x) for every element g. Invariance: A(g x) = A(x). (Ji and Xie, definition 2, say so of
permutations.) An operator of several operands may see another element on each, as in A(QP, KR, VR) = A(Q, K, V) P.
Errors are relative, |found - expected| / |expected| in the Frobenius norm. A constant operator passes both tests; so
each comes with a positive control, an error that must be large or the test has shown nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float
from clearhead.theories.symmetry.groups import Element

__all__ = [
    "Action",
    "Errors",
    "SymmetryReport",
    "equivariance",
    "equivariance_errors",
    "invariance",
    "relative_error",
]

CONTROL_SEED = 5772156649
"""Not one that callers use: with theirs, the control's noise would be their own input."""

Operator = Callable[..., Tensor]
Operands = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One group element at work: what it does to each operand and to the output. None leaves a tensor as it is."""

    name: str
    operands: tuple[Element | None, ...]
    output: Element | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetryReport:
    """The relative errors of an operator over the elements of a group, and the control beside them.

    `control` is, for equivariance, the largest error against the output moved by another element than the input; for
    invariance, the change of the output when the input is replaced by one outside its orbit.
    """

    kind: str
    largest: float
    mean: float
    worst: str
    """Name of the element with the largest error."""
    control: float
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative error of each element, and of each element when the output is moved by the next one instead."""

    error: Float[Tensor, "g *b"]
    control: Float[Tensor, "g *b"]


def relative_error(found: Tensor, expected: Tensor, *, leading: int = 0) -> Tensor:
    """|found - expected| / |expected|, in float64, one for each index of the `leading` axes; 0 / 0 is 0."""
    expected = expected.detach().double()
    difference = (found.detach().double() - expected).flatten(leading).norm(dim=-1)
    size = expected.flatten(leading).norm(dim=-1)
    return torch.where(difference == 0, 0, difference / size)


def equivariance_errors(
    operator: Operator, operands: Operands, group: Sequence[Element | Action], *, leading: int = 0
) -> Errors:
    """|A(g x) - g A(x)| / |A(x)| for every g; an element acts alike on all operands and on the output.

    `leading` axes of the output, such as the heads, get an error each. The control compares with g' A(x), g' the next
    element, or with A(x) where there is no other.
    """
    operands, actions = _tuple(operands), _actions(operands, group)
    with torch.no_grad():
        plain = operator(*operands)
        expected = [_moved(plain, action.output) for action in actions]
        unrelated = [*expected[1:], expected[0] if len(actions) > 1 else plain]
        error, control = [], []
        for action, right, wrong in zip(actions, expected, unrelated, strict=True):
            found = operator(*_acted(operands, action))
            error.append(relative_error(found, right, leading=leading))
            control.append(relative_error(found, wrong, leading=leading))
    return Errors(error=torch.stack(error), control=torch.stack(control))


def equivariance(operator: Operator, operands: Operands, group: Sequence[Element | Action]) -> SymmetryReport:
    """Whether moving the input moves the output alike, for any callable or module."""
    errors = equivariance_errors(operator, operands, group)
    return _report("equivariance", errors.error, float(errors.control.max()), group)


def invariance(
    operator: Operator, operands: Operands, group: Sequence[Element | Action], *, other: Operands | None = None
) -> SymmetryReport:
    """Whether moving the input leaves the output as it is, for any callable or module.

    `other` is the control's input, which must lie outside the orbit; by default noise of the operands' own size, drawn
    by a fixed seed.
    """
    operands, actions = _tuple(operands), _actions(operands, group)
    with torch.no_grad():
        plain = operator(*operands)
        errors = torch.stack([relative_error(operator(*_acted(operands, action)), plain) for action in actions])
        elsewhere = _noise(operands) if other is None else _tuple(other)
        control = float(relative_error(operator(*elsewhere), plain))
    return _report("invariance", errors, control, group)


def _report(kind: str, errors: Tensor, control: float, group: Sequence[Element | Action]) -> SymmetryReport:
    return SymmetryReport(
        kind=kind,
        largest=float(errors.max()),
        mean=float(errors.mean()),
        worst=group[int(errors.argmax())].name,
        control=control,
        elements=len(group),
    )


def _tuple(operands: Operands) -> tuple[Tensor, ...]:
    return (operands,) if isinstance(operands, Tensor) else operands


def _actions(operands: Operands, group: Sequence[Element | Action]) -> list[Action]:
    count = len(_tuple(operands))
    if not group:
        raise InputError("expected a group of at least one element; got none")
    actions = [Action(name=g.name, operands=(g,) * count, output=g) if isinstance(g, Element) else g for g in group]
    for action in actions:
        if len(action.operands) != count:
            raise InputError(f"expected {action.name} to act on {count} operands; got {len(action.operands)} actions")
    return actions


def _acted(operands: tuple[Tensor, ...], action: Action) -> list[Tensor]:
    return [_moved(x, element) for x, element in zip(operands, action.operands, strict=True)]


def _moved(x: Tensor, element: Element | None) -> Tensor:
    return x if element is None else element(x)


def _noise(operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if not all(x.is_floating_point() for x in operands):
        dtypes = ", ".join(str(x.dtype) for x in operands)
        raise InputError(f"expected floating operands, or `other` operands for the control; got {dtypes}")
    generator = torch.Generator().manual_seed(CONTROL_SEED)
    return tuple(
        x.square().mean().sqrt() * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        for x in operands
    )

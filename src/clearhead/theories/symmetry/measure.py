r"""Deviations of an operator from a symmetry, as the theorems, the tests and the audit measure them.

Equivariance: A(g x) = g A(x) for every element g. Invariance: A(g x) = A(x). Ji and Xie (definition 2) state both for
permutations. An operator of several operands may have a different element on each, as in A(QP, KR, VR) = A(Q, K, V) P.
Errors are relative, |actual - expected| / |expected| in the Frobenius norm. A constant operator passes both tests, so
each has a control: an error that must be large, otherwise the test shows nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.theories.symmetry.groups import Element

CONTROL_SEED = 5772156649
"""Unlikely to be a caller's seed: with the same seed the control's noise would equal the caller's input."""

Operator = Callable[..., Tensor]
Operands = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The action of one group element on each operand and on the output; None is the identity."""

    name: str
    operands: tuple[Element | None, ...]
    output: Element | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetryReport:
    """Relative errors of an operator over the elements of a group, with a control.

    worst: name of the element with the largest error
    control: for equivariance, the largest error if the output is moved by another element than the input; for
        invariance, the change of the output if the input is replaced by one outside its orbit
    """

    kind: str
    largest: float
    mean: float
    worst: str
    control: float
    elements: int


def relative_error(actual: Tensor, expected: Tensor, *, leading: int = 0) -> Tensor:
    """Return |actual - expected| / |expected| in float64 for each index of the `leading` axes; 0 / 0 is 0."""
    expected = expected.detach().double()
    difference = (actual.detach().double() - expected).flatten(leading).norm(dim=-1)
    size = expected.flatten(leading).norm(dim=-1)
    return torch.where(difference == 0, 0, difference / size)


def equivariance(operator: Operator, operands: Operands, group: Sequence[Element | Action]) -> SymmetryReport:
    """Measure whether moving the input moves the output in the same way, for any callable or module.

    An element acts the same on all operands and on the output. The error of g is |A(g x) - g A(x)| / |A(x)|. The
    control compares with g' A(x), g' the next element, or with A(x) if the group has one element.
    """
    operands, actions = _tuple(operands), _actions(operands, group)
    with torch.no_grad():
        output = operator(*operands)
        expected = [_apply(output, action.output) for action in actions]
        unrelated = [*expected[1:], expected[0] if len(actions) > 1 else output]
        actual = [operator(*_act(operands, action)) for action in actions]
        errors, control = (
            torch.stack([relative_error(*pair) for pair in zip(actual, others, strict=True)])
            for others in (expected, unrelated)
        )
    return _report("equivariance", errors, float(control.max()), group)


def invariance(
    operator: Operator, operands: Operands, group: Sequence[Element | Action], *, other: Operands | None = None
) -> SymmetryReport:
    """Measure whether moving the input leaves the output unchanged, for any callable or module.

    other: the control's input, outside the orbit of the operands; by default noise of the operands' size from a fixed
        seed
    """
    operands, actions = _tuple(operands), _actions(operands, group)
    with torch.no_grad():
        output = operator(*operands)
        errors = torch.stack([relative_error(operator(*_act(operands, action)), output) for action in actions])
        control_operands = _noise(operands) if other is None else _tuple(other)
        control = float(relative_error(operator(*control_operands), output))
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
        raise InputError("expected a group of at least one element; got an empty one")
    actions = [Action(name=g.name, operands=(g,) * count, output=g) if isinstance(g, Element) else g for g in group]
    for action in actions:
        if len(action.operands) != count:
            raise InputError(f"expected {action.name} to act on {count} operands; got {len(action.operands)} actions")
    return actions


def _act(operands: tuple[Tensor, ...], action: Action) -> list[Tensor]:
    return [_apply(x, element) for x, element in zip(operands, action.operands, strict=True)]


def _apply(x: Tensor, element: Element | None) -> Tensor:
    return x if element is None else element(x)


def _noise(operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if not all(x.is_floating_point() for x in operands):
        dtypes = ", ".join(str(x.dtype) for x in operands)
        raise InputError(
            f"expected floating operands, because the control is noise; got {dtypes}. Pass `other` for the control"
        )
    generator = torch.Generator().manual_seed(CONTROL_SEED)
    return tuple(
        x.square().mean().sqrt() * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        for x in operands
    )

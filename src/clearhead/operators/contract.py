"""The contract of every attention operator, (q, k, v, *, mask) -> o, as checks that can be run on any function.

Our own operators are held to it by the test suite; `check_operator` holds yours to it, and `clearhead.check_attention`
prints what it finds.
"""

from collections.abc import Callable, Collection

import torch

from clearhead.errors import InputError
from clearhead.operators.contract_alone import alone
from clearhead.operators.contract_checks import PLAIN_CHECKS
from clearhead.operators.contract_masks import MASK_CHECKS
from clearhead.operators.contract_result import Check, ContractResult, NotChecked, attempt
from clearhead.operators.contract_subject import WIDTH, Operator, Subject

__all__ = ["CHECKS", "Check", "Subject", "called", "check_operator", "left_out"]

CHECKS: dict[str, Callable[[Subject], None]] = PLAIN_CHECKS | MASK_CHECKS
"""Every promise by name. A check raises if the subject breaks the promise."""

COMPILED = frozenset({"compile", "mask_compile"})

COMPARED = frozenset(
    {"twin_forward_float64", "twin_forward_float32", "twin_backward", "padding_mask", "causal_mask", "boolean_mask"}
)
"""Checks that mean nothing without another way of computing the same."""


def check_operator(
    operator: Operator,
    *,
    twin: Operator | None = None,
    masks: bool = True,
    square: bool = False,
    compile: bool = True,
    without: Collection[str] = (),
    leading: tuple[int, ...] = (0, 1, 2),
    terms: int = WIDTH,
    words: bool = True,
    backend: str = "eager",
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> ContractResult:
    """Run every check of the contract on an operator, stopping at none.

    operator: a function of q (..., n, d), k (..., m, d), v (..., m, e) and `mask`, which returns o (..., n, e)
    twin: another way of computing the same, slow and obvious; results are compared with it. Without one, the operator
        is compared with itself, one input at a time and in double precision, and what needs a twin is not checked
    masks: whether it takes a mask, boolean and True where a query may look
    square: whether it attends within one sequence only, n = m
    compile: whether to compile it, without a graph break, by the `backend` of torch.compile; clears compiled functions
    without: names of checks to leave out
    leading: how many axes it takes before (n, d)
    terms: length of its longest sum of products, by which rounding errors are allowed to grow
    words: whether it must refuse wrong operands by `ShapeError` and ValueError, as ours do, or by any error
    """
    reasons = {} if twin is not None else dict.fromkeys(COMPARED, "pass twin=, another way of computing the same")
    reasons |= {} if masks else dict.fromkeys(MASK_CHECKS, "it takes no argument called mask")
    reasons = left_out(CHECKS, reasons, without=without, compiled=frozenset() if compile else COMPILED)
    subject = Subject(
        operator=operator,
        twin=alone(operator) if twin is None else twin,
        square=square,
        leading=leading,
        terms=terms,
        words=words,
        backend=backend,
        device=device,
        seed=seed,
    )
    asked = {check: f for check, f in CHECKS.items() if check not in reasons}
    return ContractResult(
        subject=called(operator),
        checks=tuple(attempt(check, lambda f=f: f(subject)) for check, f in asked.items()),  # type: ignore[misc]
        not_checked=tuple(NotChecked(check, reasons[check]) for check in CHECKS if check in reasons),
    )


def left_out(
    checks: Collection[str], reasons: dict[str, str], *, without: Collection[str], compiled: Collection[str]
) -> dict[str, str]:
    """Why each check that is not run is not, with those that the caller leaves out. ValueError for unknown ones."""
    unknown = set(without) - set(checks)
    if unknown:
        raise InputError(f"expected names of checks in `without`, among {', '.join(checks)}; got {sorted(unknown)}")
    return reasons | dict.fromkeys(compiled, "compile=False") | dict.fromkeys(without, "left out by the caller")


def called(attention: object) -> str:
    """The name of a function, of what a partial one is made from, or of an object's class."""
    attention = getattr(attention, "func", attention)
    return str(getattr(attention, "__name__", type(attention).__name__))

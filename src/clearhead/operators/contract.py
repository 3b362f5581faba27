"""The contract of every attention operator, (q, k, v, *, mask) -> o, as checks that can be run on any function.

Our own operators are held to it by the test suite; `check_operator` holds yours to it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from clearhead.operators.contract_checks import PLAIN_CHECKS
from clearhead.operators.contract_masks import MASK_CHECKS
from clearhead.operators.contract_subject import WIDTH, Operator, Subject

__all__ = ["CHECKS", "Check", "Subject", "check_operator"]

CHECKS: dict[str, Callable[[Subject], None]] = PLAIN_CHECKS | MASK_CHECKS
"""Every promise by name. A check raises if the subject breaks the promise."""

COMPILED = frozenset({"compile", "mask_compile"})


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract: whether the operator keeps it, and if not, what was seen."""

    name: str
    passed: bool
    detail: str = ""


def check_operator(
    operator: Operator,
    *,
    twin: Operator,
    masks: bool = True,
    square: bool = False,
    compile: bool = True,
    without: Collection[str] = (),
    leading: tuple[int, ...] = (0, 1, 2),
    terms: int = WIDTH,
    backend: str = "eager",
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> list[Check]:
    """Run every check of the contract on an operator, stopping at none.

    operator: a function of q (..., n, d), k (..., m, d), v (..., m, e) and `mask`, which returns o (..., n, e)
    twin: another way of computing the same, slow and obvious; results are compared with it
    masks: whether it takes a mask, boolean and True where a query may look
    square: whether it attends within one sequence only, n = m
    compile: whether to compile it, without a graph break, by the `backend` of torch.compile; clears compiled functions
    without: names of checks to leave out
    leading: how many axes it takes before (n, d)
    terms: length of its longest sum of products, by which rounding errors are allowed to grow
    """
    unknown = set(without) - CHECKS.keys()
    if unknown:
        raise ValueError(f"expected names of checks in `without`, among {', '.join(CHECKS)}; got {sorted(unknown)}")
    left_out = set(without) | (set() if masks else MASK_CHECKS.keys()) | (set() if compile else COMPILED)
    subject = Subject(
        operator=operator,
        twin=twin,
        square=square,
        leading=leading,
        terms=terms,
        backend=backend,
        device=device,
        seed=seed,
    )
    return [_run(name, check, subject) for name, check in CHECKS.items() if name not in left_out]


def _run(name: str, check: Callable[[Subject], None], subject: Subject) -> Check:
    try:
        check(subject)
    except AssertionError as error:
        return Check(name, passed=False, detail=str(error))
    except Exception as error:  # whatever an operator raises is a finding about it, not an end of the run
        return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")
    return Check(name, passed=True)

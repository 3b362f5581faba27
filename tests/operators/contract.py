"""Running the checks of `clearhead.testing` on an operator, in the session where each check belongs."""

import pytest

from clearhead.testing import OPERATOR_CHECKS, OperatorSubject

UNHOOKED = {"compile", "gradients"}
"""Checks run only without jaxtyping's import hook. torch cannot compile the hook's checks; and finite differences are
some hundred calls of one shape, whose annotations other checks cover. tests/testing/test_operator_checks.py runs them
once with the hook."""


def run_check(check: str, subject: OperatorSubject, *, typechecked: bool) -> None:
    """Run one check of the contract on an operator."""
    if typechecked and check in UNHOOKED:
        pytest.skip("run in the session without the import hook")
    OPERATOR_CHECKS[check](subject)

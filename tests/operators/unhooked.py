"""The checks of the contract that are run where the import hook is off, and only there."""

from clearhead.operators.contract import COMPILED

UNHOOKED = COMPILED | {"gradcheck"}
"""torch cannot compile the checks of annotations; and finite differences are some hundred calls of one shape, whose
annotations the other checks of the same operator have checked. `tests/operators/test_contract.py` takes them once."""

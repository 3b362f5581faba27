"""The contract that every attention operator and module must meet, as checks that run on any attention.

`check_attention` runs all of them and prints the result. The test suite runs the same checks on Clearhead's attention.
"""

from clearhead.testing.check import Check, ContractResult, NotChecked, check_attention
from clearhead.testing.module_checks import MODULE_CHECKS
from clearhead.testing.modules import ModuleSubject
from clearhead.testing.operator_checks import OPERATOR_CHECKS
from clearhead.testing.operators import OperatorSubject
from clearhead.testing.subject import require, require_close

__all__ = [
    "MODULE_CHECKS",
    "OPERATOR_CHECKS",
    "Check",
    "ContractResult",
    "ModuleSubject",
    "NotChecked",
    "OperatorSubject",
    "check_attention",
    "require",
    "require_close",
]

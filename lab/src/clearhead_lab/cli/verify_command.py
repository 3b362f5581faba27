"""`clearhead verify`: check every theorem and print the residuals."""

import json
from collections.abc import Sequence

from clearhead.cli.console import ProgressBar, printing
from clearhead.report.wording import clean
from clearhead_lab.theorems.table import all_theorems, print_theorems, theorems_as_json
from clearhead_lab.theorems.theorem import TheoremCheck


def check_theorems(bar: ProgressBar) -> list[TheoremCheck]:
    """Check the theorems of all theories."""
    return all_theorems(lambda theory, done, total: bar.update(f"checking theorems: {clean(theory)}", done, total))


def print_checks(checks: Sequence[TheoremCheck], *, as_json: bool) -> bool:
    """Print the checks. Return whether all that could be made hold."""
    with printing() as console:
        if as_json:
            print(json.dumps(theorems_as_json(checks), indent=1, allow_nan=False), file=console.file)
        else:
            print_theorems(checks, console)
    return all(check.holds or bool(check.missing) for check in checks)

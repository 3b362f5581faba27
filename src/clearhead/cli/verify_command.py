"""`clearhead verify`: check every proved statement and print the residuals."""

import json as json_format

from clearhead.cli.console import printing
from clearhead.report.json_file import theorems_as_json
from clearhead.report.theorem_table import print_theorems
from clearhead.theories.catalogue import all_theorems

__all__ = ["verify_command"]


def verify_command(*, json: bool) -> bool:
    """Print the theorems; whether all that could be checked hold."""
    theorems = all_theorems()
    with printing() as console:
        if json:
            print(json_format.dumps(theorems_as_json(theorems), indent=1, allow_nan=False), file=console.file)
        else:
            print_theorems(theorems, console)
    return all(theorem.holds or bool(theorem.missing) for theorem in theorems)

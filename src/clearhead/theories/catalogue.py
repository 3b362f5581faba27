"""The theories by their keys, which are their names on the command line."""

from collections.abc import Sequence

from clearhead.errors import InputError
from clearhead.theories import coding_rate, kernel_pca, max_margin, symmetry
from clearhead.theories.theory import TheoremCheck, Theory

__all__ = ["THEORIES", "all_theorems", "find_theories"]

THEORIES: dict[str, Theory] = {
    theory.key: theory for theory in (kernel_pca.THEORY, max_margin.THEORY, coding_rate.THEORY, symmetry.THEORY)
}


def find_theories(names: Sequence[str]) -> list[Theory]:
    """Return the theories with these keys, or all theories if there are no keys."""
    unknown = [name for name in names if name not in THEORIES]
    if unknown:
        raise InputError(f"no theory is called {', '.join(unknown)}; there is {', '.join(THEORIES)}")
    return [THEORIES[name] for name in dict.fromkeys(names)] or list(THEORIES.values())


def all_theorems() -> list[TheoremCheck]:
    """Run the theorem checks of every theory."""
    return [check for theory in THEORIES.values() for check in theory.theorems()]

"""The theorem checks of every theory."""

from collections.abc import Callable, Mapping, Sequence

from clearhead.theories import coding_rate, kernel_pca, max_margin, symmetry
from clearhead_lab.theorems.coding_rate import theorems as of_coding_rate
from clearhead_lab.theorems.kernel_pca import theorems as of_kernel_pca
from clearhead_lab.theorems.max_margin import theorems as of_max_margin
from clearhead_lab.theorems.symmetry import theorems as of_symmetry
from clearhead_lab.theorems.theorem import TheoremCheck

__all__ = ["THEOREMS", "all_theorems"]

THEOREMS: Mapping[str, Callable[[], Sequence[TheoremCheck]]] = {
    kernel_pca.THEORY.title: of_kernel_pca,
    max_margin.THEORY.title: of_max_margin,
    coding_rate.THEORY.title: of_coding_rate,
    symmetry.THEORY.title: of_symmetry,
}
"""The checks by the title of their theory."""


def all_theorems(progress: Callable[[str, int, int], None] = lambda theory, done, total: None) -> list[TheoremCheck]:
    """Check every proved statement of every theory.

    progress: called before each theory with its title, and with the numbers of theories done and in all
    """
    checks: list[TheoremCheck] = []
    for done, (title, theorems) in enumerate(THEOREMS.items()):
        progress(title, done, len(THEOREMS))
        checks += theorems()
    return checks

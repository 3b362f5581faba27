"""A planted bug that the tests must find."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A file of the package, a text that occurs in it once, its wrong replacement, and tests that must then fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]

"""A bug that the tests must find."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A file of the package, a text that stands in it once, what it becomes, and the tests that must then fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]

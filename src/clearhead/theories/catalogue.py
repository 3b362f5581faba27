"""The installed theories: Clearhead's own, and those that other packages list in the group `clearhead.theories`."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.errors import InputError
from clearhead.registry import Loaded, Registry
from clearhead.theories.theory import Theory


def _expected(key: str, unit: Any) -> str:
    return "" if isinstance(unit, Theory) and unit.key == key else f"a Theory with the key {key}"


THEORIES = Registry[Theory](
    "clearhead.theories",
    "theory",
    _expected,
    {
        "kernel-pca": "clearhead.theories.kernel_pca:THEORY",
        "max-margin": "clearhead.theories.max_margin:THEORY",
        "coding-rate": "clearhead.theories.coding_rate:THEORY",
        "symmetry": "clearhead.theories.symmetry:THEORY",
        "attention-sinks": "clearhead.theories.attention_sinks:THEORY",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TheorySource:
    """A loaded theory and the package that provides it."""

    key: str
    title: str
    package: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTheories:
    """Theories, their sources, and one line for each that could not be loaded."""

    theories: tuple[Theory, ...]
    sources: tuple[TheorySource, ...]
    failures: tuple[str, ...] = ()


def load_theories(keys: Sequence[str] = ()) -> LoadedTheories:
    """Load the theories with these keys; all installed theories by default.

    Raise InputError for a named theory that is not installed or cannot be loaded. Without names, one that cannot be
    loaded is left out and listed in `failures`.
    """
    unknown = [key for key in keys if key not in THEORIES.names()]
    if unknown:
        raise InputError(f"no theory is called {', '.join(unknown)}; installed: {', '.join(THEORIES.names())}")
    loaded = Loaded(units={key: THEORIES.get(key) for key in dict.fromkeys(keys)}) if keys else THEORIES.all()
    return LoadedTheories(
        theories=tuple(loaded.units.values()),
        sources=tuple(
            TheorySource(key=key, title=theory.title, **dataclasses.asdict(THEORIES.source(key)))
            for key, theory in loaded.units.items()
        ),
        failures=loaded.failures,
    )


def key_of(theory: Any) -> str:
    """Return the key of a theory. One that is not installed is registered for this process.

    It replaces one that the process registered before, as where the cell of a notebook runs again. Raise InputError if
    a package has another theory of that key.
    """
    if not isinstance(theory, Theory):
        raise InputError(f"expected the key of a theory, or a Theory; got {theory!r}")
    if theory.key not in THEORIES or THEORIES.get(theory.key) is not theory:
        THEORIES.register(theory.key, theory, again=True)
    return theory.key


def find_theories(keys: Sequence[str] = ()) -> list[Theory]:
    """Return the theories with these keys; all installed theories by default."""
    return list(load_theories(keys).theories)

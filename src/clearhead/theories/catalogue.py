"""The installed theories, found through the entry-point group `clearhead.theories` and imported when they are used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from clearhead.errors import InputError
from clearhead.theories.theory import TheoremCheck, Theory

__all__ = ["LoadedTheories", "TheorySource", "all_theorems", "find_theories", "load_theories"]

GROUP = "clearhead.theories"
OWN_PACKAGE = "clearhead"
ORDER = ("kernel-pca", "max-margin", "coding-rate", "symmetry", "attention-sinks")
"""The order of Clearhead's own theories; those of other packages follow by key."""


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
    installed, failures = _installed()
    if not installed:
        raise InputError("no theories are installed; Clearhead's own come with its package: pip install clearhead")
    unknown = [key for key in keys if key not in installed]
    if unknown:
        raise InputError(f"no theory is called {', '.join(unknown)}; installed theories: {', '.join(installed)}")
    theories, sources = [], []
    for key in dict.fromkeys(keys) or installed:
        entry = installed[key]
        try:
            theory = _load(entry)
        except InputError as error:
            if keys:
                raise
            failures.append(str(error))
            continue
        theories.append(theory)
        sources.append(TheorySource(key=key, title=theory.title, package=_package(entry), version=_version(entry)))
    return LoadedTheories(theories=tuple(theories), sources=tuple(sources), failures=tuple(failures))


def find_theories(keys: Sequence[str] = ()) -> list[Theory]:
    """Return the theories with these keys; all installed theories by default."""
    return list(load_theories(keys).theories)


def all_theorems(progress: Callable[[str, int, int], None] = lambda theory, done, total: None) -> list[TheoremCheck]:
    """Check every proved statement of every theory.

    progress: called before each theory with its title, and with the numbers of theories done and in all
    """
    theories = find_theories()
    checks: list[TheoremCheck] = []
    for done, theory in enumerate(theories):
        progress(theory.title, done, len(theories))
        checks += theory.theorems()
    return checks


def _installed() -> tuple[dict[str, EntryPoint], list[str]]:
    """Return the entry points by key, Clearhead's own first, and one line for each key that two packages claim."""
    rank = {key: number for number, key in enumerate(ORDER)}
    entries = sorted(
        entry_points(group=GROUP),
        key=lambda e: (_package(e) != OWN_PACKAGE, rank.get(e.name, len(rank)), e.name, _package(e)),
    )
    installed: dict[str, EntryPoint] = {}
    failures = []
    for entry in entries:
        other = installed.setdefault(entry.name, entry)
        if other.value != entry.value:
            failures.append(
                f"the theory {entry.name} of {_package(entry)} is not used: {_package(other)} has one of that name"
            )
    return installed, failures


def _load(entry: EntryPoint) -> Theory:
    failure = f"the theory {entry.name} of {_package(entry)} cannot be loaded"
    try:
        theory = entry.load()
    except Exception as error:
        cause = " ".join(str(error).split())
        raise InputError(f"{failure}: {type(error).__name__}: {cause}; reinstall or uninstall that package") from error
    if not isinstance(theory, Theory) or theory.key != entry.name:
        raise InputError(f"{failure}: {entry.value} is not a Theory with the key {entry.name}")
    return theory


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _version(entry: EntryPoint) -> str:
    return entry.dist.version if entry.dist is not None else ""

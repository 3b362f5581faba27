"""Registries: lists of units, such as theories, that other packages extend by an entry point.

Another package lists its unit in its pyproject.toml, one line of `name = "module:object"` under
`[project.entry-points."<group>"]`. Nothing of a unit is imported before it is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any, Generic, TypeVar

from clearhead.errors import InputError

__all__ = ["Loaded", "Registry", "Source"]

Unit = TypeVar("Unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The package that a unit comes from, and its version; both "" for a unit that `register` added."""

    package: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[Unit]):
    """Units by name, and one line for each that cannot be used."""

    units: Mapping[str, Unit]
    failures: tuple[str, ...] = ()


class Registry(Generic[Unit]):
    """The units of one kind: those of the package itself in their order, then those of other packages by name.

    group: the entry-point group that other packages add to; noun: what one unit is called in messages
    expected: given a name and an object, what the object should have been; "" if it is a unit of that name
    own: the package's own units, "module:object" by name; no other package can replace them
    package: the distribution that the own units come from
    """

    def __init__(
        self,
        group: str,
        noun: str,
        expected: Callable[[str, Any], str],
        own: Mapping[str, str] | None = None,
        *,
        package: str = "clearhead",
    ) -> None:
        self._group, self._noun, self._expected, self._package = group, noun, expected, package
        self._own = {name: EntryPoint(name, value, group) for name, value in (own or {}).items()}
        self._registered: dict[str, Unit] = {}

    def register(self, name: str, unit: Unit) -> None:
        """Add a unit in this process. Raise InputError if it is none, or if there is one of that name."""
        if expected := self._expected(name, unit):
            raise InputError(f"{unit!r} cannot be the {self._noun} {name}: it is not {expected}")
        if name in self.names():
            raise InputError(f"there is a {self._noun} {name} already; choose another name")
        self._registered[name] = unit

    def names(self) -> list[str]:
        """Return the names of all units. Nothing is imported."""
        return [*self._entries()[0], *self._registered]

    def get(self, name: str) -> Unit:
        """Return one unit. Raise InputError if there is none of that name, or if it cannot be loaded."""
        if name in self._registered:
            return self._registered[name]
        entries = self._entries()[0]
        if name not in entries:
            known = ", ".join([*entries, *self._registered]) or "none"
            raise InputError(f"no {self._noun} is called {name}; installed: {known}")
        return self._load(entries[name])

    def all(self) -> Loaded[Unit]:
        """Load every unit. Those that cannot be loaded, or whose name is taken, are left out and reported."""
        entries, failures = self._entries()
        units = {}
        for name, entry in entries.items():
            try:
                units[name] = self._load(entry)
            except InputError as error:
                failures.append(str(error))
        return Loaded(units=units | self._registered, failures=tuple(failures))

    def source(self, name: str) -> Source:
        """Return the package of a unit."""
        entry = self._entries()[0].get(name)
        if entry is None:
            return Source(package="", version="")
        if name not in self._own:
            return Source(package=_package(entry), version="" if entry.dist is None else entry.dist.version)
        try:
            return Source(package=self._package, version=version(self._package))
        except PackageNotFoundError:  # its sources are on the path
            return Source(package=self._package, version="")

    def _entries(self) -> tuple[dict[str, EntryPoint], list[str]]:
        """Return the entry points by name, own ones first, and one line for each name that two packages claim."""
        entries, failures = dict(self._own), []
        for entry in sorted(entry_points(group=self._group), key=lambda entry: (entry.name, _package(entry))):
            first = entries.setdefault(entry.name, entry)
            if first.value != entry.value:
                other = self._package if entry.name in self._own else _package(first)
                failures.append(
                    f"the {self._noun} {entry.name} of {_package(entry)} is not used: {other} has one of that name"
                )
        return entries, failures

    def _load(self, entry: EntryPoint) -> Unit:
        package = self._package if entry.name in self._own else _package(entry)
        failure = f"the {self._noun} {entry.name} of {package} cannot be loaded"
        try:
            unit: Unit = entry.load()
        except Exception as error:
            cause = " ".join(str(error).split())
            raise InputError(
                f"{failure}: {type(error).__name__}: {cause}; reinstall or uninstall that package"
            ) from error
        if expected := self._expected(entry.name, unit):
            raise InputError(f"{failure}: {entry.value} is not {expected}")
        return unit


def _package(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name

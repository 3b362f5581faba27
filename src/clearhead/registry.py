"""Registries: lists of units, such as theories, that other packages extend by an entry point.

Another package lists its unit in its pyproject.toml, one line of `name = "module:object"` under
`[project.entry-points."<group>"]`. Nothing of a unit is imported before it is asked for.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any, Generic, TypeVar

from clearhead.errors import InputError

Unit = TypeVar("Unit")


class PackageWarning(UserWarning):
    """A unit of another package that is not used."""


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
    """The units of one kind: those of the package itself in their order, and those of other packages by name.

    group: the entry-point group that other packages add to; noun: what one unit is called in messages
    expected: given a name and an object, what the object should have been; "" if it is a unit of that name
    own: the package's own units, "module:object" by name; no other package can replace them
    package: the distribution that the own units come from
    others_first: whether the units of other packages come before the own ones, otherwise after them
    """

    def __init__(
        self,
        group: str,
        noun: str,
        expected: Callable[[str, Any], str],
        own: Mapping[str, str] | None = None,
        *,
        package: str = "clearhead",
        others_first: bool = False,
    ) -> None:
        self._group, self._noun, self._expected, self._package = group, noun, expected, package
        self._others_first = others_first
        self._own = {name: EntryPoint(name, value, group) for name, value in (own or {}).items()}
        self._registered: dict[str, Unit] = {}

    def register(self, name: str, unit: Unit, *, again: bool = False) -> None:
        """Add a unit in this process. Raise InputError if it is none, or if there is one of that name.

        again: whether it may replace one that this process added
        """
        if expected := self._expected(name, unit):
            raise InputError(f"{unit!r} cannot be the {self._noun} {name}: it is not {expected}")
        if name in (self._entries()[0] if again else self.names()):
            raise InputError(f"there is a {self._noun} {name} already; choose another name")
        self._registered[name] = unit

    def __contains__(self, name: object) -> bool:
        """Return whether there is a unit of that name. Nothing is imported."""
        return name in self._registered or name in self._entries()[0]

    def is_own(self, name: str) -> bool:
        """Return whether a unit is the package's own."""
        return name in self._own

    def names(self) -> list[str]:
        """Return the names of all units. Nothing is imported."""
        return self._ordered(self._entries()[0], self._registered)

    def get(self, name: str) -> Unit:
        """Return one unit. Raise InputError if there is none of that name, or if it cannot be loaded."""
        if name in self._registered:
            return self._registered[name]
        entries, taken = self._entries()
        if name not in entries:
            raise InputError(f"no {self._noun} is called {name}; installed: {', '.join(self.names()) or 'none'}")
        _warn(line for other, line in taken if other == name)
        return self._load(entries[name])

    def all(self) -> Loaded[Unit]:
        """Load every unit. Those that cannot be loaded, or whose name is taken, are left out and reported."""
        entries, taken = self._entries()
        failures = [line for _, line in taken]
        units = dict(self._registered)
        for name, entry in entries.items():
            try:
                units[name] = self._load(entry)
            except InputError as error:
                failures.append(str(error))
        names = self._ordered(entries, self._registered)
        return Loaded(units={name: units[name] for name in names if name in units}, failures=tuple(failures))

    def usable(self) -> Mapping[str, Unit]:
        """Load every unit, with a `PackageWarning` for each that is left out."""
        loaded = self.all()
        _warn(loaded.failures)
        return loaded.units

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

    def _ordered(self, *names: Mapping[str, Any]) -> list[str]:
        """Return all names, the own ones first or last."""
        return sorted(
            (name for part in names for name in part), key=lambda name: (name in self._own) == self._others_first
        )

    def _entries(self) -> tuple[dict[str, EntryPoint], list[tuple[str, str]]]:
        """Return the entry points by name, own ones first, and every name that two packages claim, with a line."""
        entries, taken = dict(self._own), []
        for entry in sorted(installed(self._group, tuple(sys.path)), key=lambda entry: (entry.name, _package(entry))):
            first = entries.setdefault(entry.name, entry)
            if first.value != entry.value:
                package = self._package if entry.name in self._own else _package(first)
                line = f"the {self._noun} {entry.name} of {_package(entry)} is not used: {package} has one of that name"
                taken.append((entry.name, line))
        return entries, taken

    def _load(self, entry: EntryPoint) -> Unit:
        package = self._package if entry.name in self._own else _package(entry)
        failure = f"the {self._noun} {entry.name} of {package} cannot be loaded"
        try:
            unit: Unit = entry.load()
        except Exception as error:
            cause = " ".join(str(error).split())
            raise InputError(
                f"{failure}: {type(error).__name__}: {cause}; correct, reinstall or uninstall that package"
            ) from error
        if expected := self._expected(entry.name, unit):
            raise InputError(f"{failure}: {entry.value} is not {expected}")
        return unit


@cache
def installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. Reading the metadata of all packages takes some milliseconds."""
    return tuple(entry_points(group=group))


_WARNED: dict[Any, Any] = {}
"""What Python has shown of these warnings: each is shown once, wherever the unit is asked for."""


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        warnings.warn_explicit(line, PackageWarning, "<clearhead>", 1, registry=_WARNED)


def _package(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name

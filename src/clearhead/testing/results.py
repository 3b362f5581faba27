"""The result of running the contract: checks that passed or failed, and checks not run, with the reason."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

__all__ = ["Check", "ContractResult", "NotChecked", "run_check"]

_DETAIL_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the contract: its name, its outcome and, if it failed, what went wrong."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotChecked:
    """One check of the contract that was not run, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    """All checks of the contract, each either in `checks` or in `not_checked`."""

    subject: str
    """Name of the attention that was checked."""
    checks: tuple[Check, ...]
    not_checked: tuple[NotChecked, ...] = ()
    observed: tuple[str, ...] = ()
    """Facts about the attention that are neither right nor wrong."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def passed(self) -> bool:
        """True if at least one check ran and none failed. Checks that did not run do not count."""
        return bool(self.checks) and not self.failed

    def __str__(self) -> str:
        failed = self.failed
        lines = [f"{self.subject}: {len(failed)} of {len(self.checks)} checks fail"]
        width = max((len(check.name) for check in failed), default=0)
        lines += [f"  {check.name:{width}s}  {_first_line(check.detail)}" for check in failed]
        passed = [check.name for check in self.checks if check.passed]
        lines.append(f"passed: {', '.join(passed) or 'none'}")
        reasons = dict.fromkeys(skipped.reason for skipped in self.not_checked)
        for reason in reasons:
            names = ", ".join(skipped.name for skipped in self.not_checked if skipped.reason == reason)
            lines.append(f"not checked: {names} ({reason})")
        lines += [f"observed: {fact}" for fact in self.observed]
        return "\n".join(lines)

    def in_columns(self, columns: int) -> str:
        """Return the text wrapped at `columns` characters, with continuation lines indented."""
        wrap = partial(textwrap.wrap, width=max(columns, 20), subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(wrapped for line in str(self).splitlines() for wrapped in wrap(line))


def _first_line(detail: str) -> str:
    """Return the first line of a detail, cut at 100 characters. `Check.detail` holds all of it."""
    first = detail.strip().partition("\n")[0]
    return first if len(first) <= _DETAIL_WIDTH else first[: _DETAIL_WIDTH - 3] + "..."


def run_check(name: str, check: Callable[[], None]) -> Check:
    """Run one check. Any exception it raises is a failed check."""
    try:
        check()
    except AssertionError as error:
        return Check(name, passed=False, detail=str(error))
    except Exception as error:
        return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")
    return Check(name, passed=True)

"""What a run of a contract found: promises kept, promises broken, and promises not checked, with the reason."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

__all__ = ["Check", "ContractResult", "NotChecked", "attempt"]

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract: whether the operator keeps it, and if not, what was seen."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotChecked:
    """One promise of the contract that nobody looked at, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    """Every promise of the contract, each in one of the lists. As text: what fails, and a line each for the rest."""

    subject: str
    """What was checked, by its name."""
    checks: tuple[Check, ...]
    not_checked: tuple[NotChecked, ...] = ()
    observed: tuple[str, ...] = ()
    """What was seen beside, and is neither right nor wrong."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The promises that are broken."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def passed(self) -> bool:
        """Whether something was checked, and no promise is broken. What was not checked is not counted."""
        return bool(self.checks) and not self.failed

    def __str__(self) -> str:
        failed = self.failed
        lines = [f"{self.subject}: {len(failed)} of {len(self.checks)} checks fail"]
        wide = max((len(check.name) for check in failed), default=0)
        lines += [f"  {check.name:{wide}s}  {_one_line(check.detail)}" for check in failed]
        kept = [check.name for check in self.checks if check.passed]
        lines.append(f"passed: {', '.join(kept) or 'none'}")
        reasons = dict.fromkeys(unchecked.reason for unchecked in self.not_checked)
        for reason in reasons:
            names = ", ".join(unchecked.name for unchecked in self.not_checked if unchecked.reason == reason)
            lines.append(f"not checked: {names} ({reason})")
        lines += [f"seen: {fact}" for fact in self.observed]
        return "\n".join(lines)

    def in_columns(self, columns: int) -> str:
        """The text for a screen so wide: long lines go on below, indented."""
        fold = partial(textwrap.wrap, width=max(columns, 20), subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(part for line in str(self).splitlines() for part in fold(line))


def _one_line(detail: str) -> str:
    """The first line of what was seen, cut where it is long; the check itself holds all of it."""
    first = detail.strip().partition("\n")[0]
    return first if len(first) <= _WIDTH else first[: _WIDTH - 3] + "..."


def attempt(name: str, check: Callable[[], None]) -> Check:
    """Run one check. Whatever it raises is a finding about its subject, not an end of the run."""
    try:
        check()
    except AssertionError as error:
        return Check(name, passed=False, detail=str(error))
    except Exception as error:
        return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")
    return Check(name, passed=True)

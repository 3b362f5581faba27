"""Two lists of findings of the same audit, as findings.json holds them, compared to the last bit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How many findings there are, how many differ, how many of these in their verdict, and the largest difference."""

    findings: int
    different: int
    verdicts: int = 0
    largest: str = ""

    @property
    def identical(self) -> bool:
        """Whether every number and word is the same."""
        return self.different == 0


def compare_findings(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Repetition:
    """Compare findings by claim, layer and head. A finding that only one list has differs.

    The largest difference is relative to the larger of the two numbers; values come before p-values and controls.
    """
    old, new = ({_key(finding): finding for finding in findings} for findings in (before, after))
    keys = list(dict.fromkeys((*old, *new)))
    different = [key for key in keys if old.get(key) != new.get(key)]
    both = [key for key in different if key in old and key in new]
    changes = [(*change, key) for key in both for change in _changes(old[key], new[key])]
    if changes:
        _, _, text, key = max(changes, key=lambda change: change[:2])
        largest = f"{_name(key)}: {text}"
    elif different:
        largest = f"{_name(different[0])}: only {'before' if different[0] in old else 'now'}"
    else:
        largest = ""
    return Repetition(
        findings=len(keys),
        different=len(different),
        verdicts=sum(old[key]["verdict"] != new[key]["verdict"] for key in both),
        largest=largest,
    )


def _key(finding: Mapping[str, Any]) -> tuple[str, str, int, int]:
    return finding["theory"], finding["statistic"], finding["layer"], finding["head"]


def _name(key: tuple[str, str, int, int]) -> str:
    return "{}, {}, layer {}, head {}".format(*key)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[bool, float, str]]:
    """Yield for every field that differs: whether it is the value, its relative difference, and both in words."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name), new.get(name)
        if a != b:
            yield name == "value", _relative(a, b), f"{name} {a!r} before, {b!r} now"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value


def _relative(a: Any, b: Any) -> float:
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))

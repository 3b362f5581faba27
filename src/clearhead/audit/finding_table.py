"""Findings that can be narrowed down by layer, head and statistic, and turned into a table."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clearhead.audit.findings import Finding
from clearhead.errors import InputError
from clearhead.rendering import render

__all__ = ["FindingTable"]

_TEXT = (
    "theory", "statistic", "role", "module", "closest_control", "reason", "verdict", "no_evidence"
)  # fmt: skip
_INTEGERS = ("layer", "head", "inputs", "skipped")
"""Columns of the table by type; the others are numbers in double precision."""


@dataclass(frozen=True, slots=True)
class FindingTable:
    """Findings in the order of the record."""

    findings: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def layer(self, number: int) -> "FindingTable":
        """Return the findings of one layer, by its number in forward-pass order."""
        return self._narrowed("layer", number, [f.layer for f in self.findings])

    def head(self, number: int) -> "FindingTable":
        """Return the findings of one head of every layer."""
        return self._narrowed("head", number, [f.head for f in self.findings])

    def __getitem__(self, statistic: str) -> "FindingTable":
        """Return the findings of one statistic."""
        return self._narrowed("statistic", statistic, [f.claim.statistic for f in self.findings])

    def _narrowed(self, axis: str, value: object, column: list[Any]) -> "FindingTable":
        if value not in column:
            known = ", ".join(str(entry) for entry in dict.fromkeys(column)) or "none"
            raise InputError(f"there are no findings of {axis} {value!r}; there are {known}")
        return FindingTable(tuple(f for f, entry in zip(self.findings, column, strict=True) if entry == value))

    def __repr__(self) -> str:
        theories = ", ".join(dict.fromkeys(f.claim.theory for f in self.findings))
        return f"FindingTable(findings={len(self)}, theories={theories!r})"

    def _repr_html_(self) -> str:
        """Return the findings as a table for a notebook."""
        return str(render(self, "html"))

    def __str__(self) -> str:
        """Return one line per finding."""
        labels = (f"{f.claim.theory}, {f.claim.statistic}, layer {f.layer}, head {f.head}" for f in self.findings)
        return "\n".join(
            f"{label}: {f.value:.3g} ({f.verdict})" for label, f in zip(labels, self.findings, strict=True)
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain values per finding."""
        return [
            {
                "theory": f.claim.theory,
                "statistic": f.claim.statistic,
                "role": str(f.claim.role),
                "layer": f.layer,
                "module": f.name,
                "head": f.head,
                "value": f.value,
                "low": f.interval.low,
                "high": f.interval.high,
                "predicted": f.predicted,
                "closest_control": f.closest_control.name if f.closest_control.draws else None,
                "control_value": f.closest_control.value,
                "p_value": f.p_value,
                "adjusted_p_value": f.adjusted_p_value,
                "agreement": f.agreement,
                "inputs": f.inputs,
                "skipped": f.skipped,
                "reason": f.reason,
                "verdict": str(f.verdict),
                "no_evidence": None if f.no_evidence is None else str(f.no_evidence),
                "borderline": f.borderline,
                "detectable": f.detectable,
            }
            for f in self.findings
        ]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per finding."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas needs pandas; install it with: pip install 'clearhead[tables]'") from None
        return pandas.DataFrame(self.rows())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file with one row per finding and the columns of `to_pandas`."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InputError("to_parquet needs pyarrow; install it with: pip install 'clearhead[tables]'") from None
        rows = [
            {name: _as_utf8(value) if isinstance(value, str) else value for name, value in row.items()}
            for row in self.rows()
        ]
        types = {
            **dict.fromkeys(_TEXT, pyarrow.string()),
            **dict.fromkeys(_INTEGERS, pyarrow.int64()),
            "borderline": pyarrow.bool_(),
        }
        columns = rows[0] if rows else [*_TEXT, *_INTEGERS]
        schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in columns])
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), os.fspath(path))


def _as_utf8(text: str) -> str:
    """Replace lone surrogates, which names from outside may hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()

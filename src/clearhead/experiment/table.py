"""Audits of several models as one table in Markdown, generic over what was measured: one column for each statistic."""

import math
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from clearhead import __version__
from clearhead.experiment.measuring import Measured
from clearhead.findings import Verdict
from clearhead.report.wording import short

__all__ = ["as_facts", "as_markdown"]

PACKAGES = ("torch", "transformers", "numpy", "scipy")
ABOVE = (str(Verdict.SUPPORTED), str(Verdict.ABOVE))


def as_markdown(measured: Sequence[Measured], *, command: str, seed: int) -> str:
    """The caption, the first statistic with its verdicts, the other statistics beside their chance, and the models."""
    shown = [row for row in measured if row.record is not None]
    missing = [row for row in measured if row.record is None]
    statistics = _statistics(shown)
    parts = [f"# Kernel PCA on trained transformers\n\n{_caption(shown, command=command, seed=seed)}"]
    if statistics:
        parts += [_first_table(shown, statistics[0])]
    if len(statistics) > 1:
        parts += ["Medians over heads [95 % CI], and the median chance level.", _other_table(shown, statistics[1:])]
    parts += ["## Models", _model_table(shown)]
    if missing:
        parts += ["## Not measured", *(f"- {row.subject.name}: {row.reason}" for row in missing)]
    return "\n\n".join(parts) + "\n"


def as_facts(measured: Sequence[Measured], *, command: str, seed: int) -> dict[str, Any]:
    """The same as plain values, with every summary in full."""
    return {
        "format": "clearhead-model-table/1",
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": _versions(),
        "models": [
            {
                "name": row.subject.name,
                "architecture": row.subject.architecture,
                "licence": row.subject.licence,
                "command": row.subject.command,
                "source": row.source,
                "reason": row.reason,
                **({} if row.record is None else _facts_of(row.record)),
            }
            for row in measured
        ],
    }


def _facts_of(record: dict[str, Any]) -> dict[str, Any]:
    names = ("inputs", "tokens", "seed", "version", "created", "summaries", "fidelity")
    return {name: record[name] for name in names} | {"seconds": record["timing"]["total"]}


def _versions() -> dict[str, str]:
    found = {"clearhead": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _caption(shown: Sequence[Measured], *, command: str, seed: int) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
    controls = sorted({_control(row.record) for row in shown if row.record is not None} - {""})
    return (
        f"Made by `{command}` on {datetime.now(UTC).date().isoformat()}; seed {seed}; {versions}. "
        f"Chance is the median over heads of each head's own control ({'; '.join(controls) or 'none'}). "
        "A verdict needs a p-value of at most 5 %, adjusted among the heads of one model and statistic; "
        "intervals are distribution-free 95 % intervals of the median over heads."
    )


def _control(record: dict[str, Any]) -> str:
    measured = [finding["chance"] for finding in record["findings"] if finding["inputs"]]
    return f"{measured[0]['control']}, {measured[0]['draws']} draws" if measured else ""


def _statistics(shown: Sequence[Measured]) -> list[str]:
    """The names of the statistics, in the order in which they appear."""
    names = [s["claim"]["statistic"] for row in shown if row.record is not None for s in row.record["summaries"]]
    return list(dict.fromkeys(names))


def _summary(row: Measured, statistic: str) -> dict[str, Any] | None:
    assert row.record is not None, "only measured models are shown"
    summaries: list[dict[str, Any]] = row.record["summaries"]
    return next((s for s in summaries if s["claim"]["statistic"] == statistic), None)


def _first_table(shown: Sequence[Measured], statistic: str) -> str:
    head = ["model", "layers x heads", "inputs", "tokens", f"{statistic}, median [95 % CI]", "chance",
            "heads above / at / below chance", "verdict"]  # fmt: skip
    rows = []
    for row in shown:
        record, summary = row.record, _summary(row, statistic)
        assert record is not None, "only measured models are shown"
        layers = record["fidelity"]["layers"]
        counts = summary["verdicts"] if summary else {}
        above = sum(counts.get(verdict, 0) for verdict in ABOVE)
        rows.append([
            row.subject.name,
            f"{len(layers)} x {' or '.join(str(n) for n in sorted({layer['heads'] for layer in layers}))}",
            str(record["inputs"]),
            f"{record['tokens']:,}" if record["tokens"] else "-",
            _with_interval(summary),
            short(_value(summary["chance"])) if summary else "-",
            f"{above} / {counts.get(str(Verdict.CHANCE), 0)} / {counts.get(str(Verdict.BELOW), 0)}",
            _verdict(record, summary),
        ])  # fmt: skip
    return _markdown(head, rows)


def _verdict(record: dict[str, Any], summary: dict[str, Any] | None) -> str:
    """The verdict of most heads, with the reason where nothing could be measured."""
    if summary is None:
        return str(Verdict.NOT_APPLICABLE)
    if summary["measured"]:
        return str(summary["verdict"])
    found = [f for f in record["findings"] if f["claim"]["statistic"] == summary["claim"]["statistic"] and f["reason"]]
    return f"{summary['verdict']}: {found[0]['reason']}" if found else str(summary["verdict"])


def _other_table(shown: Sequence[Measured], statistics: Sequence[str]) -> str:
    head = ["model", *(name for statistic in statistics for name in (statistic, "chance"))]
    rows = []
    for row in shown:
        cells = [row.subject.name]
        for statistic in statistics:
            summary = _summary(row, statistic)
            cells += [_with_interval(summary), short(_value(summary["chance"])) if summary else "-"]
        rows.append(cells)
    return _markdown(head, rows)


def _model_table(shown: Sequence[Measured]) -> str:
    head = ["model", "architecture", "licence", "how to get it", "inputs"]
    return _markdown(
        head,
        [
            [row.subject.name, row.subject.architecture, row.subject.licence, f"`{row.subject.command}`", row.source]
            for row in shown
        ],
    )


def _with_interval(summary: dict[str, Any] | None) -> str:
    if summary is None or summary["median"] is None:
        return "-"
    low, high = _value(summary["interval"]["low"]), _value(summary["interval"]["high"])
    ends = "" if math.isnan(low) else f" [{short(low)}, {short(high)}]"
    return f"{short(_value(summary['median']))}{ends}"


def _value(stored: float | None) -> float:
    return math.nan if stored is None else stored


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

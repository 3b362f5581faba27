"""Audits of several models as one table in Markdown, generic over the claims that were measured."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from clearhead.audit.findings import Verdict
from clearhead.experiments.experiment import installed_versions
from clearhead.experiments.markdown import markdown_table
from clearhead.experiments.models.measuring import Measured
from clearhead.report.wording import short
from clearhead.theories.kernel_pca import controls
from clearhead.theories.theory import Role

__all__ = ["as_facts", "as_markdown"]

PACKAGES = ("torch", "transformers", "numpy", "scipy")
RANDOM_VALUES = controls.RANDOM_VALUES.name
TOWARD_THEORY = (str(Verdict.SUPPORTED), str(Verdict.PARTLY_SUPPORTED))


def as_markdown(measured: Sequence[Measured], *, title: str, command: str, seed: int) -> str:
    """The caption, the primary statistic beside every control, the other statistics, and the models."""
    shown = [row for row in measured if row.record is not None]
    missing = [row for row in measured if row.record is None]
    parts = [f"# {title}\n\n{_caption(command=command, seed=seed)}"]
    for statistic in _statistics(shown, Role.PRIMARY):
        parts += [f"## {statistic[:1].upper()}{statistic[1:]}", _primary_table(shown, statistic)]
    for role, title, beside in (
        (Role.SECONDARY, "Other consequences of the theory", "(closest control; predicted)"),
        (Role.PUBLISHED, "As published", "(random values)"),
    ):
        statistics = _statistics(shown, role)
        if statistics:
            parts += [f"## {title}", f"Medians over heads {beside}.", _table_by_statistic(shown, statistics, role)]
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
        "versions": installed_versions(*PACKAGES),
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


def _caption(*, command: str, seed: int) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions(*PACKAGES).items())
    return (
        f"Made by `{command}` on {datetime.now(UTC).date().isoformat()}; seed {seed}; {versions}. "
        "Every number is a median over the heads of a model. A head is above or below chance if it lies so beside "
        "every control, with a p-value of at most 5 %, adjusted among the heads of one model and statistic; intervals "
        "are distribution-free 95 % intervals of the median over heads."
    )


def _statistics(shown: Sequence[Measured], role: Role) -> list[str]:
    """The names of the statistics of a role, in the order in which they appear."""
    claims = [claim for row in shown if row.record is not None for claim in row.record["claims"]]
    return list(dict.fromkeys(claim["statistic"] for claim in claims if claim["role"] == str(role)))


def _summary(row: Measured, statistic: str) -> dict[str, Any] | None:
    assert row.record is not None, "only measured models are shown"
    summaries: list[dict[str, Any]] = row.record["summaries"]
    return next((s for s in summaries if s["statistic"] == statistic), None)


def _primary_table(shown: Sequence[Measured], statistic: str) -> str:
    controls = list(
        dict.fromkeys(name for row in shown for name in (_summary(row, statistic) or {}).get("controls", ()))
    )
    head = ["model", "layers x heads", "inputs", "tokens", "median [95 % CI]", *controls,
            "heads above / at / below chance", "verdict"]  # fmt: skip
    rows = []
    for row in shown:
        record, summary = row.record, _summary(row, statistic)
        assert record is not None, "only measured models are shown"
        layers = record["fidelity"]["layers"]
        counts = summary["verdicts"] if summary else {}
        above = sum(counts.get(verdict, 0) for verdict in TOWARD_THEORY)
        at, below = (counts.get(str(verdict), 0) for verdict in (Verdict.NO_EVIDENCE, Verdict.CONTRADICTED))
        rows.append([
            row.subject.name,
            f"{len(layers)} x {' or '.join(str(n) for n in sorted({layer['heads'] for layer in layers}))}",
            str(record["inputs"]),
            f"{record['tokens']:,}" if record["tokens"] else "-",
            _with_interval(summary),
            *(_number(((summary or {}).get("controls") or {}).get(control)) for control in controls),
            f"{above} / {at} / {below}" if summary and summary["measured"] else "-",
            _verdict(record, summary),
        ])  # fmt: skip
    return markdown_table(head, rows)


def _verdict(record: dict[str, Any], summary: dict[str, Any] | None) -> str:
    """The verdict of most heads, with the reason where nothing could be measured."""
    if summary is None:
        return str(Verdict.NOT_APPLICABLE)
    if summary["measured"]:
        return str(summary["verdict"])
    found = [f for f in record["findings"] if f["statistic"] == summary["statistic"] and f["reason"]]
    return f"{summary['verdict']}: {found[0]['reason']}" if found else str(summary["verdict"])


def _table_by_statistic(shown: Sequence[Measured], statistics: Sequence[str], role: Role) -> str:
    """A row for each statistic and a column for each model, as there are more of the former."""
    rows = [[statistic, *(_beside_chance(_summary(row, statistic), role) for row in shown)] for statistic in statistics]
    return markdown_table(["statistic", *(row.subject.name for row in shown)], rows)


def _beside_chance(summary: dict[str, Any] | None, role: Role) -> str:
    if summary is None or summary["median"] is None:
        return "-"
    if role is Role.PUBLISHED:
        beside = _number(summary["controls"].get(RANDOM_VALUES))
    else:
        beside = f"{_number(summary['control'])}; {_number(summary['predicted'])}"
    return f"{_number(summary['median'])} ({beside})"


def _model_table(shown: Sequence[Measured]) -> str:
    head = ["model", "architecture", "licence", "how to get it", "inputs"]
    return markdown_table(
        head,
        [
            [row.subject.name, row.subject.architecture, row.subject.licence, f"`{row.subject.command}`", row.source]
            for row in shown
        ],
    )


def _with_interval(summary: dict[str, Any] | None) -> str:
    if summary is None or summary["median"] is None:
        return "-"
    low, high = ((summary["interval"] or {}).get(end) for end in ("low", "high"))
    return _number(summary["median"]) + (f" [{_number(low)}, {_number(high)}]" if low is not None else "")


def _number(stored: float | None) -> str:
    """Two digits at least, where the terminal has room for one."""
    if stored is None:
        return "-"
    return short(stored) if stored == 0 or 1e-3 <= abs(stored) < 1e4 else f"{stored:.1e}"

"""The claims of a theory on every published model that can be loaded, as one page of tables."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clearhead.audit.findings import Verdict
from clearhead.errors import InputError
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.report.tables import Field, Table
from clearhead.report.wording import short
from clearhead.theories.kernel_pca import controls
from clearhead.theories.theory import Role
from clearhead_lab.experiments.experiment import Experiment, Report, Request, installed_versions
from clearhead_lab.experiments.models.measuring import Measured, measure_all, subjects

RANDOM_VALUES = controls.RANDOM_VALUES.name
TOWARD_THEORY = (str(Verdict.SUPPORTED), str(Verdict.PARTLY_SUPPORTED))
SETTING = (
    "Every number is a median over the heads of a model. A head is above or below the null if it differs from every "
    "control with a p-value of at most 5 %, adjusted for the heads of one model and statistic. Intervals are "
    "distribution-free 95 % intervals of the median over heads."
)


def report(measured: Sequence[Measured], request: Request) -> Report:
    """Tabulate the primary statistic with every control, the other statistics, and the models."""
    rows = [row for row in measured if row.record is not None]
    missing = [f"{row.subject.name}: {row.reason}" for row in measured if row.record is None]
    if not rows:
        raise InputError(f"no model could be measured; {missing[0]}")
    sections: list[tuple[str, Table | str]] = [
        (f"{statistic[:1].upper()}{statistic[1:]}", _primary_table(rows, statistic))
        for statistic in _statistics(rows, Role.PRIMARY)
    ]
    for role, title in (
        (Role.SECONDARY, "Other consequences of the theory: median over heads (closest control; predicted)"),
        (Role.PUBLISHED, "As published: median over heads (random values)"),
    ):
        statistics = _statistics(rows, role)
        if statistics:
            sections.append((title, _table_by_statistic(rows, statistics, role)))
    sections.append(("Models", _model_table(rows)))
    if missing:
        sections.append(("Not measured", "\n".join(f"- {line}" for line in missing)))
    return Report(
        headline=f"{len(rows)} of {len(measured)} models measured",
        setting=f"Seed {request.seed}. {SETTING}",
        sections=sections,
        remarks=[f"not measured: {line}" for line in missing],
        json_files={"table.json": _facts(measured, request)},
        print_page=True,
    )


def _facts(measured: Sequence[Measured], request: Request) -> dict[str, Any]:
    """Return the same as plain values, with every summary in full."""
    names = ("inputs", "tokens", "seed", "version", "created", "summaries", "fidelity")
    models = []
    for row in measured:
        subject, record = row.subject, row.record
        facts = {"name": subject.name, "architecture": subject.architecture, "licence": subject.licence,
                 "command": subject.command, "source": row.source, "reason": row.reason}  # fmt: skip
        if record is not None:
            facts |= {name: record[name] for name in names} | {"seconds": record["timing"]["total"]}
        models.append(facts)
    return {
        "format": "clearhead-model-table/1",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": request.seed,
        "versions": installed_versions(),
        "models": models,
    }


def _statistics(rows: Sequence[Measured], role: Role) -> list[str]:
    """Return the names of the statistics of a role, in the order in which they appear."""
    claims = [claim for row in rows if row.record is not None for claim in row.record["claims"]]
    return list(dict.fromkeys(claim["statistic"] for claim in claims if claim["role"] == str(role)))


def _summary(row: Measured, statistic: str) -> dict[str, Any] | None:
    assert row.record is not None, "only measured models have rows"
    summaries: list[dict[str, Any]] = row.record["summaries"]
    return next((s for s in summaries if s["statistic"] == statistic), None)


def _primary_table(rows: Sequence[Measured], statistic: str) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in (_summary(row, statistic) or {}).get("controls", ())))
    titles = ["model", "layers x heads", "inputs", "tokens", "median [95 % CI]", *names,
              "heads above / at / below the null", "verdict"]  # fmt: skip
    cells = []
    for row in rows:
        record, summary = row.record, _summary(row, statistic)
        assert record is not None, "only measured models have rows"
        layers = record["fidelity"]["layers"]
        verdicts = summary["verdicts"] if summary else {}
        above = sum(verdicts.get(verdict, 0) for verdict in TOWARD_THEORY)
        at, below = (verdicts.get(str(verdict), 0) for verdict in (Verdict.NO_EVIDENCE, Verdict.CONTRADICTED))
        cells.append([
            row.subject.name,
            f"{len(layers)} x {' or '.join(str(n) for n in sorted({layer['heads'] for layer in layers}))}",
            str(record["inputs"]),
            f"{record['tokens']:,}" if record["tokens"] else "-",
            _with_interval(summary),
            *(_number(((summary or {}).get("controls") or {}).get(name)) for name in names),
            f"{above} / {at} / {below}" if summary and summary["measured"] else "-",
            _verdict(record, summary),
        ])  # fmt: skip
    return _table(titles, cells)


def _verdict(record: dict[str, Any], summary: dict[str, Any] | None) -> str:
    """Return the verdict of most heads, with the reason if nothing could be measured."""
    if summary is None:
        return str(Verdict.NOT_APPLICABLE)
    reasons = [f["reason"] for f in record["findings"] if f["statistic"] == summary["statistic"] and f["reason"]]
    if summary["measured"] or not reasons:
        return str(summary["verdict"])
    return f"{summary['verdict']}: {reasons[0]}"


def _table_by_statistic(rows: Sequence[Measured], statistics: Sequence[str], role: Role) -> Table:
    """Tabulate a row for each statistic and a column for each model, as there are more statistics."""
    cells = [[statistic, *(_with_controls(_summary(row, statistic), role) for row in rows)] for statistic in statistics]
    return _table(["statistic", *(row.subject.name for row in rows)], cells)


def _with_controls(summary: dict[str, Any] | None, role: Role) -> str:
    if summary is None or summary["median"] is None:
        return "-"
    if role is Role.PUBLISHED:
        compared = _number(summary["controls"].get(RANDOM_VALUES))
    else:
        compared = f"{_number(summary['control'])}; {_number(summary['predicted'])}"
    return f"{_number(summary['median'])} ({compared})"


def _model_table(rows: Sequence[Measured]) -> Table:
    cells = [
        [row.subject.name, row.subject.architecture, row.subject.licence, f"`{row.subject.command}`", row.source]
        for row in rows
    ]
    return _table(["model", "architecture", "licence", "how to get it", "inputs"], cells)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return [Field(title=title, cells=cells) for title, cells in zip(titles, zip(*rows, strict=True), strict=True)]


def _with_interval(summary: dict[str, Any] | None) -> str:
    if summary is None or summary["median"] is None:
        return "-"
    low, high = ((summary["interval"] or {}).get(end) for end in ("low", "high"))
    return _number(summary["median"]) + (f" [{_number(low)}, {_number(high)}]" if low is not None else "")


def _number(value: float | None) -> str:
    """Format with at least two digits."""
    if value is None:
        return "-"
    return short(value) if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def _table_of(theory: str, *, name: str, title: str, reproduces: str, cost: str) -> Experiment:
    def measure(request: Request, folder: Path) -> list[Measured]:
        ensure_torchvision()
        return measure_all(subjects(request), request, folder, theory=theory)

    return Experiment(
        name=name,
        title=title,
        reproduces=reproduces,
        cost=cost,
        measure=measure,
        report=report,
        options=frozenset({"data", "models", "fetch", "inputs"}),
    )


KERNEL_PCA_TABLE = _table_of(
    "kernel-pca",
    name="kernel-pca/models",
    title="Kernel PCA on trained transformers",
    reproduces="the claims of kernel PCA (Teo and Nguyen 2024) on trained models, with controls",
    cost="1 h, and 700 MB of downloads",
)
MAX_MARGIN_TABLE = _table_of(
    "max-margin",
    name="svm/models",
    title="Max margin on trained transformers",
    reproduces="the claims of the attention SVM (Tarzanagh et al. 2023) on trained models, with controls",
    cost="30 min, and 700 MB of downloads",
)

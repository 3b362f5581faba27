"""An audit as one HTML page: no network, no other file, and no script but the page's own can run."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import Summary
from clearhead.audit.record import AuditRecord
from clearhead.calibration.results import RandomLevel
from clearhead.report.calibration import calibration_sentences, levels_of_random_models
from clearhead.report.charts import depth_chart, value_chart
from clearhead.report.grid import Cell, ClaimGrid, arrange, beyond_controls, further_claims, leading
from clearhead.report.head_map import head_maps, key_shade, legend_shades, shade_styles
from clearhead.report.page_data import page_data
from clearhead.report.wording import (
    amount_of_memory,
    capitalised,
    clean,
    deciding_control,
    duration,
    evidence,
    headline,
    interval_in_prose,
    main_verdict,
    meaning,
    number,
    numbers,
    position,
    skip_reason,
    skip_sentence,
    span,
)
from clearhead.theories.theory import Dispute, Position, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """Claims in rows, and in columns every control that any of them has."""

    controls: tuple[str, ...]
    summaries: tuple[Summary, ...]
    absent: tuple[str, ...] = ()
    """Statistics that were not measured in this audit."""
    random_models: Mapping[str, RandomLevel] = field(default_factory=dict)
    """What the statistics are on random models, where the calibration has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionView:
    """A publication's position, and its statistics on this model."""

    position: Position
    table: SummaryTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DisputeView:
    """A dispute as the page shows it: positions, the claims that decide, and the conditions for them."""

    dispute: Dispute
    positions: tuple[PositionView, ...]
    deciding: tuple[Summary, ...]
    conditions: SummaryTable


def summary_table(
    summaries: Sequence[Summary], *, absent: Sequence[str] = (), random_models: Mapping[str, RandomLevel] | None = None
) -> SummaryTable:
    """Return a table of claims."""
    controls = dict.fromkeys(name for summary in summaries for name in summary.controls)
    statistics = {summary.claim.statistic for summary in summaries}
    return SummaryTable(
        controls=tuple(controls),
        summaries=tuple(summaries),
        absent=tuple(absent),
        random_models={name: level for name, level in (random_models or {}).items() if name in statistics},
    )


def view_dispute(
    dispute: Dispute, grids: Sequence[ClaimGrid], random_models: Mapping[str, RandomLevel] | None = None
) -> DisputeView:
    """Look up the claims of a dispute among those that were measured."""
    measured = {grid.claim.statistic: grid.summary for grid in grids if grid.claim.theory == dispute.theory}
    conditions = [grid.summary for grid in further_claims(grids, dispute.theory, Role.SECONDARY)]
    return DisputeView(
        dispute=dispute,
        positions=tuple(
            PositionView(
                position=position,
                table=summary_table(
                    [measured[name] for name in position.rests_on if name in measured],
                    absent=[name for name in position.rests_on if name not in measured],
                    random_models=random_models,
                ),
            )
            for position in dispute.positions
        ),
        deciding=tuple(grid.summary for grid in leading(grids) if grid.claim.theory == dispute.theory),
        conditions=summary_table(conditions),
    )


_SCRIPTS = ("page.js", "head_map.js", "attention.js", "drawer.js", "head_table.js", "view.js")
_FILTERS = {
    "beyond": beyond_controls,
    "capitalised": capitalised,
    "clean": clean,
    "deciding": deciding_control,
    "duration": duration,
    "evidence": evidence,
    "main_verdict": main_verdict,
    "meaning": meaning,
    "numbers": numbers,
    "skip_sentence": skip_sentence,
    "finite": lambda value: value if math.isfinite(value) else 0.0,
    "headline": headline,
    "interval": lambda interval, claim: interval_in_prose(claim, interval),
    "level": lambda level: f"{number(level.median)} ({number(level.low)} to {number(level.high)})",
    "memory": amount_of_memory,
    "number": number,
    "span": span,
}


def render_html(record: AuditRecord) -> str:
    """Return the report as the text of an HTML file.

    Every string of the record is escaped. The content security policy admits one script and one style sheet, by their
    hashes, and no address at all. Without scripts the page still shows the maps, the disputes, the tables of the
    primary claims, and a row for every claim.
    """
    grids = arrange(record.findings)
    maps, map_of = head_maps(grids)
    leads = leading(grids)
    levels = levels_of_random_models(record)
    style = page_style()
    script = "\n" + "".join(map(page_file, _SCRIPTS))
    return page_template("template.html.j2").render(
        record=record,
        grids=grids,
        claim_index={grid.claim: i for i, grid in enumerate(grids)},
        leading=leads,
        maps=maps,
        charts=[value_chart(grid) for grid in leads],
        calibrated=calibration_sentences(record),
        disputes=[view_dispute(dispute, grids, levels.get(dispute.theory)) for dispute in record.disputes],
        groups=[
            (theory, role, claims)
            for theory in dict.fromkeys(grid.claim.theory for grid in grids)
            for role in Role
            if (claims := further_claims(grids, theory, role))
        ],
        depth_charts=[depth_chart(curve) for curve in record.curves],
        facts={cell.index: _facts(cell) for head_map in maps for cell in head_map.grid.cells},
        verdicts=list(Verdict),
        keys={verdict: key_shade(verdict) for verdict in Verdict},
        shades=legend_shades(),
        style=Markup(style),
        script=Markup(script),
        policy=page_policy(script=script, style=style),
        data=page_data(record, grids, maps, map_of),
    )


def page_style() -> str:
    """Return the style sheet of every page."""
    return f"\n{page_file('report.css')}{shade_styles()}\n"


def page_template(name: str, package: str = "clearhead.report") -> Template:
    """Return a template of a package, which escapes every string."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda file: page_file(file, package)),
    )
    environment.filters.update(_FILTERS)
    return environment.get_template(name)


def page_file(name: str, package: str = "clearhead.report") -> str:
    """Return the text of a file of a package."""
    return (files(package) / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def page_policy(*, style: str, script: str = "") -> str:
    """Return the content security policy of a page: its own style sheet and script, by their hashes, and no address."""
    scripts = f"'{_hash(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _facts(cell: Cell) -> dict[str, str]:
    """Return the facts of one head that the map and the table show without a script."""
    finding = cell.finding
    return {
        "position": position(finding),
        "name": clean(finding.name),
        "value": number(finding.value),
        "interval": span(finding.interval),
        "control": clean(finding.deciding_control.name),
        "control_value": number(finding.deciding_control.value),
        "control_range": span(finding.deciding_control.range),
        "control_p": number(finding.deciding_control.p_value),
        "predicted": number(finding.predicted),
        "agreement": number(finding.agreement),
        "p": number(finding.p_value),
        "adjusted": number(finding.adjusted_p_value),
        "inputs": f"{finding.inputs:,}",
        "skipped": f"{finding.skipped:,}" + (f" ({skip_reason(finding)})" if skip_reason(finding) else ""),
        "verdict": str(finding.verdict),
    }

"""The chart of a claim: positions of the median, the controls, the heads and the prediction."""

import dataclasses
import math

import pytest

from clearhead.audit.record import AuditRecord
from clearhead.report.charts import value_chart
from clearhead.report.grid import arrange
from clearhead.theories.theory import Direction
from tests.report.synthetic import LOSS, record_of


def test_positions_are_in_proportion_to_the_numbers(record: AuditRecord) -> None:
    (grid,) = arrange(record.findings)
    chart = value_chart(grid)
    theory, median, random_values, other_heads = chart.rows
    assert [row.kind for row in chart.rows] == ["theory", "value", "control", "control"]
    assert (theory.text, random_values.text, other_heads.text) == ("100%", "30%", "32%")
    assert theory.at == chart.predicted == max(row.at for row in chart.rows if row.at is not None)
    assert other_heads.at == chart.control
    assert random_values.at is not None
    assert other_heads.at is not None
    assert median.at is not None
    assert theory.at is not None
    per_unit = (theory.at - other_heads.at) / (1 - 0.32)
    assert other_heads.at - random_values.at == pytest.approx(0.02 * per_unit, abs=0.02)
    assert median.at - other_heads.at == pytest.approx((grid.summary.median - 0.32) * per_unit, abs=0.02)
    assert (other_heads.low, other_heads.high) == pytest.approx(
        (other_heads.at - 0.01 * per_unit, other_heads.at + 0.01 * per_unit), abs=0.02
    )
    assert len(chart.heads) > 20
    assert 3 <= min(chart.heads) <= max(chart.heads) <= 97


def test_a_direction_has_no_row_and_a_missing_number_no_position() -> None:
    (grid,) = arrange(record_of([4], LOSS).findings)
    lower = dataclasses.replace(LOSS, direction=Direction.LOWER)
    summary = dataclasses.replace(grid.summary, claim=lower, median=math.nan)
    chart = value_chart(dataclasses.replace(grid, summary=summary))
    assert [row.kind for row in chart.rows] == ["value", "control"]
    assert chart.rows[0].at is None
    assert chart.rows[0].text == "-"

"""The effect of permuted tokens on a whole model, in the terminal, the file and the page."""

import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from clearhead.audit.record import AuditRecord
from clearhead.report import audit_as_json, print_audit, render_html
from clearhead.theories.symmetry.whole_model import NOT_MEASURED
from clearhead.theories.theory import ModelValues

BROKEN = dataclasses.replace(NOT_MEASURED, layers=(0.123, 0.456), whole=0.789, control=1.432, inputs=4)
POOLED = dataclasses.replace(BROKEN, whole=math.nan, control=math.nan, reason="not one vector per <token>")
UNTRIED = dataclasses.replace(NOT_MEASURED, reason="two <sequences> are read")


def _printed(record: AuditRecord) -> str:
    buffer = io.StringIO()
    print_audit(record, Console(file=buffer, width=100))
    return " ".join(buffer.getvalue().split())


def test_every_format_shows_the_numbers(record: AuditRecord) -> None:
    with_order = dataclasses.replace(record, whole_model=(BROKEN,))
    printed = _printed(with_order)
    assert "by layer .12 .46; whole model .79 (an unrelated order 1.4)" in printed
    assert audit_as_json(with_order)["whole_model"] == [
        {
            "theory": "symmetry", "layers": [0.123, 0.456], "whole": 0.789, "unrelated": 1.432, "inputs": 4, "draws": 2,
            "reason": "",
        }
    ]  # fmt: skip
    page = render_html(with_order)
    section = page[page.index('id="model-1"') :]
    for figure in ("0.123", "0.456", "0.789", "1.43"):
        assert figure in section


@pytest.mark.parametrize(("symmetry", "words"), [(POOLED, "not one vector per"), (UNTRIED, "are read")])
def test_missing_values_have_their_reason(record: AuditRecord, symmetry: ModelValues, words: str) -> None:
    without = dataclasses.replace(record, whole_model=(symmetry,))
    assert words in _printed(without)
    page = render_html(without)
    assert words in page[page.index('id="model-1"') :]
    assert "<token>" not in page
    assert "<sequences>" not in page
    assert json.loads(json.dumps(audit_as_json(without), allow_nan=False))["whole_model"][0]["whole"] is None


def test_nothing_is_shown_where_nothing_was_measured(record: AuditRecord) -> None:
    assert record.whole_model == ()
    assert 'id="model-1"' not in render_html(record)
    assert "permuted" not in _printed(record)
    assert audit_as_json(record)["whole_model"] == []

import dataclasses
import json
import math

import pytest

from clearhead.findings import Verdict
from clearhead.report import audit_as_json, theorems_as_json, write_json


def only_json(value):
    if isinstance(value, dict):
        return all(type(k) is str and only_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(only_json, value))
    return value is None or (type(value) in (bool, int, str)) or (type(value) is float and math.isfinite(value))


def test_values_are_plain_and_finite(record, two_claims, theorems):
    for made in (audit_as_json(record), audit_as_json(two_claims), theorems_as_json(theorems)):
        assert only_json(made)
        assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_infinities_become_null(record):
    first = dataclasses.replace(record.findings[0], value=math.inf, p_value=-math.inf)
    made = audit_as_json(dataclasses.replace(record, findings=(first,)))
    assert made["findings"][0]["value"] is None
    assert made["findings"][0]["p_value"] is None


def test_findings_keep_their_order_and_numbers(two_claims):
    made = audit_as_json(two_claims)
    assert made["format"] == "clearhead-audit/1"
    assert len(made["findings"]) == len(two_claims.findings)
    for entry, f in zip(made["findings"], two_claims.findings, strict=True):
        assert (entry["layer"], entry["head"], entry["name"]) == (f.layer, f.head, f.name)
        assert entry["claim"]["theory"] == f.claim.theory
        assert entry["verdict"] == str(f.verdict)
        if f.verdict is Verdict.NOT_APPLICABLE:
            assert entry["value"] is entry["agreement"] is entry["interval"]["low"] is None
            assert entry["reason"] == "keys are all equal"
        else:
            assert entry["value"] == f.value
            assert entry["agreement"] == pytest.approx(f.agreement)
        if not math.isnan(f.p_value):
            assert entry["agreement_interval"]["high"] == pytest.approx(f.agreement_interval.high)
            assert f.p_value <= entry["p_value_adjusted"] <= 1


def test_summaries_fidelity_and_timing(record):
    made = audit_as_json(record)
    (summary,) = made["summaries"]
    assert (summary["heads"], summary["measured"], summary["above_chance"]) == (72, 70, 52)
    assert sum(summary["verdicts"].values()) == 72
    assert summary["verdicts"]["not applicable"] == 2
    assert summary["verdict"] == "above chance, short of the claim in 43 of 70 heads"
    assert len(made["fidelity"]["layers"]) == 6
    assert made["fidelity"]["control_change"] == 0.83
    assert made["timing"]["theory"] == {"kernel PCA": 31.0}
    assert made["timing"]["peak_memory"] == 1_940_000_000


def test_the_file_reads_back(record, tmp_path):
    write_json(record, tmp_path / "audit.json")
    text = (tmp_path / "audit.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == audit_as_json(record)


def test_theorems_are_counted(theorems):
    made = theorems_as_json(theorems)
    assert (made["hold"], made["do_not"]) == (7, 1)
    assert [t["holds"] for t in made["theorems"]] == [True] * 7 + [False]

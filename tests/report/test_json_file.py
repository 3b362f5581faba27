import dataclasses
import json
import math

import pytest

from clearhead.report import audit_as_json, write_json
from clearhead.report.json_file import audit_as_text
from tests.report.synthetic import DISPUTE


def only_json(value):
    if isinstance(value, dict):
        return all(type(k) is str and only_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(only_json, value))
    return value is None or (type(value) in (bool, int, str)) or (type(value) is float and math.isfinite(value))


def test_values_are_plain_and_finite(record, two_claims):
    for made in (audit_as_json(record), audit_as_json(two_claims)):
        assert only_json(made)
        assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_infinities_become_null(record):
    control = dataclasses.replace(record.findings[0].closest_control, value=-math.inf, p_value=math.nan)
    first = dataclasses.replace(record.findings[0], value=math.inf, controls=(control,))
    made = audit_as_json(dataclasses.replace(record, findings=(first,)))
    assert made["findings"][0]["value"] is None
    assert made["findings"][0]["p_value"] is None
    assert made["findings"][0]["controls"]["values of other heads"]["value"] is None


def plain(value):
    return None if math.isnan(value) else value


def test_findings_keep_their_order_and_numbers(disputed):
    made = audit_as_json(disputed)
    assert made["format"] == "clearhead-audit/3"
    assert len(made["findings"]) == len(disputed.findings)
    for entry, f in zip(made["findings"], disputed.findings, strict=True):
        assert (entry["layer"], entry["head"], entry["name"]) == (f.layer, f.head, f.name)
        assert (entry["theory"], entry["statistic"]) == (f.claim.theory, f.claim.statistic)
        assert entry["verdict"] == str(f.verdict)
        assert entry["reason"] == f.reason
        assert (entry["value"], entry["predicted"], entry["agreement"]) == tuple(
            map(plain, (f.value, f.predicted, f.agreement))
        )
        for name in ("interval", "agreement_interval"):
            interval = getattr(f, name)
            assert entry[name] == {"low": plain(interval.low), "high": plain(interval.high)}
        assert (entry["p_value"], entry["p_value_adjusted"]) == (plain(f.p_value), plain(f.adjusted_p_value))
        assert entry["closest_control"] == f.closest_control.name
        assert list(entry["controls"]) == [c.name for c in f.controls]
        for c in f.controls:
            assert entry["controls"][c.name] == {
                "value": plain(c.value),
                "range": {"low": plain(c.range.low), "high": plain(c.range.high)},
                "draws": c.draws,
                "seed": c.seed,
                "p_value": plain(c.p_value),
            }


def test_claims_are_listed_once_and_disputes_name_them(disputed):
    made = audit_as_json(disputed)
    claims = list(dict.fromkeys(f.claim for f in disputed.findings))
    assert [(c["statistic"], c["role"], c["note"], c["predicted"]) for c in made["claims"]] == [
        (c.statistic, str(c.role), c.note, c.predicted) for c in claims
    ]
    assert [s["statistic"] for s in made["summaries"]] == [c.statistic for c in claims]
    assert made["summaries"][0]["controls"]["values of other heads"] == pytest.approx(0.32)
    assert made["summaries"][0]["closest_control"] == "values of other heads"
    assert made["summaries"][3]["predicted"] is None
    (dispute,) = made["disputes"]
    assert dispute["question"] == DISPUTE.question
    assert [side["rests_on"] for side in dispute["positions"]] == [list(side.rests_on) for side in DISPUTE.positions]


def test_summaries_fidelity_and_timing(record):
    made = audit_as_json(record)
    (summary,) = made["summaries"]
    assert (summary["heads"], summary["measured"], summary["beyond_controls"]) == (72, 70, 52)
    assert sum(summary["verdicts"].values()) == 72
    assert summary["verdicts"]["not applicable"] == 2
    assert summary["verdict"] == "partly supported in 43 of 70 heads"
    assert summary["headline"].startswith("Kernel PCA is partly supported in 43 of 70 heads judged; ")
    assert summary["control"] == summary["controls"]["values of other heads"]
    assert summary["control_ranges"]["values of other heads"] == {
        "low": pytest.approx(0.31),
        "high": pytest.approx(0.33),
    }
    assert len(made["fidelity"]["layers"]) == 6
    assert made["fidelity"]["control_change"] == 0.83
    assert made["timing"]["theory"] == {"kernel PCA": 31.0}
    assert made["timing"]["peak_memory"] == 1_940_000_000


def test_the_file_reads_back(record, tmp_path):
    write_json(record, tmp_path / "audit.json")
    text = (tmp_path / "audit.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == audit_as_json(record)
    assert sum('"layer":' in line and '"value":' in line for line in text.splitlines()) == len(record.findings)


def test_a_file_without_findings_reads_back(record):
    empty = dataclasses.replace(record, findings=())
    assert json.loads(audit_as_text(empty)) == audit_as_json(empty)

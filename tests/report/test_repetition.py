import copy

import pytest

from clearhead.report.json_file import audit_as_json
from clearhead.report.repetition import compare_findings


@pytest.fixture
def findings(record):
    return audit_as_json(record)["findings"]


def test_equal_findings_are_identical(findings):
    same = compare_findings(findings, copy.deepcopy(findings))
    assert same.identical
    assert (same.findings, same.different, same.verdicts, same.largest) == (len(findings), 0, 0, "")


def test_the_largest_difference_is_of_a_value(findings):
    other = copy.deepcopy(findings)
    other[0]["p_value"] = 0.75
    other[2]["value"] *= 1.5
    other[3]["value"] *= 1.001
    other[3]["verdict"] = "changed"
    result = compare_findings(findings, other)
    assert (result.findings, result.different, result.verdicts) == (len(findings), 3, 1)
    assert (
        f"layer {other[2]['layer']}, head {other[2]['head']}: value {findings[2]['value']!r} before" in result.largest
    )


def test_a_last_bit_and_a_missing_finding_differ(findings):
    other = copy.deepcopy(findings)
    name = next(iter(other[1]["controls"]))
    other[1]["controls"][name]["value"] *= 1 + 2**-52
    result = compare_findings(findings, other)
    assert (result.different, result.identical) == (1, False)
    assert f"controls {name} value" in result.largest
    fewer = compare_findings(findings, findings[1:])
    assert (fewer.findings, fewer.different) == (len(findings), 1)
    assert fewer.largest.endswith("only before")

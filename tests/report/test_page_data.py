"""The data block that the page's script reads."""

import base64
import dataclasses
import json
import re

from clearhead.report import render_html
from clearhead.report.wording import number
from tests.report.synthetic import KERNEL_PCA, OVERLAP, record_of, with_inputs


def facts_of(page):
    block = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.S).group(1)
    assert "<" not in block
    return json.loads(block)


def test_the_data_block_is_json_that_cannot_end_itself():
    page = render_html(record_of([3, 2], KERNEL_PCA, name="</script><script>alert(1)</script>&{}"))
    assert facts_of(page)["maps"][0]["names"] == [f"</script><script>alert(1)</script>&{i}" for i in (0, 1)]


def test_the_data_block_has_every_number_of_every_claim(disputed):
    facts = facts_of(render_html(disputed))
    claims = list(dict.fromkeys(f.claim for f in disputed.findings))
    assert [entry["statistic"] for entry in facts["claims"]] == [claim.statistic for claim in claims]
    for claim, entry in zip(claims, facts["claims"], strict=True):
        findings = [f for f in disputed.findings if f.claim == claim]
        columns = {name: column.split(" ") for name, column in entry["columns"].items()}
        assert {len(column) for column in columns.values()} == {len(findings)}
        assert columns["value"] == [number(f.value) for f in findings]
        assert columns["p"] == [number(f.p_value) for f in findings]
        assert columns["adjusted"] == [number(f.adjusted_p_value) for f in findings]
        for name, intervals in (
            ("", [f.interval for f in findings]),
            ("agreement_", [f.agreement_interval for f in findings]),
        ):
            assert columns[f"{name}low"] == [number(min(i.low, i.high)) for i in intervals]
            assert columns[f"{name}high"] == [number(max(i.low, i.high)) for i in intervals]
        assert [facts["verdicts"][int(v)]["words"] for v in columns["verdict"]] == [str(f.verdict) for f in findings]
        assert [facts["controls"][int(c)] for c in columns["closest"]] == [f.closest_control.name for f in findings]
        assert entry["role"] == str(claim.role)
        assert entry["map"] == ["kernel PCA", "max margin"].index(claim.theory)
        for i, control in enumerate(entry["controls"]):
            assert control["value"].split(" ") == [number(f.controls[i].value) for f in findings]
            assert control["p"].split(" ") == [number(f.controls[i].p_value) for f in findings]


def test_a_head_without_some_control_has_no_draws_of_it(record):
    first = dataclasses.replace(record.findings[0], controls=record.findings[0].controls[:1])
    bare = dataclasses.replace(record.findings[1], controls=())
    facts = facts_of(render_html(dataclasses.replace(record, findings=(first, bare, *record.findings[2:]))))
    easy, hard = facts["claims"][0]["controls"]
    assert easy["draws"].split(" ")[:3] == ["999", "0", "999"]
    assert hard["draws"].split(" ")[:3] == ["0", "0", "5"]
    assert facts["claims"][0]["columns"]["closest"].split(" ")[:3] == ["0", "-", "1"]


def test_skipped_inputs_come_with_their_reason(record):
    facts = facts_of(render_html(record))
    columns = {name: column.split(" ") for name, column in facts["claims"][0]["columns"].items()}
    skipped = {(n, facts["reasons"][int(r)]) for n, r in zip(columns["skipped"], columns["reason"], strict=True)}
    assert skipped == {("0", ""), ("199", "too few tokens"), ("200", "keys are all equal")}


def test_claims_on_other_heads_have_their_own_map(disputed):
    fewer = tuple(f for f in disputed.findings if f.claim != OVERLAP or f.layer > 0)
    facts = facts_of(render_html(dataclasses.replace(disputed, findings=fewer)))
    assert [entry["map"] for entry in facts["claims"]] == [0, 2, 0, 0, 1]
    assert len(facts["maps"][2]["layer"].split(" ")) == 21


def test_the_data_block_is_ascii_without_markup_or_half_characters():
    tokens = ("</script>", "a&b", "\u2028\u2029", "\ud800", "\u202e\x00", "日本", "\n")
    page = render_html(with_inputs(record_of([2], KERNEL_PCA), tokens))
    block = re.search(r'id="facts">(.*?)</script>', page, re.S).group(1)
    assert block.isascii()
    assert not set(block) & set("<>&")
    (shown,) = facts_of(page)["inputs"]
    assert shown["tokens"] == ["</script>", "a&b", "↵↵", "�", "��", "日本", "↵"]
    assert not re.search(r"\\ud[89a-f]", block), "a lone surrogate"


def test_shown_inputs_have_weights_texts_and_extremes_of_every_head():
    made = with_inputs(record_of([2, 3], KERNEL_PCA), ("a", "b", "c"))
    facts = facts_of(render_html(made))
    (shown,) = facts["inputs"]
    layer = shown["layers"]["1"]
    assert layer["shape"] == [3, 3, 3]
    assert base64.b64decode(layer["weights"]) == made.shown[0].layers[1].weights.tobytes()
    (claim,) = facts["claims"]
    assert claim["grouped"] is False
    assert claim["extremes"].split(" ")[1] == "7:7.10,6:6.10,5:5.10,2:2.10,1:1.10,0:0.100"
    assert facts["texts"] == {str(i): f"text of input {i + 1}" for i in (0, 1, 2, 5, 6, 7)}

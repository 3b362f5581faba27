"""A record as a short text and in a notebook."""

import dataclasses
from html.parser import HTMLParser

from markupsafe import escape

from clearhead.audit.finding_table import FindingTable
from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.report.grid import arrange, leading
from clearhead.report.notebook import findings_html, notebook_html, summary_text
from clearhead.report.wording import clean, meaning
from clearhead.theories.theory import PlainWords
from tests.report.synthetic import KERNEL_PCA, record_of

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{ 7 * 7 }}&\ud800\x1b[31m"""


def test_the_text_has_one_line_per_leading_claim(disputed: AuditRecord) -> None:
    recorded = dataclasses.replace(disputed, notes=("few inputs",))
    first, *verdicts, note = str(recorded).splitlines()
    assert str(recorded) == summary_text(recorded)
    assert first == "Audit of all-MiniLM-L6-v2 on reviews.txt: 4 layers, 26 heads, 200 inputs"
    assert len(verdicts) == 2
    assert verdicts[0].startswith("- Kernel PCA is partly supported in 15 of 25 heads judged; ")
    assert "; the theory predicts 100%." in verdicts[0]
    assert verdicts[1].startswith("- Max margin ")
    assert note == "note: few inputs"


def test_a_notebook_shows_the_same_words(disputed: AuditRecord) -> None:
    words: list[str] = []
    parser = HTMLParser()
    parser.handle_data = words.append  # type: ignore[method-assign]
    parser.feed(disputed._repr_html_())
    assert disputed._repr_html_() == notebook_html(disputed)
    assert "".join(words).replace("- ", "") == summary_text(disputed).replace("\n- ", "").replace("\n", "")


def test_a_notebook_says_what_a_verdict_means(record: AuditRecord) -> None:
    supported = tuple(dataclasses.replace(f, verdict=Verdict.SUPPORTED) for f in record.findings)
    record = dataclasses.replace(record, findings=supported)
    words = PlainWords(says="", supported=f"Yes. {HOSTILE}")
    shown = dataclasses.replace(record, words={KERNEL_PCA.theory: words})
    assert str(shown) == str(record)  # printed, a record stays short
    [grid] = leading(arrange(shown.findings))
    expected = escape(clean(meaning(grid.summary, words)))
    assert expected.startswith("Yes. &lt;script")
    assert f"<p>{expected}</p></li>" in shown._repr_html_()
    assert "<img" not in shown._repr_html_()


def test_external_names_are_escaped() -> None:
    claim = dataclasses.replace(KERNEL_PCA, theory=HOSTILE, statistic=HOSTILE)
    record = dataclasses.replace(record_of([2, 3], claim, model=HOSTILE), data=HOSTILE, notes=(HOSTILE,))
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(record._repr_html_())
    assert set(tags) == {"div", "p", "ul", "li", "b"}
    record._repr_html_().encode("utf-8")
    assert "\x1b" not in str(record) + record._repr_html_()


def test_a_table_of_findings_is_escaped_and_limited() -> None:
    claim = dataclasses.replace(KERNEL_PCA, theory=HOSTILE, statistic=HOSTILE)
    findings = record_of([2, 3], claim).findings
    shown = FindingTable(findings)._repr_html_()
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(shown)
    assert set(tags) == {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert tags.count("tr") == 1 + len(findings)
    assert "3 more rows: to_pandas() has all" in findings_html(FindingTable(findings), limit=2)
    assert findings_html(FindingTable(findings), limit=2).count("<tr>") == 3


def test_a_record_without_findings_can_be_shown(record: AuditRecord) -> None:
    empty = dataclasses.replace(record, findings=())
    assert str(empty) == "Audit of all-MiniLM-L6-v2 on reviews.txt: 6 layers, 72 heads, 200 inputs"
    assert "<ul></ul>" in empty._repr_html_()

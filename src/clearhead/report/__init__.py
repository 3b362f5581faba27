"""An audit in a terminal, as JSON, as one self-contained HTML page, and in a notebook."""

from clearhead.report.comparison import comparison_as_json
from clearhead.report.html import render_html
from clearhead.report.json_file import audit_as_json, write_json
from clearhead.report.notebook import findings_html, notebook_html, summary_text
from clearhead.report.terminal import print_audit, print_summary

__all__ = [
    "audit_as_json",
    "comparison_as_json",
    "findings_html",
    "notebook_html",
    "print_audit",
    "print_summary",
    "render_html",
    "summary_text",
    "write_json",
]

"""An audit in a terminal, as JSON, as one self-contained HTML page, and in a notebook."""

from clearhead.report.html import render_html
from clearhead.report.json_file import audit_as_json, theorems_as_json, write_json
from clearhead.report.terminal import print_audit
from clearhead.report.terminal_summary import print_summary
from clearhead.report.theorem_table import print_theorems

__all__ = [
    "audit_as_json",
    "print_audit",
    "print_summary",
    "print_theorems",
    "render_html",
    "theorems_as_json",
    "write_json",
]

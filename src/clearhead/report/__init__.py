"""An audit in a terminal, in a JSON file, and as one self-contained page."""

from clearhead.report.html import render_html
from clearhead.report.json_file import audit_as_json, theorems_as_json, write_json
from clearhead.report.terminal import print_audit, print_theorems

__all__ = ["audit_as_json", "print_audit", "print_theorems", "render_html", "theorems_as_json", "write_json"]

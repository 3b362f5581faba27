"""A command, `clearhead verdicts REPORT`: typer makes arguments and options of a function's own."""

import json
from collections import Counter
from pathlib import Path


def verdicts(report: Path, *, theory: str = "") -> None:
    """Count the verdicts in a report."""
    findings = json.loads((report / "findings.json").read_text())["findings"]
    counts = Counter(finding["verdict"] for finding in findings if theory in ("", finding["theory"]))
    for verdict, count in counts.most_common():
        print(f"{count:6} {verdict}")

"""Docstrings of the package as reStructuredText.

They are plain text with `code` in single backticks, `.. math::` blocks, and lines `name: meaning` for arguments and
fields. Characters with a meaning in reStructuredText are escaped elsewhere.
"""

import re
from collections.abc import Iterator
from typing import Any

_NAME = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")
_PARTS = re.compile(r"(`[^`]+`)")


def _escaped(text: str) -> str:
    """Escape a line, and make code of what stands in single backticks."""
    parts = _PARTS.split(text)
    return "".join(
        f"``{part[1:-1]}``" if part.startswith("`") and len(part) > 2 else re.sub(r"([*|_\\])", r"\\\1", part)
        for part in parts
    )


def converted(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a docstring as reStructuredText."""
    literal, previous, named = False, "", False
    for line in lines:
        indented = line.startswith((" ", "\t"))
        if literal and line.strip() and not indented:
            literal = False
        if line.startswith((".. math::", "    ")) and (line.startswith("..") or (not previous.strip() and not named)):
            if not line.startswith("..") and not literal:
                yield "::"
                yield ""
            literal = True
        if literal:
            yield line
        elif match := _NAME.match(line):
            if previous.strip() and not named:
                yield ""
            named = True
            yield f":{match[1]}: {_escaped(line[match.end() :])}"
        else:
            if line.strip() and not indented and named:
                yield ""
                named = False
            yield ("    " if indented else "") + _escaped(line.strip()) if line.strip() else ""
        previous = line


def _process(app: Any, kind: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    lines[:] = list(converted(lines))


def setup(app: Any) -> dict[str, bool]:
    """Convert every docstring that autodoc reads."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Tables in Markdown."""

from collections.abc import Sequence

__all__ = ["markdown_table"]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A head over rows of as many cells; a bar within a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

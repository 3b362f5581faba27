"""A reader of Markdown for `clearhead audit --text`: its paragraphs, without headings."""

import clearhead as ch


def read(path):
    """Return the passages of a file."""
    paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    return [" ".join(p.split()) for p in paragraphs if p.strip() and not p.lstrip().startswith("#")]


READER = ch.Reader(kind="text", endings=(".md",), read=read)

"""`clearhead demo`: list the demonstrations, or write one as a page."""

from pathlib import Path

from clearhead.errors import InputError
from clearhead_lab.demos.page import DEMOS, render_demo

__all__ = ["list_demos", "write_demo"]


def list_demos() -> str:
    """Return one line per demonstration."""
    width = max(map(len, DEMOS))
    return "\n".join(f"{name:{width}}  {demo.title}" for name, demo in DEMOS.items())


def write_demo(name: str, out: Path | None) -> str:
    """Write a demonstration and return its path."""
    page = render_demo(name)
    path = Path(f"clearhead-{name}.html") if out is None else out
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another path with --out") from None
    return str(path)

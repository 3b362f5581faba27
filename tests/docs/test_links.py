"""Links between documents lead to files and headings that exist; tables have a header."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")])
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")


def _text(page: Path) -> str:
    """Return the text of a page without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#{1,6} (.+?)\s*$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _links(page: Path) -> list[str]:
    return [link for link in LINK.findall(_text(page)) if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: page.name)
def test_every_table_has_a_header(page: Path) -> None:
    """A line of dashes without one as wide above it is shown as text."""
    lines = _text(page).splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if re.fullmatch(r"\|[\s:|-]+\|", line):
            assert len(re.findall(r"(?<!\\)\|", above)) == line.count("|"), line


def test_pages_that_messages_name_exist() -> None:
    sources = [path.read_text() for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py")]
    named = {match for text in sources for match in re.findall(r"docs/([\w/-]+\.md(?:#[\w-]+)?)", text)}
    assert {"describing-a-model.md", "data.md", "models.md#models-that-do-not-load"} <= named
    for name in named:
        path, _, anchor = name.partition("#")
        page = ROOT / "docs" / path
        assert page.is_file(), name
        assert not anchor or anchor in _anchors(page), name


def test_links_are_found() -> None:
    assert "docs/verdicts.md" in _links(ROOT / "README.md") or "docs/reading.md" in _links(ROOT / "README.md")
    assert "the-rate" in _anchors(ROOT / "docs" / "theory" / "coding-rate.md")
    assert sum(len(_links(page)) for page in PAGES) > 100


def test_every_page_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    listed = set()
    for index in (docs / "index.md", docs / "api" / "index.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), flags=re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {(index.parent / name).relative_to(docs).as_posix() for name in names}
    pages = {page.relative_to(docs).with_suffix("").as_posix() for page in PAGES if page.is_relative_to(docs)}
    assert pages - {"index"} == listed


def test_theory_pages_have_the_same_three_parts() -> None:
    for name in ("kernel-pca", "max-margin", "coding-rate", "attention-sinks", "general-attention"):
        parts = re.findall(r"^## (.*)$", _text(ROOT / "docs" / "theory" / f"{name}.md"), flags=re.MULTILINE)
        assert parts == ["What it says", "How it is measured", "What we found"], name


@pytest.mark.parametrize("name", ["howto/robustness.md", "howto/train.md"])
def test_the_code_of_how_to_pages_runs(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})

"""Links in files of the repository that pages include, and links to files that are not pages.

A page may include a file of the repository, whose links are relative to its root: those to pages are resolved. Links to
source files are shown as text, because the site does not depend on where the repository is.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"


def _resolve(app: Any, doctree: nodes.document) -> None:
    page = Path(doctree["source"])
    for node in list(doctree.findall(addnodes.pending_xref)):
        target = node["reftarget"].split("#")[0]
        near, far = (page.parent / target).resolve(), (ROOT / target).resolve()
        if not target or (near.is_file() and near.is_relative_to(PAGES)) or not (near.is_file() or far.is_file()):
            continue  # a page of the site, or a link that Sphinx reports as broken
        children = [child.deepcopy() for child in node.children]
        if far.is_file() and far.is_relative_to(PAGES) and far.suffix in (".md", ".ipynb"):
            name = "/" + far.relative_to(PAGES).with_suffix("").as_posix()
            reference = addnodes.pending_xref(
                "", *children, refdomain="std", reftype="doc", reftarget=name, refexplicit=True, refwarn=True
            )
            node.replace_self(reference)
        else:
            node.replace_self(nodes.inline("", "", *children))


def setup(app: Any) -> dict[str, bool]:
    """Resolve such links in every page."""
    app.connect("doctree-read", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

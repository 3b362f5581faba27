"""A planted bug, and the edit that plants it where it still applies."""

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """A bug: where it is planted, the right fragment, the wrong one, and the tests that must then fail.

    `where` is "module:function", such as `judging:_verdict`, `kernel_pca.entry:Limits.of` or, for a whole module,
    `norms:`. The module decides between functions of one name; a function that is in another module now is found by its
    name. Fragments are an expression or statements. Comments, quotes and line breaks make no difference. `...` as the
    block of a statement stands for any block, which stays as it is. A `where` without a colon is the end of the path of
    a file in another language, in which fragments are text.
    """

    name: str
    where: str
    right: str
    wrong: str
    tests: tuple[str, ...]


class DoesNotApplyError(Exception):
    """The place of a mutant is not in the sources, or not once."""


@dataclass(frozen=True)
class Place:
    """A definition of a Python file, or all of a file: `text` is what a mutant leaves alone or edits."""

    path: Path
    module: tuple[str, ...] = ()
    node: ast.AST | None = None

    @property
    def text(self) -> str:
        return self.path.read_text() if self.node is None else ast.unparse(self.node)


class Sources:
    """The definitions of all files below some folders."""

    def __init__(self, *folders: Path) -> None:
        self._files = [(path, path.relative_to(folder)) for folder in folders for path in sorted(folder.rglob("*.*"))]
        self._places: dict[str, list[Place]] = defaultdict(list)
        for path, inner in self._files:
            if path.suffix == ".py":
                module = (*inner.parts[:-1], *(() if inner.stem == "__init__" else (inner.stem,)))
                tree = ast.parse(path.read_text())
                for name, node in [("", tree), *_definitions(tree)]:
                    self._places[name].append(Place(path, module, node))

    def plant(self, mutant: Mutant) -> tuple[Place, str]:
        """Return the place of a mutant and the text of its file with the bug; raise DoesNotApplyError."""
        module, colon, name = mutant.where.partition(":")
        if not colon:
            places = [Place(path) for path, inner in self._files if f"/{inner}".endswith(f"/{mutant.where}")]
            edits = [
                (place, place.text.replace(mutant.right, mutant.wrong))
                for place in places
                if place.text.count(mutant.right) == 1
            ]
        else:
            end = tuple(module.split("."))
            everywhere = self._places.get(name, [])
            places = [place for place in everywhere if place.module[-len(end) :] == end] or everywhere
            edits = [(place, text) for place in places if (text := _edited(place, mutant)) is not None]
        if not places:
            raise DoesNotApplyError(f"{mutant.where} does not exist")
        if len(edits) != 1:
            raise DoesNotApplyError(
                f"its fragment occurs once in {len(edits)} of {len(places)} places named {mutant.where}"
            )
        return edits[0]


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions and classes inside of a node with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child, prefix)


def _edited(place: Place, mutant: Mutant) -> str | None:
    """Return the text of the file with the bug, or None if the right fragment does not occur once in the definition."""
    edit = _Edit(mutant)
    node = copy.deepcopy(place.node)
    edited = edit.visit(node if isinstance(node, ast.Module) else ast.Module([node], []))
    if edit.count != 1:
        return None
    if isinstance(node, ast.Module):
        return ast.unparse(edited)
    indents = node.col_offset // 4
    for _ in range(indents):  # indents strings of several lines correctly, as textwrap cannot
        edited = ast.Module([ast.If(ast.Constant(True), edited.body, [])], [])
    lines = place.path.read_text().split("\n")
    first = min(each.lineno for each in (node, *node.decorator_list)) - 1
    return "\n".join([*lines[:first], *ast.unparse(edited).split("\n")[indents:], *lines[node.end_lineno :]])


class _Edit(ast.NodeTransformer):
    """Replace the right fragment by the wrong one wherever it occurs, and count."""

    def __init__(self, mutant: Mutant) -> None:
        self.count = 0
        self.right, self.wrong = ast.parse(mutant.right).body, ast.parse(mutant.wrong).body
        both = (self.right, self.wrong)
        self.expressions = all(len(side) == 1 and isinstance(side[0], ast.Expr) for side in both)

    def visit(self, node: ast.AST) -> ast.AST:
        if self.expressions:
            right, wrong = self.right[0].value, self.wrong[0].value
            if type(node) is type(right) and ast.unparse(node) == ast.unparse(right):
                self.count += 1
                return wrong
            return self.generic_visit(node)
        self.generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, self._block(block))
        return node

    def _block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        for first in range(len(block) - len(self.right), -1, -1):
            found = block[first : first + len(self.right)]
            if all(map(_same, found, self.right)):
                self.count += 1
                kept = [old for old, new in zip(found, self.right, strict=True) if _is_open(new)]
                wrong = copy.deepcopy(self.wrong)
                for node in filter(_is_open, wrong):
                    node.body = kept[0].body
                block = block[:first] + wrong + block[first + len(found) :]
        return block


def _is_open(node: ast.stmt) -> bool:
    """Is the block of this statement `...`, which stands for any block?"""
    return ast.unparse(getattr(node, "body", [])) == "..."


def _same(node: ast.stmt, fragment: ast.stmt) -> bool:
    if type(node) is not type(fragment):
        return False
    if _is_open(fragment):
        node = copy.copy(node)
        node.body = fragment.body
    return ast.unparse(node) == ast.unparse(fragment)

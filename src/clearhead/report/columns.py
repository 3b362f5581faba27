"""Plain columns of text that know how wide they are, so that a narrow terminal gets fewer of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from clearhead.report.wording import clean

__all__ = ["Column", "first_that_fits", "print_columns", "print_line", "print_paragraph", "text_column"]

GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A title over cells; numbers stand to the right."""

    title: str
    cells: tuple[Text, ...]
    right: bool = False

    @property
    def width(self) -> int:
        """Width of the widest entry, in terminal cells."""
        return max(Text(self.title).cell_len, *(cell.cell_len for cell in self.cells), 0)

    def entry(self, text: Text) -> Text:
        """Pad one entry to the width of the column."""
        text = text.copy()
        missing = self.width - text.cell_len
        if self.right:
            text.pad_left(missing)
        else:
            text.pad_right(missing)
        return text


def text_column(title: str, cells: Sequence[str], *, right: bool = True) -> Column:
    """A column of words that may come from outside."""
    return Column(title=title, cells=tuple(Text(clean(cell)) for cell in cells), right=right)


def first_that_fits(candidates: Iterable[Sequence[Column]], *, width: int) -> Sequence[Column]:
    """Return the first set of columns that fits into the width, and the last where none does."""
    columns: Sequence[Column] = ()
    for columns in candidates:
        if sum(column.width for column in columns) + GAP * (len(columns) - 1) <= width:
            return columns
    return columns


def print_columns(columns: Sequence[Column], console: Console, *, beneath: Sequence[Text] = ()) -> None:
    """Print a header and the rows; `beneath` holds one indented paragraph to print under each row."""
    gap = Text(" " * GAP)
    print_line(gap.join(column.entry(Text(column.title, style="dim")) for column in columns), console)
    for i in range(len(columns[0].cells)):
        print_line(gap.join(column.entry(column.cells[i]) for column in columns), console)
        if beneath:
            print_paragraph("", beneath[i], console, indent=GAP)


def print_line(line: Text, console: Console) -> None:
    """Print one line, cut where the terminal ends."""
    console.print(line, no_wrap=True, overflow="crop", crop=True)


def print_paragraph(label: str, text: Text, console: Console, *, indent: int = 11) -> None:
    """Print words beside a label, broken between words and indented to stay beside it."""
    for i, line in enumerate(text.wrap(console, max(console.width - indent, 1))):
        line.rstrip()
        print_line(Text().append(f"{label if i == 0 else '':<{indent}}", style="bold").append_text(line), console)

"""Plain columns of text with a known width, so that a narrow terminal gets fewer of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from clearhead.report.wording import clean

GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A title and its cells, aligned to the right if `right` (numbers)."""

    title: str
    cells: tuple[Text, ...]
    right: bool = False

    @property
    def width(self) -> int:
        """Width of the widest entry, in terminal cells."""
        return max(Text(self.title).cell_len, *(cell.cell_len for cell in self.cells), 0)

    def entry(self, text: Text) -> Text:
        """Return one entry padded to the width of the column."""
        text = text.copy()
        missing = self.width - text.cell_len
        if self.right:
            text.pad_left(missing)
        else:
            text.pad_right(missing)
        return text


def text_column(title: str, cells: Sequence[str], *, right: bool = True) -> Column:
    """Return a column of texts that may come from outside: characters that do not print are replaced."""
    return Column(title=title, cells=tuple(Text(clean(cell)) for cell in cells), right=right)


def first_that_fits(candidates: Iterable[Sequence[Column]], *, width: int) -> Sequence[Column]:
    """Return the first set of columns that fits into the width, or the last if none does."""
    columns: Sequence[Column] = ()
    for columns in candidates:
        if sum(column.width for column in columns) + GAP * (len(columns) - 1) <= width:
            return columns
    return columns


def print_columns(columns: Sequence[Column], console: Console, *, beneath: Sequence[Text] = ()) -> None:
    """Print a header and the rows; `beneath` has one indented paragraph to print under each row."""
    gap = Text(" " * GAP)
    print_line(gap.join(column.entry(Text(column.title, style="dim")) for column in columns), console)
    for i in range(len(columns[0].cells)):
        print_line(gap.join(column.entry(column.cells[i]) for column in columns), console)
        if beneath:
            print_paragraph("", beneath[i], console, indent=GAP)


def print_line(line: Text, console: Console) -> None:
    """Print one line, without spaces at its end, cut at the width of the terminal."""
    line = line.copy()
    line.rstrip()
    console.print(line, no_wrap=True, overflow="crop", crop=True)


def print_paragraph(label: str, text: Text, console: Console, *, indent: int = 11) -> None:
    """Print a label and a paragraph to its right, wrapped between words."""
    for i, line in enumerate(text.wrap(console, max(console.width - indent, 1))):
        print_line(Text().append(f"{label if i == 0 else '':<{indent}}", style="bold").append_text(line), console)

"""An evaluation under attacks as a short text, as an HTML fragment for notebooks, and in a terminal of any width."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from clearhead.rendering import renders
from clearhead.report.columns import Column, first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.wording import clean
from clearhead_lab.robustness.attack_words import (
    AccuracyRow,
    accuracy_rows,
    attack_headline,
    attacked,
    corruptions_sentence,
    further_measures,
    interval_text,
    ordered_sanity,
    percent,
    sanity_counts,
    trust_sentence,
)
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import Difference, Estimate, SanityLine, budget_text

MOST_BUDGETS = 8
"""Budgets in the text; to_dict() has all."""


@renders(Robustness, "text")
def attack_text(record: Robustness) -> str:
    """Return the answer, one line of accuracies per budget, the sanity lines and the notes."""
    rows, lines = accuracy_rows(record), [f"{attack_headline(record)} {trust_sentence(record)}"]
    lines.append("; ".join(attacked(record)))
    shown = range(len(record.budgets))[-MOST_BUDGETS:]
    width = max(len(budget_text(record.budgets[i])) for i in shown)
    lines += [f"{budget_text(record.budgets[i]):>{width}}  {_accuracies(record, rows, i)}" for i in shown]
    if len(shown) < len(record.budgets):
        lines.append(f"{len(record.budgets) - len(shown)} smaller budgets: to_dict() has all")
    lines += [f"{name}: {text}" for name, text in further_measures(record).items()]
    if record.sanity:
        lines.append(f"sanity: {sanity_counts(record)}")
        lines += [f"FLAG {_sanity(line)}" for line in record.flagged]
    if not_run := [clean(line.name) for line in record.sanity if line.status == "not run"]:
        lines.append(f"not run: {'; '.join(not_run)}")
    return "\n".join([*lines, *(f"note: {clean(note)}" for note in record.notes)])


def _accuracies(record: Robustness, rows: Sequence[AccuracyRow], budget: int) -> str:
    """Return the accuracies of one budget, as in "clean 97.4% | FGSM 61.2% | worst 15.7% [13.5, 18.0]  (n=1000)"."""
    *others, worst = rows
    images = len(record.labels)
    parts = [f"{_title(row, images)} {percent(row.estimates[budget].value)}" for row in others]
    mean = record.corrupted_accuracy()
    if mean is not None:
        parts.append(f"corruptions {percent(mean)}")
    estimate = worst.estimates[budget]
    parts.append(f"{worst.title} {percent(estimate.value)} {interval_text(estimate)}")
    return f"{' | '.join(parts)}  (n={images})"


def _title(row: AccuracyRow, images: int) -> str:
    """Return the title of a row, with the number of images if they are fewer than all."""
    own = min(estimate.images for estimate in row.estimates)
    return row.title if own == images else f"{row.title} (n={own})"


def _sanity(line: SanityLine) -> str:
    return f"{clean(line.name)}: {clean(line.text)}"


@renders(Robustness, "html")
def attack_html(record: Robustness) -> str:
    """Return the answer, the table of accuracies, the sanity lines and the notes as HTML without scripts or styles.

    Every string of the record is escaped.
    """
    rows, images = accuracy_rows(record), len(record.labels)
    head = _row("th", ["", *map(budget_text, record.budgets)])
    body = Markup("").join(_row("td", [_title(row, images), *map(_with_interval, row.estimates)]) for row in rows)
    table = Markup("<table><thead>{}</thead><tbody>{}</tbody></table>").format(head, body)
    sanity = Markup("").join(
        Markup("<li><b>{}</b> {}</li>").format(line.status, _sanity(line)) for line in ordered_sanity(record)
    )
    corruptions = corruptions_sentence(record)
    measures = ({"corruptions": corruptions} if corruptions else {}) | further_measures(record)
    lines = [f"{name if name == 'mCE' else name.capitalize()}: {text}" for name, text in measures.items()]
    lines += [f"Note: {clean(note)}" for note in record.notes]
    return str(
        Markup("<div><p><b>{}</b> {}</p><p>{}</p>{}{}{}</div>").format(
            attack_headline(record),
            trust_sentence(record),
            "; ".join(attacked(record)),
            table,
            Markup("<ul>{}</ul>").format(sanity) if sanity else "",
            Markup("").join(Markup("<p>{}</p>").format(line) for line in lines),
        )
    )


def _row(tag: str, cells: Iterable[str]) -> Markup:
    opened, closed = Markup(f"<{tag}>"), Markup(f"</{tag}>")
    return Markup("<tr>{}</tr>").format(Markup("").join(opened + cell + closed for cell in cells))


def _with_interval(estimate: Estimate) -> str:
    return f"{percent(estimate.value)} {interval_text(estimate)}"


def print_attack(record: Robustness, console: Console) -> None:
    """Print the answer, what was attacked, the accuracies, the sanity lines and the notes."""
    flagged = bool(record.flagged)
    answer = Text(attack_headline(record), style="bold").append(
        f" {trust_sentence(record)}", style="bold yellow" if flagged else "not bold"
    )
    print_paragraph("result", answer, console)
    print_paragraph("attacked", Text("; ".join(attacked(record))), console)
    for note in record.notes:
        print_paragraph("note", Text(clean(note)), console)
    console.print()
    columns = first_that_fits(attack_tables(record), width=console.width)
    print_columns(columns, console)
    hidden = len(record.budgets) - (len(columns) - 1)
    if hidden:
        text = f"{hidden} smaller {'budget needs' if hidden == 1 else 'budgets need'} a wider terminal"
        print_paragraph("", Text(text, style="dim"), console, indent=0)
    console.print()
    if corruptions := corruptions_sentence(record):
        print_paragraph("corrupted", Text(corruptions), console)
    for name, text in further_measures(record).items():
        print_paragraph(name, Text(text), console)
    print_paragraph("sanity", Text(sanity_counts(record)), console)
    for line in record.flagged:
        print_paragraph("FLAG", Text(_sanity(line), style="yellow"), console)
    for status in ("PASS", "not run"):
        if lines := [line for line in record.sanity if line.status == status]:
            names = (clean(line.name) if status == "PASS" else _sanity(line) for line in lines)
            print_paragraph(status, Text("; ".join(names), style="dim"), console)


def print_differences(differences: Sequence[Difference], console: Console, *, other: str) -> None:
    """Print the accuracies of the record minus those of another, with paired intervals."""
    changed = sum(difference.differs for difference in differences)
    text = f"accuracy minus that of {clean(other)} on the same images: {changed} of {len(differences)} differ"
    console.print()
    print_paragraph("compared", Text(text), console)
    if differences:
        console.print()
        print_columns(first_that_fits(_difference_tables(differences), width=console.width), console)


def _difference_tables(differences: Sequence[Difference]) -> list[tuple[Column, ...]]:
    measures = text_column("attack", [d.measure for d in differences], right=False)
    budgets = text_column("budget", [budget_text(d.eps) if d.eps else "-" for d in differences])
    points = text_column("difference", [_points(d.estimate.value) for d in differences])
    intervals = text_column(
        "95% interval",
        [f"{_points(d.estimate.interval.low)} to {_points(d.estimate.interval.high)}" for d in differences],
    )
    differs = text_column("differs", ["yes" if d.differs else "no" for d in differences], right=False)
    return [
        (measures, budgets, points, intervals, differs),
        (measures, budgets, points, intervals),
        (measures, budgets, points),
    ]


def _points(difference: float) -> str:
    """Write a difference of accuracies in percentage points, as in "+3.2" or "-0.1"."""
    return f"{100 * difference:+.1f}" if round(100 * difference, 1) else "0.0"


def attack_tables(record: Robustness) -> list[tuple[Column, ...]]:
    """Return the table of accuracies for terminals, from wide to narrow: with intervals, without, with fewer budgets.

    The largest budgets stay.
    """
    rows, images = accuracy_rows(record), len(record.labels)
    titles = text_column("attack", [_title(row, images) for row in rows], right=False)
    budgets = [budget_text(eps) for eps in record.budgets]
    wide, short = (
        [_budget_column(title, rows, i, intervals=intervals) for i, title in enumerate(budgets)]
        for intervals in (True, False)
    )
    return [(titles, *wide), *((titles, *short[first:]) for first in range(len(budgets)))]


def _budget_column(title: str, rows: Sequence[AccuracyRow], budget: int, *, intervals: bool) -> Column:
    estimates = [row.estimates[budget] for row in rows]
    width = max(len(interval_text(estimate)) for estimate in estimates)
    cells = []
    for row, estimate in zip(rows, estimates, strict=True):
        text = Text(percent(estimate.value), style="bold" if row.kind == "worst" else "")
        cells.append(text.append(f" {interval_text(estimate):>{width}}", style="not bold dim") if intervals else text)
    return Column(title=title, cells=tuple(cells), right=True)

"""Numbers, durations and verdicts as people read them: the same words in the terminal and in the report."""

import math
from collections.abc import Iterable, Sequence

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import SUPPORT, Summary
from clearhead.numerics.moments import Interval
from clearhead.theories.theory import Direction, TheoremCheck, Unit

__all__ = [
    "MARKS",
    "RULES",
    "agreement",
    "amount_of_memory",
    "clean",
    "count_theorems",
    "drawn",
    "duration",
    "hardest",
    "number",
    "place",
    "reason",
    "sentence",
    "short",
    "span",
]

MARKS = {
    Verdict.SUPPORTED: "*",
    Verdict.PARTLY_SUPPORTED: "",
    Verdict.NO_EVIDENCE: "~",
    Verdict.CONTRADICTED: "!",
    Verdict.NOT_APPLICABLE: "",
    Verdict.UNDECIDED: "?",
    Verdict.TRUE_BY_CONSTRUCTION: "=",
}
"""One character beside a head's number, so that no verdict is told by colour alone."""

_ADJUSTED = (
    "The p-value of lying beyond every control, adjusted among the heads of this claim (Benjamini and Hochberg), is "
)
_DIFFERS = _ADJUSTED + "at most 5 %, "

RULES = {
    Verdict.SUPPORTED: _DIFFERS
    + f"the value lies on the theory's side of chance, and the whole interval of the agreement is at least {SUPPORT}, "
    f"and at most {2 - SUPPORT} where a value may pass the theory's. Where the theory tells only in which direction "
    "from chance the value lies, it lies there.",
    Verdict.PARTLY_SUPPORTED: _DIFFERS
    + "and the value lies on the theory's side of chance, but the interval of the agreement reaches below "
    f"{SUPPORT}, or above {2 - SUPPORT} where a value may pass the theory's.",
    Verdict.NO_EVIDENCE: _ADJUSTED
    + "above 5 %: at least one control cannot be told from the head; or the theory's value lies among the controls.",
    Verdict.CONTRADICTED: _DIFFERS + "and the value does not lie on the theory's side of the controls.",
    Verdict.NOT_APPLICABLE: "The theory does not speak of this head, or nothing could be measured on it: no input was "
    "usable, or a value is not finite.",
    Verdict.UNDECIDED: "There is a value but no p-value: a test needs at least two inputs.",
    Verdict.TRUE_BY_CONSTRUCTION: "The statement holds for every head by the way it is computed, so it is not tested.",
}
"""The rule of `clearhead.audit.judging.judge` that leads to each verdict, in words."""


def sentence(summary: Summary) -> str:
    """Say in one sentence what the median head gives, beside the hardest control, and what most heads show."""
    statistic, unit = clean(summary.claim.statistic), summary.claim.unit
    if not math.isfinite(summary.median) and not summary.measured:
        return f"In no {unit} could {statistic} be measured."
    control = hardest(summary)
    spread = summary.spreads.get(control, math.nan)
    around = f" ± {number(spread)}" if math.isfinite(spread) else ""
    beside = [f"{number(summary.controls[control])}{around} for {clean(control)}"] if control else []
    if math.isfinite(summary.exact):
        beside.append(f"{number(summary.exact)} if the theory were exact")
    against = f", beside {' and '.join(beside)}" if beside else ""
    said = f"{statistic[:1].upper()}{statistic[1:]} is {number(summary.median)} in the median {unit}{against}"
    return f"{said}: {_judged(summary)}."


def _judged(summary: Summary) -> str:
    """The verdict that most heads share, and how many do, of those that the theory speaks of."""
    unit = summary.claim.unit
    counts = {v: c for v, c in summary.verdicts.items() if v is not Verdict.NOT_APPLICABLE and c}
    if not counts:
        return f"the theory speaks of none of the {summary.heads} {unit}s"
    verdict, count = max(counts.items(), key=lambda item: item[1])
    if summary.measured == 1:
        heads = f"the only {unit} judged"
    else:
        shared = f"all {count}" if count == summary.measured else f"{count} of {summary.measured}"
        heads = f"{shared} {unit}s" + (" judged" if summary.measured < summary.heads else "")
    return f"{_said(verdict, summary.claim.direction)} in {heads}"


def _said(verdict: Verdict, direction: Direction | None) -> str:
    """A verdict without its reason; where the theory tells a direction only, on which side of the controls it is."""
    if direction is None or verdict not in (Verdict.SUPPORTED, Verdict.CONTRADICTED):
        return str(verdict).split(":")[0]
    if verdict is Verdict.SUPPORTED:
        return f"{direction} than every control, as the theory says,"
    other = Direction.HIGHER if direction is Direction.LOWER else Direction.LOWER
    return f"{other} than every control, against the theory,"


def hardest(summary: Summary) -> str:
    """Name the decisive control whose median comes nearest to the theory, or the first if nobody knows; "" without."""
    return summary.claim.hardest({name: summary.controls[name] for name in summary.decisive}, summary.exact)


def place(finding: Finding) -> str:
    """Where a finding is of, as in "Layer 3, head 5"."""
    head = f", head {finding.head}" if finding.claim.unit is Unit.HEAD else ""
    return f"Layer {finding.layer}{head}"


def drawn(findings: Iterable[Finding]) -> list[str]:
    """Name every control of some findings with its draws, as in "random values, 6 draws"."""
    draws: dict[str, set[int]] = {}
    for chance in (chance for finding in findings for chance in finding.controls):
        draws.setdefault(chance.control, set()).add(chance.draws)
    return [f"{clean(name)}, {_counted(counts)}" for name, counts in draws.items()]


def _counted(counts: set[int]) -> str:
    least, most = min(counts), max(counts)
    if least != most:
        return f"{least:,} to {most:,} draws"
    return f"{most:,} draw" if most == 1 else f"{most:,} draws"


def number(value: float, *, digits: int = 3) -> str:
    """Write a number with so many significant digits; "-" where there is none."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e5:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{decimals}f}"


def short(value: float) -> str:
    """Write a number for a table: two significant digits and no zero before the point, as in .31 or 2e-7."""
    return _without_zero(number(value, digits=2))


def span(interval: Interval) -> str:
    """Write a range in words, as in "0.29 to 0.33"; "-" where it has no ends."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return "-"
    low, high = sorted((interval.low, interval.high))
    return f"{number(low)} to {number(high)}"


def agreement(value: float) -> str:
    """Write an agreement with two decimals, as in .31; fewer where it is far off the scale, "-" where there is none."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 999.5:
        return number(float(f"{value:.0e}"), digits=2) if abs(value) >= 1e5 else f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"
    return ".00" if text == "-0.00" else _without_zero(text)


def _without_zero(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    return sign + digits.removeprefix("0") if digits.startswith("0.") else text


def duration(seconds: float) -> str:
    """Write seconds, as in 0.42 s, 74 s or 12 min 5 s."""
    if seconds < 120:
        return f"{number(seconds, digits=2)} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def amount_of_memory(size: int | None) -> str:
    """Write bytes, as in 812 MB or 1.9 GB; "unknown" where the system does not tell."""
    if size is None:
        return "unknown"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def clean(text: str) -> str:
    """Replace what does not print (escape codes, line breaks, direction marks) in a name that came from outside."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def reason(finding: Finding) -> str:
    """Say why a head, or some of its inputs, could not be measured; empty where all were."""
    if finding.verdict is not Verdict.NOT_APPLICABLE and not finding.skipped:
        return ""
    return clean(finding.reason) or "no reason was recorded"


def count_theorems(theorems: Sequence[TheoremCheck]) -> str:
    """Count the statements that hold, those that do not, and apart from both those that could not be checked."""
    hold = sum(theorem.holds for theorem in theorems)
    unchecked = sum(bool(theorem.missing) for theorem in theorems)
    counts = f"{hold} hold, {len(theorems) - hold - unchecked} do not"
    return f"{counts}, {unchecked} not checked" if unchecked else counts

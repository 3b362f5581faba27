"""Numbers, headlines and the rules of verdicts in words, the same in the terminal, the page and a notebook."""

import math
from collections.abc import Iterable, Mapping

from clearhead.audit.findings import Finding, NoEvidence, Verdict
from clearhead.audit.judging import SMALL, SUPPORT, Summary
from clearhead.numerics.memory import format_bytes
from clearhead.numerics.moments import Interval
from clearhead.theories.theory import Claim, PlainWords, Role, Unit

_HEADLINES = {
    Verdict.SUPPORTED: "{subject} is supported {where}",
    Verdict.PARTLY_SUPPORTED: "{subject} is partly supported {where}",
    Verdict.NO_EVIDENCE: "no evidence for {subject} {where}",
    Verdict.CONTRADICTED: "{subject} is contradicted {where}",
    Verdict.UNDECIDED: "{subject} is undecided {where}",
    Verdict.TRUE_BY_CONSTRUCTION: "{subject} is true by construction {where}",
    Verdict.NOT_JUDGED: "{subject} is not judged {where}",
}


def headline(summary: Summary) -> str:
    """Return the answer in one sentence: the most frequent verdict, then the others, with their numbers of heads.

    Example: "No evidence for kernel PCA in 70 of 72 heads; supported in 2."
    """
    claim, unit = summary.claim, summary.claim.unit
    subject = clean(claim.theory if claim.role is Role.PRIMARY else f"{claim.theory} by {claim.statistic}")
    counts = {v: summary.verdicts[v] for v in _HEADLINES if summary.verdicts.get(v)}
    if not counts:
        return capitalised(f"{subject} applies to none of the {summary.heads} {unit}s.")
    (verdict, count), *others = sorted(counts.items(), key=lambda item: -item[1])
    text = _HEADLINES[verdict].format(subject=subject, where=_where(verdict, count, summary))
    rest = ", ".join(f"{other} in {n}" for other, n in others)
    return capitalised(f"{text}; {rest}." if rest else f"{text}.")


def _where(verdict: Verdict, count: int, summary: Summary) -> str:
    judged = summary.measured
    heads = f"{summary.claim.unit}" + ("s" if judged > 1 else "") + (" judged" if judged < summary.heads else "")
    if judged == 1:
        return f"in the only {heads}"
    if count < judged:
        return f"in {count} of {judged} {heads}"
    return f"in any of {judged} {heads}" if verdict is Verdict.NO_EVIDENCE else f"in all {judged} {heads}"


def main_verdict(summary: Summary) -> Verdict:
    """Return the verdict that most heads have among those that are judged; "not applicable" if none is."""
    counts = {v: summary.verdicts[v] for v in _HEADLINES if summary.verdicts.get(v)}
    return max(counts, key=lambda verdict: counts[verdict], default=Verdict.NOT_APPLICABLE)


def meaning(summary: Summary, words: PlainWords | None) -> str:
    """Return what the main verdict means for the reader; "" without words for it."""
    verdict = main_verdict(summary)
    if verdict is Verdict.UNDECIDED:
        return "There is no test yet: audit more inputs, and let the audit draw its baseline."
    kind = max(summary.no_evidence, key=lambda kind: summary.no_evidence[kind], default=None)
    if verdict is Verdict.NO_EVIDENCE and kind is NoEvidence.TOO_LITTLE_POWER:
        return "The audit cannot tell: with these inputs, not even half of the predicted effect would show. Audit more."
    if words is None or verdict is Verdict.NOT_JUDGED:
        return ""
    if verdict is Verdict.PARTLY_SUPPORTED:
        return "The theory describes these heads in part: they lie beyond every control, but short of the prediction."
    return str(getattr(words, verdict.name.lower()))


def evidence(summary: Summary) -> str:
    """Return the numbers behind a headline, and what kinds of heads without evidence there are."""
    return f"{numbers(summary)}{_power(summary)}{_borderline(summary)}"


def numbers(summary: Summary) -> str:
    """Return the numbers behind a headline in one sentence: the median, the control that decides and the prediction.

    Example: "Captured variance is 29% in the median head and 32% for a random value map; the theory predicts 100%."
    """
    claim = summary.claim
    statistic = capitalised(clean(claim.statistic))
    if not math.isfinite(summary.median):
        return f"{statistic} could not be measured in any {claim.unit}."
    control = deciding_control(summary)
    text = f"{statistic} is {in_prose(claim, summary.median)} in the median {claim.unit}"
    if control:
        text += f" and {in_prose(claim, summary.controls[control])} for {clean(control)}"
    if claim.direction is not None:
        text += f"; the theory predicts a {claim.direction} value than every control"
    elif math.isfinite(summary.predicted):
        text += f"; the theory predicts {in_prose(claim, summary.predicted)}"
    return f"{text}."


def _power(summary: Summary) -> str:
    """Return the kinds of "no evidence" and what would have been detected; "" where every head has evidence.

    Example: " Without evidence: 60 heads equivalent to the controls, 12 between controls. 34% of the predicted effect
    would have been detected in the median of them."
    """
    if not summary.no_evidence:
        return ""
    counts = sorted(summary.no_evidence.items(), key=lambda item: -item[1])
    (kind, count), *others = counts
    unit = summary.claim.unit + ("s" if count > 1 else "")
    text = f" Without evidence: {count} {unit} {_KINDS[kind]}"
    text += "".join(f", {n} {_KINDS[other]}" for other, n in others) + "."
    if not math.isfinite(summary.detectable):
        return text
    if summary.claim.direction is not None:
        effect = f"a difference of {in_prose(summary.claim, summary.detectable)} from the closest control"
    elif summary.detectable <= 1:
        effect = f"{number(100 * summary.detectable, digits=2)}% of the predicted effect"
    else:
        return f"{text} Even the whole predicted effect would not have been detected in the median of them."
    return f"{text} {capitalised(effect)} would have been detected in the median of them."


def _borderline(summary: Summary) -> str:
    """Return how many verdicts rounding could change."""
    if not summary.borderline:
        return ""
    one = summary.borderline == 1
    unit = f"{summary.claim.unit} is" if one else f"{summary.claim.unit}s are"
    verdicts = "its verdict" if one else "their verdicts"
    return f" {summary.borderline} {unit} borderline: rounding on another processor could change {verdicts}."


_KINDS = {
    NoEvidence.EQUAL: "equal to a control within rounding",
    NoEvidence.EQUIVALENT: "equivalent to the controls",
    NoEvidence.BETWEEN: "between controls",
    NoEvidence.TOO_LITTLE_POWER: "with too little power",
}


def in_prose(claim: Claim, value: float) -> str:
    """Write a value of a claim with two significant digits, as a percentage where the statistic is a share."""
    if not claim.percent or not math.isfinite(value):
        return number(value, digits=2)
    # Two digits would round 99.6% to 100%, which says that nothing is missing.
    digits = 3 if 0.9 <= abs(value) < 1 else 2
    return f"{number(100 * value, digits=digits)}%"


def interval_in_prose(claim: Claim, interval: Interval) -> str:
    """Write an interval of a claim's values, as in "27% to 30%"; "-" where an end is NaN."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return "-"
    return f"{in_prose(claim, interval.low)} to {in_prose(claim, interval.high)}"


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case and the others unchanged."""
    return text[:1].upper() + text[1:]


def closest_control(summary: Summary) -> str:
    """Return the name of the decisive control whose median is closest to the theory; "" without one.

    Where no prediction is known this is the first decisive control.
    """
    return summary.claim.closest({name: summary.controls[name] for name in summary.decisive}, summary.predicted)


def deciding_control(summary: Summary) -> str:
    """Return the name of the control that decides in most heads; the closest one if no head was tested."""
    return summary.deciding if summary.deciding in summary.controls else closest_control(summary)


def position(finding: Finding) -> str:
    """Return the layer and head of a finding, as in "Layer 3, head 5"."""
    head = f", head {finding.head}" if finding.claim.unit is Unit.HEAD else ""
    return f"Layer {finding.layer}{head}"


def control_draws(findings: Iterable[Finding]) -> list[str]:
    """Return every control of some findings with its number of draws, as in "random values, 6 draws"."""
    draws: dict[str, set[int]] = {}
    for control in (control for finding in findings for control in finding.controls):
        draws.setdefault(control.name, set()).add(control.draws)
    return [f"{clean(name)}, {_draws(counts)}" for name, counts in draws.items()]


def _draws(counts: set[int]) -> str:
    least, most = min(counts), max(counts)
    if least != most:
        return f"{least:,} to {most:,} draws"
    return f"{most:,} draw" if most == 1 else f"{most:,} draws"


def number(value: float, *, digits: int = 3) -> str:
    """Write a number with `digits` significant digits; "-" for NaN."""
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
    """Write an interval in words, as in "0.29 to 0.33"; "-" where an end is NaN."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return "-"
    low, high = sorted((interval.low, interval.high))
    return f"{number(low)} to {number(high)}"


def agreement(value: float) -> str:
    """Write an agreement with two decimals, as in .31; with fewer where it is large, "-" where it is not finite."""
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
    """Write bytes, as in 812 MB or 1.9 GB; "unknown" where the operating system does not report it."""
    return "unknown" if size is None else format_bytes(size)


def clean(text: str) -> str:
    """Replace characters that do not print (escape codes, line breaks, direction marks) in a name from outside."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def skip_reason(finding: Finding) -> str:
    """Return why a head, or some of its inputs, could not be measured; "" where all were."""
    if finding.verdict is not Verdict.NOT_APPLICABLE and not finding.skipped:
        return ""
    return clean(finding.reason) or "no reason was recorded"


def skip_sentence(summary: Summary, reasons: Mapping[str, int]) -> str:
    """Return why a claim is judged in no head; "" if it is judged in some."""
    if summary.measured:
        return ""
    return (
        capitalised(
            "; ".join(f"{reason} ({count})" if len(reasons) > 1 else reason for reason, count in reasons.items())
        )
        + "."
    )


MARKS = {
    Verdict.SUPPORTED: "*",
    Verdict.PARTLY_SUPPORTED: "+",
    Verdict.NO_EVIDENCE: "~",
    Verdict.CONTRADICTED: "!",
    Verdict.NOT_APPLICABLE: "",
    Verdict.UNDECIDED: "?",
    Verdict.TRUE_BY_CONSTRUCTION: "=",
    Verdict.NOT_JUDGED: "",
}
"""One character next to a head's number, so that no verdict is shown by colour alone."""

_ADJUSTED = (
    "The p-value for lying beyond every control, adjusted over the heads of this claim (Benjamini and Hochberg), is "
)
_SIGNIFICANT = _ADJUSTED + "at most 5%"

RULES = {
    Verdict.SUPPORTED: f"{_SIGNIFICANT}, the value lies on the theory's side of the controls, and the whole 95% "
    f"interval of the agreement is at least {SUPPORT} (and at most {2 - SUPPORT} where a value can exceed the "
    "prediction). A claim that predicts only a direction needs no more than the right side.",
    Verdict.PARTLY_SUPPORTED: f"{_SIGNIFICANT} and the value lies on the theory's side of the controls, but the 95% "
    f"interval of the agreement reaches below {SUPPORT} (or above {2 - SUPPORT} where a value can exceed the "
    "prediction).",
    Verdict.NO_EVIDENCE: f"{_ADJUSTED}above 5%: the head cannot be distinguished from at least one control. Or the "
    "predicted value itself lies among the controls. Four kinds: equal to a control, if arithmetic resolves no "
    "difference on any input; equivalent to the controls, if a head that follows "
    f"the theory by half would have been detected (a difference of {SMALL} where only a direction is predicted); "
    "between controls, if it lies significantly above one and below another; too little power otherwise.",
    Verdict.CONTRADICTED: f"{_SIGNIFICANT}, but the value lies on the side of the controls away from the theory.",
    Verdict.NOT_APPLICABLE: "The theory makes no statement about this head, or the statistic could not be measured: "
    "no input was usable, or a value is not finite.",
    Verdict.UNDECIDED: "There is a value but no test: it needs two inputs, a spread, and a baseline where the theory "
    "is judged by the model before training.",
    Verdict.TRUE_BY_CONSTRUCTION: "The statement holds for every head because of how it is computed, so it is not "
    "tested.",
    Verdict.NOT_JUDGED: "A statistic as published. It is shown with its value for random values and not tested.",
}
"""The rule of `clearhead.audit.judging.judge` that leads to each verdict, in words."""

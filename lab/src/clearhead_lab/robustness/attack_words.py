"""The accuracies and sanity lines of an evaluation in words, the same on the page, in a terminal and in a notebook."""

from dataclasses import dataclass
from typing import Literal

from clearhead.report.wording import clean
from clearhead_lab.robustness.metrics import CALIBRATION_BINS
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import Estimate, SanityLine, budget_text

_ORDER = {"FLAG": 0, "PASS": 1, "not run": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyRow:
    """The accuracies of clean images, of one attack or of the worst case, by budget."""

    kind: Literal["clean", "attack", "worst"]
    title: str
    estimates: tuple[Estimate, ...]


def accuracy_rows(record: Robustness) -> tuple[AccuracyRow, ...]:
    """Return the rows of the table of accuracies: clean, every attack, and the worst case."""
    clean_accuracy = record.clean_accuracy()
    return (
        AccuracyRow(kind="clean", title="clean", estimates=(clean_accuracy,) * len(record.budgets)),
        *(
            AccuracyRow(
                kind="attack", title=clean(title), estimates=tuple(record.accuracy(name, eps) for eps in record.budgets)
            )
            for name, title in record.attacks.items()
        ),
        AccuracyRow(kind="worst", title="worst", estimates=tuple(map(record.worst, record.budgets))),
    )


def attack_headline(record: Robustness) -> str:
    """Return the answer in one sentence, at the largest budget.

    Example: "Robust accuracy 12.3% at 8/255 (clean 74.1%, 500 images): worst over 3 attacks."
    """
    eps, titles = max(record.budgets), [clean(title) for title in record.attacks.values()]
    over = f"worst over {len(titles)} attacks" if len(titles) > 1 else f"one attack, {''.join(titles)}"
    return (
        f"Robust accuracy {percent(record.worst(eps).value)} at {budget_text(eps)}{budget_unit(record)} "
        f"(clean {percent(record.clean_accuracy().value)}, {counted(len(record.labels), 'image')}): {over}."
    )


def trust_sentence(record: Robustness) -> str:
    """Return what the sanity lines say about the headline in one sentence."""
    count = len(record.flagged)
    if count:
        return f"Do not trust it yet: {counted(count, 'sanity line')} {'is' if count == 1 else 'are'} flagged."
    passed = sum(line.status == "PASS" for line in record.sanity)
    if not passed:
        return "Not checked: no sanity check was run."
    return f"{counted(passed, 'sanity check')} {'passes' if passed == 1 else 'pass'}, none is flagged."


def budget_unit(record: Robustness) -> str:
    """Return what a budget is in, if not in pixels."""
    return " in normalised inputs" if record.protocol == "paper" else ""


def attacked(record: Robustness) -> list[str]:
    """Return what was attacked and how: model, data, images, suite, protocol, seed, normalisation."""
    wrong = sum(a != b for a, b in zip(record.clean, record.labels, strict=True))
    images = counted(len(record.labels), "image")
    settings = record.settings
    return [
        f"model {clean(record.model)}",
        *([f"data {clean(record.data)}"] if record.data else []),
        f"{images}, {wrong:,} misclassified before any attack" if wrong else images,
        f"suite {clean(record.suite)}",
        f"protocol {clean(record.protocol)}",
        *(f"{name} {clean(str(settings[name]))}" for name in ("seed", "normalisation") if name in settings),
    ]


def ordered_sanity(record: Robustness) -> list[SanityLine]:
    """Return the sanity lines, those that are flagged first and those that were not run last."""
    return sorted(record.sanity, key=lambda line: _ORDER.get(line.status, len(_ORDER)))


def sanity_counts(record: Robustness) -> str:
    """Count the sanity lines, as in "6 PASS, 2 FLAG, 1 not run"; "not run" without any."""
    counts = {status: sum(line.status == status for line in record.sanity) for status in ("PASS", "FLAG", "not run")}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "not run"


def corruptions_sentence(record: Robustness) -> str:
    """Return the mean accuracy over corruptions in words; "" if there were none."""
    mean = record.corrupted_accuracy()
    if mean is None:
        return ""
    severities = max(map(len, record.corruptions.values()))
    return (
        f"{percent(mean)}, mean over {counted(len(record.corruptions), 'corruption')} at "
        f"{severities} {'severity' if severities == 1 else 'severities'}"
    )


def further_measures(record: Robustness) -> dict[str, str]:
    """Return the other numbers in words, by a short name: calibration, detection of other classes, corruption error."""
    measures = {}
    if record.calibration_error is not None:
        measures["confidence"] = (
            f"calibration error {percent(record.calibration_error)}: the mean gap between confidence and accuracy of "
            f"the clean predictions, in {CALIBRATION_BINS} bins"
        )
    if (found := record.detection) is not None:
        of_data = f" of {clean(found.data)}" if found.data else ""
        measures["detection"] = (
            f"area under precision-recall {percent(found.area)} for {counted(found.images, 'image')}{of_data} as other "
            f"classes, by low confidence; random scores have {percent(found.chance)}"
        )
    if (compared := record.corruption_comparison) is not None:
        baseline = clean(compared.baseline)
        measures["mCE"] = (
            f"none against {baseline}: {clean(compared.reason)}"
            if compared.mean is None
            else f"{compared.mean:.1f}% of the errors of {baseline}, mean over "
            f"{counted(len(compared.by_corruption), 'corruption')}; below 100% there are fewer"
        )
    return measures


def percent(value: float) -> str:
    """Write a share with one decimal, as in 12.3%; with more where it would read as none or all, as in 99.97%."""
    texts = [f"{100 * value:.{decimals}f}%" for decimals in (1, 2, 3)]
    if value in (0.0, 1.0):
        return texts[0]
    return next((text for text in texts if float(text[:-1]) not in (0.0, 100.0)), texts[-1])


def interval_text(estimate: Estimate) -> str:
    """Write the interval of an accuracy in percent, as in "[13.5, 18.0]"."""
    return f"[{percent(estimate.interval.low)[:-1]}, {percent(estimate.interval.high)[:-1]}]"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 image" or "1,000 images"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

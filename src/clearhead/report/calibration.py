"""What the calibration in the package says about the theories of an audit."""

import functools
from collections.abc import Mapping

from clearhead.audit.record import AuditRecord
from clearhead.calibration.results import Calibration, RandomLevel, shipped_calibration


def calibration_sentences(record: AuditRecord) -> dict[str, str]:
    """Return power and false positives in words, by the title of each theory of the record that was calibrated."""
    calibration = _shipped()
    if calibration is None:
        return {}
    sentences = {source.title: calibration.sentence(source.key) for source in record.theories}
    return {title: sentence for title, sentence in sentences.items() if sentence}


def calibration_summary(record: AuditRecord) -> str:
    """Return the counts of all theories of the record in one sentence; "" if none was calibrated."""
    calibration = _shipped()
    counts = {} if calibration is None else {s.title: calibration.counts(s.key) for s in record.theories}
    known = [f"{title} {', '.join(map(str, of_theory))}" for title, of_theory in counts.items() if of_theory]
    return f"planted heads detected, those of half strength, random models flagged: {'; '.join(known)}" if known else ""


def levels_of_random_models(record: AuditRecord) -> dict[str, Mapping[str, RandomLevel]]:
    """Return what statistics as published are on random models, by the title of each theory and statistic."""
    calibration = _shipped()
    return {} if calibration is None else {s.title: calibration.published(s.key) for s in record.theories}


@functools.cache
def _shipped() -> Calibration | None:
    return shipped_calibration()

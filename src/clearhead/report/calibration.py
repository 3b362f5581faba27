"""What the calibration in the package says about the theories of an audit."""

import functools

from clearhead.audit.record import AuditRecord
from clearhead.calibration.results import Calibration, shipped_calibration

__all__ = ["calibration_sentences"]


def calibration_sentences(record: AuditRecord) -> dict[str, str]:
    """Return power and false positives in words, by the title of each theory of the record that was calibrated."""
    calibration = _shipped()
    if calibration is None:
        return {}
    sentences = {source.title: calibration.sentence(source.key) for source in record.theories}
    return {title: sentence for title, sentence in sentences.items() if sentence}


@functools.cache
def _shipped() -> Calibration | None:
    return shipped_calibration()

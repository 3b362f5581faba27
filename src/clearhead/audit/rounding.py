"""What rounding on another processor could make of a finding."""

import dataclasses
import math

from clearhead.audit.findings import ControlResult, Finding
from clearhead.numerics.moments import Interval, difference_p_value

__all__ = ["ROUNDING", "move_by_rounding"]

ROUNDING = ((-1, -1), (-1, 1), (1, -1), (1, 1))
"""The directions in which values and spreads of all heads of a claim are moved at once."""
SURE = 0.5
"""Rounding moves a difference on one input by at most this multiple of its resolution."""


def move_by_rounding(finding: Finding, value: int, spread: int) -> Finding:
    """Return the finding with its value higher or lower by its resolution, and its spread by half of it.

    value, spread: 1 or -1
    """
    if not finding.inputs:
        return finding
    step = SURE * finding.resolution * spread / math.sqrt(finding.inputs)

    def moved(interval: Interval) -> Interval:
        shift = value * finding.resolution
        return Interval(interval.low + shift - step, interval.high + shift + step)

    return dataclasses.replace(
        finding,
        controls=tuple(_moved(control, value, spread) for control in finding.controls),
        interval=moved(finding.interval),
        deviation=None if finding.deviation is None else moved(finding.deviation),
    )


def _moved(control: ControlResult, value: int, spread: int) -> ControlResult:
    """Return the control, lower where the head is higher, with the p-value of the difference that this makes."""
    if control.largest <= SURE or not control.resolution:
        return control
    shift = value * control.resolution
    if control.largest <= 1 + SURE:  # a tie that could be a difference, or a difference that could be a tie
        difference, error = (shift, 0.0) if control.equal else (0.0, 0.0)
        resolution = control.resolution * (SURE if control.equal else 1)
    else:
        difference, resolution = control.difference + shift, control.resolution
        error = max(control.error + spread * SURE * resolution / math.sqrt(control.freedom + 1), 0.0)
    p = float(difference_p_value(difference, error, control.freedom, resolution))
    return dataclasses.replace(
        control, value=control.value - shift, difference=difference, error=error, resolution=resolution, p_value=p
    )

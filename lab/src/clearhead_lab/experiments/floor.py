"""The floor of a study: what a model reaches that learned nothing. Variants that do not exceed it are no result."""

from collections.abc import Mapping
from dataclasses import dataclass

from clearhead.report.tables import estimate

DID_NOT_TRAIN = "did not train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a measure is without looking at the input.

    measure: its name among the measures of a run
    value: its value for the majority class, for chance, or for words by their frequency
    name: which of them
    lower_is_better: True for a measure such as perplexity
    """

    measure: str
    value: float
    name: str
    lower_is_better: bool = False

    def trained(self, measured: Mapping[str, Mapping[int, Mapping[str, float]]]) -> tuple[str, ...]:
        """Return the variants that are above the floor with their whole 95 % interval over seeds.

        One seed has no interval: its value is compared. A variant of which one of few seeds failed has a wide interval,
        so that it is not among them.

        measured: by variant, seed and measure
        """
        return tuple(variant for variant, seeds in measured.items() if self._exceeded(seeds))

    def _exceeded(self, seeds: Mapping[int, Mapping[str, float]]) -> bool:
        sign = -1 if self.lower_is_better else 1
        found = estimate([sign * values[self.measure] for values in seeds.values()])
        if found is None:
            return False
        return (found.mean if found.interval is None else found.interval.low) > sign * self.value

"""The counts of a calibration, the file that holds them, and what they say about a theory."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.audit.findings import Finding, Verdict
from clearhead.records import read_record
from clearhead.stored_json import DamagedFileError, read_json, write_json

__all__ = ["FLAGGED", "Calibration", "Count", "PlantedCounts", "RandomCounts", "RandomLevel", "shipped_calibration"]

FORMAT = "clearhead-calibration/1"
SHIPPED = "shipped.json"
FLAGGED = (Verdict.SUPPORTED, Verdict.PARTLY_SUPPORTED)
"""The verdicts by which the audit says that a head follows a theory."""
WITHOUT_TEST = (Verdict.NOT_APPLICABLE, Verdict.UNDECIDED, Verdict.TRUE_BY_CONSTRUCTION)
POWER = 0.8
"""A strength is detectable if at least this share of planted heads is detected."""


@dataclass(frozen=True, slots=True)
class Count:
    """`count` of `total`."""

    count: int
    total: int

    def __str__(self) -> str:
        return f"{self.count}/{self.total}"


@dataclass(slots=True, kw_only=True)
class PlantedCounts:
    """Planted heads of one strength and their verdicts by statistic; the other heads of the same models."""

    heads: int = 0
    verdicts: dict[str, dict[str, int]] = field(default_factory=dict)
    other_heads: int = 0
    other_called: int = 0

    def add(self, planted: Iterable[Finding], others: Iterable[Finding], *, heads: int, primary: str) -> None:
        """Count the findings of one model with this number of planted heads."""
        self.heads += heads
        for finding in planted:
            verdicts = self.verdicts.setdefault(finding.claim.statistic, {})
            verdicts[str(finding.verdict)] = verdicts.get(str(finding.verdict), 0) + 1
        judged = [f for f in others if f.claim.statistic == primary and f.verdict not in WITHOUT_TEST]
        self.other_heads += len(judged)
        self.other_called += sum(f.verdict in FLAGGED for f in judged)

    def count(self, statistic: str, verdicts: Iterable[Verdict] = FLAGGED) -> Count:
        """Return how many planted heads have one of the verdicts, by default one that says they follow the theory."""
        counts = self.verdicts.get(statistic, {})
        return Count(sum(counts.get(str(verdict), 0) for verdict in verdicts), self.heads)


@dataclass(frozen=True, slots=True)
class RandomLevel:
    """A statistic on random models: median and 5 to 95 % range over models, each model by the median over its heads."""

    median: float
    low: float
    high: float
    models: int


@dataclass(slots=True, kw_only=True)
class RandomCounts:
    """Random models: audited, with a tested head, with a flagged head; and heads: tested, flagged.

    published: the median over heads in every model, by statistic as published
    """

    audited: int = 0
    models: int = 0
    called_models: int = 0
    heads: int = 0
    called_heads: int = 0
    published: dict[str, list[float]] = field(default_factory=dict)

    def add(self, findings: Iterable[Finding], published: Iterable[Finding] = ()) -> None:
        """Count the findings of one model on one claim, and keep those on statistics as published."""
        counts = Counter(finding.verdict for finding in findings if finding.verdict not in WITHOUT_TEST)
        flagged = sum(counts[verdict] for verdict in FLAGGED)
        self.audited += 1
        self.models += bool(counts)
        self.called_models += bool(flagged)
        self.heads += counts.total()
        self.called_heads += flagged
        values = defaultdict(list)
        for finding in published:
            if math.isfinite(finding.value):
                values[finding.claim.statistic].append(finding.value)
        for statistic, of_heads in values.items():
            self.published.setdefault(statistic, []).append(float(f"{np.median(of_heads):.4g}"))

    def merge(self, other: "RandomCounts") -> None:
        """Add the counts of other models."""
        self.audited += other.audited
        self.models += other.models
        self.called_models += other.called_models
        self.heads += other.heads
        self.called_heads += other.called_heads
        for statistic, values in other.published.items():
            self.published[statistic] = [*self.published.get(statistic, []), *values]


@dataclass(slots=True, kw_only=True)
class Calibration:
    """Counts of planted heads and of random models, with the settings that they depend on.

    settings: the seed, the sizes of models and inputs, and the audited model if there is one
    primary: the primary statistic of each theory, by key
    planted: by theory and strength; variants: other heads of strength 1, by theory and name
    random: by family and theory
    """

    settings: dict[str, Any]
    version: str
    primary: dict[str, str] = field(default_factory=dict)
    planted: dict[str, dict[str, PlantedCounts]] = field(default_factory=dict)
    variants: dict[str, dict[str, PlantedCounts]] = field(default_factory=dict)
    random: dict[str, dict[str, RandomCounts]] = field(default_factory=dict)

    def strengths(self, theory: str) -> list[float]:
        """Return the planted strengths of a theory, in increasing order."""
        return sorted(float(strength) for strength in self.planted.get(theory, {}))

    def at(self, theory: str, strength: float) -> PlantedCounts:
        """Return the counts of one theory and strength, which begin at zero."""
        return self.planted.setdefault(theory, {}).setdefault(f"{strength:g}", PlantedCounts())

    def rows(self, theory: str) -> list[tuple[str, PlantedCounts]]:
        """Return the counts of all planted heads of a theory with their strength, and what else is varied, in words."""
        strengths = [(f"{strength:g}", self.at(theory, strength)) for strength in self.strengths(theory)]
        return strengths + [(f"1, {name}", counts) for name, counts in self.variants.get(theory, {}).items()]

    def variant(self, theory: str, name: str) -> PlantedCounts:
        """Return the counts of one variant, which begin at zero."""
        return self.variants.setdefault(theory, {}).setdefault(name, PlantedCounts())

    def detected(self, theory: str, strength: float) -> Count:
        """Return how many planted heads of this strength are detected by the primary claim."""
        return self.at(theory, strength).count(self.primary[theory])

    def random_counts(self, theory: str) -> RandomCounts:
        """Return the counts of a theory over all families."""
        total = RandomCounts()
        for by_theory in self.random.values():
            total.merge(by_theory.get(theory, RandomCounts()))
        return total

    def published(self, theory: str) -> dict[str, RandomLevel]:
        """Return what every statistic as published of a theory is on random models; {} if it was not measured."""
        levels = {}
        for statistic, values in self.random_counts(theory).published.items():
            low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
            levels[statistic] = RandomLevel(float(median), float(low), float(high), len(values))
        return levels

    def detectable(self, theory: str) -> float | None:
        """Return the smallest strength from which on at least 80 % of planted heads are detected; None without."""
        smallest = None
        for strength in reversed([strength for strength in self.strengths(theory) if strength > 0]):
            detected = self.detected(theory, strength)
            if not detected.total or detected.count < POWER * detected.total:
                break
            smallest = strength
        return smallest

    def counts(self, theory: str) -> list[Count]:
        """Return the detected heads of strengths 1 and .5, and the random models flagged; [] if not planted."""
        planted = self.strengths(theory)
        if not {1.0, 0.5} <= set(planted):
            return []
        random = self.random_counts(theory)
        flagged = [Count(random.called_models, random.models)] if random.models else []
        return [self.detected(theory, 1.0), self.detected(theory, 0.5), *flagged]

    def sentence(self, theory: str) -> str:
        """Return the power and the false positives of a theory in words; "" if neither was measured."""
        parts = []
        names = {1.0: "a head that follows the theory exactly is detected", 0.5: "half strength"}
        for strength, name in names.items():
            counts = self.planted.get(theory, {}).get(f"{strength:g}", PlantedCounts())
            if counts.heads:
                detected = self.detected(theory, strength)
                supported = counts.count(self.primary[theory], (Verdict.SUPPORTED,))
                weaker = f" (supported {supported})" if strength == 1 and supported != detected else ""
                parts.append(f"{name} {detected}{weaker}")
        random = self.random_counts(theory)
        if random.models:
            parts.append(f"random models flagged {Count(random.called_models, random.models)}")
        return "; ".join(parts)

    def write(self, path: Path) -> None:
        """Write the calibration as JSON with a checksum."""
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Return the calibration of a file. Raise FileNotFoundError if it is missing, DamagedFileError if damaged."""
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise DamagedFileError(f"{path} is not a calibration ({FORMAT}); delete it and run the command again")
        # Files of earlier versions have no variants, and no values as published.
        return read_record(cls, content, path, remedy="delete it and run the command again", defaults=True)


def shipped_calibration() -> Calibration | None:
    """Return the calibration in the package; None if the package has none or it cannot be read."""
    with resources.as_file(resources.files("clearhead.calibration") / SHIPPED) as path:
        try:
            return Calibration.read(path)
        except (FileNotFoundError, DamagedFileError):
            return None

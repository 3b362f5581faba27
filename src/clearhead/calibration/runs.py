"""Run a calibration: audit models with planted heads and models with random weights, and count the verdicts."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead import __version__
from clearhead.audit.baseline import BASELINE_DRAWS
from clearhead.audit.options import AuditOptions, Baseline, Claims
from clearhead.audit.run import audit_with
from clearhead.calibration.planted_model import Shape
from clearhead.calibration.planting import PLANTS, VARIANTS, Plant
from clearhead.calibration.random_models import RandomModels
from clearhead.calibration.results import Calibration, PlantedCounts, RandomCounts
from clearhead.errors import InputError
from clearhead.theories.catalogue import find_theories
from clearhead.theories.theory import Need, Role, Theory, Unit

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
OF_PLANTED, OF_RANDOM = 0, 1
"""Separate the seeds of planted and of random models."""
OF_VARIANTS = 2000
"""Separates the seeds of variants from those of strengths, which are at most 1000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """What to calibrate.

    options: the theories, the seed of all random draws, the device and the number of workers; all claims are measured
    repeats: planted heads of each strength; models: random models, taken from the families in turn
    model: name of the model whose sizes are used; "" for none
    """

    options: AuditOptions = field(default_factory=AuditOptions)
    repeats: int = 20
    models: int = 20
    shape: Shape = field(default_factory=Shape)
    strengths: Sequence[float] = STRENGTHS
    model: str = ""

    def settings(self) -> dict[str, Any]:
        """Return what the counts depend on, except for how many there are."""
        return {"seed": self.options.seed, "model": self.model, "shape": asdict(self.shape)}


def calibrate(
    request: CalibrationRequest,
    families: Sequence[RandomModels],
    *,
    path: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Calibration:
    """Run what is missing and return all counts. With a `path`, they are read from it and written after every model.

    progress: called with what is being audited, the number of audits done and their total
    """
    theories = find_theories(request.options.theories)
    calibration = _begin(request, path)
    for theory in theories:
        calibration.primary[theory.key] = next(c.statistic for c in theory.claims if c.role is Role.PRIMARY)
    steps = [*_planted_steps(request, theories, calibration), *_random_steps(request, theories, families, calibration)]
    for number, (what, run) in enumerate(steps):
        progress(what, number, len(steps))
        run()
        if path is not None:
            calibration.write(path)
    progress("done", len(steps), len(steps))
    return calibration


def _begin(request: CalibrationRequest, path: Path | None) -> Calibration:
    """Return the calibration of the file, or an empty one. Raise InputError if the file is of other settings."""
    empty = Calibration(settings=request.settings(), version=__version__)
    if path is None or not path.exists():
        return empty
    stored = Calibration.read(path)
    if (stored.settings, stored.version) != (empty.settings, empty.version):
        raise InputError(
            f"{path} is a calibration with another seed, model or version; choose another folder with --out"
        )
    return stored


Step = tuple[str, Callable[[], None]]


def _planted_steps(request: CalibrationRequest, theories: Sequence[Theory], calibration: Calibration) -> Iterator[Step]:
    layers = request.shape.layers
    for theory in (theory for theory in theories if theory.key in PLANTS):
        for row in _rows(request, theory, calibration):
            for first in range(row.counts.heads, request.repeats, layers):
                count = min(layers, request.repeats - first)
                yield (
                    f"{theory.title}, strength {row.name}",
                    functools.partial(_audit_planted, request, theory, row, first, count, calibration.primary),
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row of the table of planted heads: its counts, and how its heads are planted.

    number: separates the seeds of the rows of a theory
    """

    name: str
    counts: PlantedCounts
    plant: Plant
    strength: float
    number: int


def _rows(request: CalibrationRequest, theory: Theory, calibration: Calibration) -> Iterator[_Row]:
    """Yield the strengths of a theory, and its variants of strength 1 if that is one of them."""
    for strength in request.strengths:
        counts = calibration.at(theory.key, strength)
        plant, number = PLANTS[theory.key], round(1000 * strength)
        yield _Row(name=f"{strength:g}", counts=counts, plant=plant, strength=strength, number=number)
    variants = VARIANTS.get(theory.key, {}) if 1.0 in request.strengths else {}
    for index, (name, plant) in enumerate(variants.items()):
        counts = calibration.variant(theory.key, name)
        yield _Row(name=f"1, {name}", counts=counts, plant=plant, strength=1.0, number=OF_VARIANTS + index)


def _audit_planted(
    request: CalibrationRequest, theory: Theory, row: _Row, first: int, count: int, primary: Mapping[str, str]
) -> None:
    """Audit one model in which `count` layers have a planted head."""
    entropy = (request.options.seed, OF_PLANTED, list(PLANTS).index(theory.key), row.number, first)
    planted = row.plant(request.shape, row.strength, count, _generator(*entropy, 0))
    draws = [planted.draw_baseline(_generator(*entropy, 1 + draw)) for draw in range(BASELINE_DRAWS)]
    record = audit_with(
        _of_one_model(request, [theory], _seed(*entropy)),
        planted.model,
        planted.batches,
        baseline=draws if Need.BASELINE in theory.needs else None,
    )
    findings = [f for f in record.findings if f.claim.unit is Unit.HEAD and f.claim.role is not Role.PUBLISHED]
    row.counts.add(
        (f for f in findings if (f.layer, f.head) in planted.heads),
        (f for f in findings if (f.layer, f.head) not in planted.heads),
        heads=count,
        primary=primary[theory.key],
    )


def _random_steps(
    request: CalibrationRequest,
    theories: Sequence[Theory],
    families: Sequence[RandomModels],
    calibration: Calibration,
) -> Iterator[Step]:
    for index in range(request.models if families else 0):
        family = families[index % len(families)]
        missing = [theory for theory in theories if calibration.random_counts(theory.key).audited <= index]
        if missing:
            yield (
                f"random models, {family.name}",
                functools.partial(_audit_random, request, missing, family, index, calibration),
            )


def _audit_random(
    request: CalibrationRequest,
    theories: Sequence[Theory],
    family: RandomModels,
    index: int,
    calibration: Calibration,
) -> None:
    seeds = [_seed(request.options.seed, OF_RANDOM, index, draw) for draw in range(BASELINE_DRAWS + 2)]
    compared = tuple(theory.key for theory in theories if Need.BASELINE in theory.needs)
    record = audit_with(
        replace(_of_one_model(request, theories, seeds[0]), baseline_for=compared),
        family.draw(seeds[0]),
        family.batches(seeds[1]),
        baseline=[family.draw(seed) for seed in seeds[2:]] if compared else None,
    )
    by_theory = calibration.random.setdefault(family.name, {})
    for theory in theories:
        findings = [f for f in record.findings if f.claim.theory == theory.title]
        by_theory.setdefault(theory.key, RandomCounts()).add(
            (f for f in findings if f.claim.statistic == calibration.primary[theory.key]),
            (f for f in findings if f.claim.role is Role.PUBLISHED),
        )


def _of_one_model(request: CalibrationRequest, theories: Sequence[Theory], seed: int) -> AuditOptions:
    """Return the options of the audit of one model, whose baseline is given."""
    keys = tuple(theory.key for theory in theories)
    return replace(request.options, theories=keys, claims=Claims.ALL, seed=seed, baseline=Baseline.NONE)


def _seed(*entropy: int) -> int:
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def _generator(*entropy: int) -> torch.Generator:
    return torch.Generator().manual_seed(_seed(*entropy))

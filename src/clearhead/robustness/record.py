"""The record of an evaluation: what every attack did to every image, with intervals and sanity lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.moments import Interval, wilson_interval
from clearhead.shapes import Float, Int

__all__ = [
    "AttackResult",
    "Difference",
    "Estimate",
    "Example",
    "Robustness",
    "SanityLine",
    "bootstrap_mean",
    "budget_text",
]

DRAWS = 2000
"""Bootstrap samples."""

Status = Literal["PASS", "FLAG", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over images with its 95% bootstrap interval, and the number of images."""

    value: float
    interval: Interval
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """The predictions for the first images after an attack; -1 for an image that was misclassified without it.

    largest_change: of a pixel
    """

    attack: str
    title: str
    eps: float
    predicted: tuple[int, ...]
    largest_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SanityLine:
    """A check of the evaluation itself: PASS, FLAG if the numbers overstate the robustness, or "not run"."""

    name: str
    status: Status
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An image, the same after an attack, its label and both predictions. Pixels (c, y, x) are from 0 to 1."""

    image: Float[Tensor, "c y x"]
    attacked: Float[Tensor, "c y x"]
    label: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The accuracy of one model minus that of another on the same images, with its paired bootstrap interval."""

    measure: str
    eps: float
    estimate: Estimate

    @property
    def differs(self) -> bool:
        """True if the interval does not contain zero."""
        return not self.estimate.interval.low <= 0 <= self.estimate.interval.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """The accuracy of a classifier without and under attacks.

    labels, clean: the labels, and the predictions for the images as they are
    results: one for each attack and budget
    corruptions: the accuracy by corruption, at severities 1 to 5
    notes: what to know before trusting the numbers
    settings: everything else that the numbers depend on
    """

    model: str
    data: str
    suite: str
    protocol: str
    budgets: tuple[float, ...]
    labels: tuple[int, ...]
    clean: tuple[int, ...]
    results: tuple[AttackResult, ...]
    sanity: tuple[SanityLine, ...] = ()
    corruptions: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    example_attack: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flagged(self) -> tuple[SanityLine, ...]:
        """The sanity lines that say FLAG."""
        return tuple(line for line in self.sanity if line.status == "FLAG")

    @property
    def attacks(self) -> dict[str, str]:
        """The titles of the attacks by name."""
        return {result.attack: result.title for result in self.results}

    def clean_accuracy(self) -> Estimate:
        """Return the accuracy without an attack."""
        return bootstrap_mean(self._clean_right())

    def accuracy(self, attack: str, eps: float) -> Estimate:
        """Return the accuracy under one attack, on the images that it was run on."""
        return bootstrap_mean(self._right(attack, eps))

    def worst(self, eps: float) -> Estimate:
        """Return the robust accuracy: the share of images that no attack of this or a smaller budget fooled."""
        return bootstrap_mean(self._worst_right(eps))

    def corrupted_accuracy(self) -> float | None:
        """Return the mean accuracy over corruptions and severities; None if there were none."""
        values = [value for by_severity in self.corruptions.values() for value in by_severity]
        return sum(values) / len(values) if values else None

    def differences(self, other: "Robustness") -> tuple[Difference, ...]:
        """Return this model's accuracies minus the other's on the same images: clean, under each attack, and worst."""
        if self.labels != other.labels or self.settings.get("images") != other.settings.get("images"):
            raise InputError("the two evaluations are of different images; evaluate both models on the same ones")
        pairs = [("clean", 0.0, self._clean_right(), other._clean_right())]
        for eps in self.budgets:
            if eps not in other.budgets:
                continue
            for name, title in self.attacks.items():
                if name in other.attacks:
                    pairs.append((title, eps, self._right(name, eps), other._right(name, eps)))
            pairs.append(("worst", eps, self._worst_right(eps), other._worst_right(eps)))
        return tuple(
            Difference(measure=measure, eps=eps, estimate=bootstrap_mean(own - others, limits=(-1.0, 1.0)))
            for measure, eps, own, others in pairs
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as attack.json has them."""
        return {
            "model": self.model, "data": self.data, "suite": self.suite, "protocol": self.protocol,
            "clean": _plain(self.clean_accuracy()),
            "budgets": [
                {
                    "eps": eps, "eps_text": budget_text(eps), "worst": _plain(self.worst(eps)),
                    "attacks": {name: _plain(self.accuracy(name, eps)) for name in self.attacks},
                }
                for eps in self.budgets
            ],
            "corruptions": {name: list(values) for name, values in self.corruptions.items()},
            "sanity": [{"name": x.name, "status": x.status, "text": x.text} for x in self.sanity],
            "notes": list(self.notes), "settings": dict(self.settings), "labels": list(self.labels),
            "predictions": {
                "clean": list(self.clean),
                **{f"{r.attack} {budget_text(r.eps)}": list(r.predicted) for r in self.results},
            },
        }  # fmt: skip

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Robustness":
        """Return the record that `to_dict` wrote, without examples. Raise InputError for anything else."""
        try:
            budgets = tuple(float(entry["eps"]) for entry in stored["budgets"])
            predictions = stored["predictions"]
            results = [
                AttackResult(
                    attack=name, title=settings["title"], eps=eps, largest_change=0.0,
                    predicted=tuple(predictions[f"{name} {budget_text(eps)}"]),
                )
                for eps in budgets for name, settings in stored["settings"]["attacks"].items()
            ]  # fmt: skip
            return cls(
                model=stored["model"], data=stored["data"], suite=stored["suite"], protocol=stored["protocol"],
                budgets=budgets, labels=tuple(stored["labels"]), clean=tuple(predictions["clean"]),
                results=tuple(results), sanity=tuple(SanityLine(**line) for line in stored["sanity"]),
                corruptions={name: tuple(values) for name, values in stored["corruptions"].items()},
                notes=tuple(stored["notes"]), settings=stored["settings"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not the record of an attack: {error!r}") from None

    def to_pandas(self) -> Any:
        """Return the accuracies as a pandas DataFrame: a row for each attack and budget, clean and worst."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError("to_pandas needs pandas; install it with: pip install 'clearhead[tables]'") from None
        rows = [("clean", 0.0, self.clean_accuracy())]
        for eps in self.budgets:
            rows += [(name, eps, self.accuracy(name, eps)) for name in self.attacks]
            rows.append(("worst", eps, self.worst(eps)))
        return pandas.DataFrame(
            {
                "attack": name, "eps": eps, "accuracy": estimate.value, "low": estimate.interval.low,
                "high": estimate.interval.high, "images": estimate.images,
            }
            for name, eps, estimate in rows
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Robustness(model={self.model!r}, data={self.data!r}, suite={self.suite!r}, images={len(self.labels)})"

    def __str__(self) -> str:
        """Return the accuracies and the sanity lines."""
        return str(import_module("clearhead.report.attack_text").attack_text(self))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return str(import_module("clearhead.report.attack_text").attack_html(self))

    def _clean_right(self) -> Int[Tensor, "n"]:
        return (torch.tensor(self.clean) == torch.tensor(self.labels)).long()

    def _right(self, attack: str, eps: float) -> Int[Tensor, "m"]:
        found = [result for result in self.results if result.attack == attack and result.eps == eps]
        if not found:
            known = ", ".join(f"{r.attack} {budget_text(r.eps)}" for r in self.results)
            raise InputError(f"the record has no {attack} at {budget_text(eps)}; it has {known}")
        predicted = torch.tensor(found[0].predicted, dtype=torch.long)
        return (predicted == torch.tensor(self.labels[: len(predicted)], dtype=torch.long)).long()

    def _worst_right(self, eps: float) -> Int[Tensor, "n"]:
        right = self._clean_right()
        for result in self.results:
            if result.eps <= eps:
                reached = self._right(result.attack, result.eps)
                right[: len(reached)] &= reached
        return right


def bootstrap_mean(values: Int[Tensor, "n"], *, limits: tuple[float, float] = (0.0, 1.0), seed: int = 0) -> Estimate:
    """Return the mean of a number for each image, with the interval of means over images drawn with replacement.

    limits: the lowest and the highest number that an image can have

    If all images have the same number, every draw has it too. The interval then has the width of Wilson's for a share
    of zero.
    """
    count = len(values)
    if not count:
        raise InputError("there are no images to average over")
    numbers = values.double().numpy()
    mean = float(numbers.mean())
    if numbers.min() == numbers.max():
        width = wilson_interval(0, count).high
        low, high = max(mean - width, limits[0]), min(mean + width, limits[1])
    else:
        levels, counts = np.unique(numbers, return_counts=True)
        drawn = np.random.default_rng(seed).multinomial(count, counts / count, size=DRAWS) @ levels / count
        low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value=mean, interval=Interval(low=float(low), high=float(high)), images=count)


def budget_text(eps: float) -> str:
    """Return a budget as people write it: 8/255, 0.5/255, or a decimal number that is no such fraction."""
    levels = Fraction(eps * 255).limit_denominator(4)
    if abs(float(levels) / 255 - eps) > 1e-9 or levels == 0 or (levels.denominator > 1 and levels > 8):
        return f"{eps:.4g}"
    return f"{float(levels):g}/255"


def _plain(estimate: Estimate) -> dict[str, float | int]:
    return {
        "accuracy": estimate.value, "low": estimate.interval.low, "high": estimate.interval.high,
        "images": estimate.images,
    }  # fmt: skip

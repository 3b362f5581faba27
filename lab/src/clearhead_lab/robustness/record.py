"""The record of an evaluation: what every attack did to every image, with intervals and sanity lines."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any, TypedDict

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.records import read_record
from clearhead.rendering import render
from clearhead.shapes import Int
from clearhead_lab.robustness.metrics import CALIBRATION_BINS, CorruptionErrors, mean_corruption_error
from clearhead_lab.robustness.results import (
    AttackResult,
    CorruptionComparison,
    Detection,
    Difference,
    Estimate,
    Example,
    SanityLine,
    bootstrap_mean,
    budget_text,
)

__all__ = ["Robustness"]

DEFINITIONS = {
    "calibration_error": "expected calibration error of the clean predictions: the gap between accuracy and mean "
    f"confidence (highest softmax probability) in {CALIBRATION_BINS} bins of equal width, weighted by their images",
    "detection": "area under the precision-recall curve (average precision) of detecting images of other classes by "
    "their low highest softmax probability; chance is that of random scores",
    "mean_corruption_error": "mean over corruptions of 100 times the errors, summed over severities 1 to 5, over those "
    "of the baseline: 100 for as many errors as the baseline",
}
"""What the numbers of the same names in attack.json are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """The accuracy of a classifier without and under attacks.

    labels, clean: the labels, and the predictions for the images as they are
    results: one for each attack and budget
    corruptions: the accuracy by corruption, at severities 1 to 5
    calibration_error: of the clean predictions; None in records of earlier versions
    detection: of images of other classes, if some were given
    corruption_comparison: the mean corruption error against a baseline, if one was given
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
    calibration_error: float | None = None
    detection: Detection | None = None
    corruption_comparison: CorruptionComparison | None = None
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
        self._require_same_images(other)
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

    def corruption_errors(self, baseline: "Robustness") -> CorruptionErrors:
        """Return the mean corruption error in percent of the baseline's, on the same images and corruptions."""
        self._require_same_images(baseline)
        for record in (self, baseline):
            if not record.corruptions:
                raise InputError(f"{record.model} has no corruptions: attack it with the suite standard or full")
        if self.corruptions.keys() != baseline.corruptions.keys():
            raise InputError(
                f"the corruptions differ, those of the suite {self.suite} and, for {baseline.model}, {baseline.suite}: "
                "attack both with the same suite"
            )
        own, others = (
            {name: [1 - accuracy for accuracy in values] for name, values in record.corruptions.items()}
            for record in (self, baseline)
        )
        return mean_corruption_error(own, others)

    def with_baseline(self, baseline: "Robustness") -> "Robustness":
        """Return the record with its mean corruption error against a baseline, or the reason why there is none.

        Without corruptions in either record, it is the same record.
        """
        self._require_same_images(baseline)
        if not self.corruptions and not baseline.corruptions:
            return self
        try:
            errors = self.corruption_errors(baseline)
        except InputError as error:
            compared = CorruptionComparison(baseline=baseline.model, reason=str(error))
        else:
            compared = CorruptionComparison(
                baseline=baseline.model, mean=errors.mean, by_corruption=errors.by_corruption
            )
        return replace(self, corruption_comparison=compared)

    def _require_same_images(self, other: "Robustness") -> None:
        if self.labels != other.labels or self.settings.get("images") != other.settings.get("images"):
            raise InputError("the two evaluations are of different images; evaluate both models on the same ones")

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
            "calibration_error": self.calibration_error,
            "detection": None if self.detection is None else asdict(self.detection),
            "mean_corruption_error": None if self.corruption_comparison is None else asdict(self.corruption_comparison),
            "definitions": DEFINITIONS,
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
        added = {"calibration_error": None, "detection": None, "mean_corruption_error": None}  # by later versions
        remedy = "attack the model again"
        read = read_record(_Stored, {**added, **stored}, "the record of an attack", remedy=remedy)
        budgets, predictions = tuple(entry["eps"] for entry in read["budgets"]), read["predictions"]
        attacks = read["settings"]["attacks"]
        wanted = {"clean", *(f"{name} {budget_text(eps)}" for eps in budgets for name in attacks)}
        if missing := sorted(wanted - predictions.keys()):
            raise InputError(f"the record of an attack has no predictions {missing[0]}; {remedy}")
        images = len(read["labels"])
        if not images or len(predictions["clean"]) != images or any(len(p) > images for p in predictions.values()):
            raise InputError(f"the record of an attack has other numbers of labels and predictions; {remedy}")
        results = [
            AttackResult(
                attack=name, title=settings["title"], eps=eps, largest_change=0.0,
                predicted=predictions[f"{name} {budget_text(eps)}"],
            )
            for eps in budgets for name, settings in attacks.items()
        ]  # fmt: skip
        return cls(
            model=read["model"], data=read["data"], suite=read["suite"], protocol=read["protocol"],
            budgets=budgets, labels=read["labels"], clean=predictions["clean"],
            results=tuple(results), sanity=read["sanity"], corruptions=read["corruptions"],
            calibration_error=read["calibration_error"], detection=read["detection"],
            corruption_comparison=read["mean_corruption_error"], notes=read["notes"], settings=stored["settings"],
        )  # fmt: skip

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
        return str(render(self, "text"))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return str(render(self, "html"))

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


class _Budget(TypedDict):
    eps: float


class _Attack(TypedDict):
    title: str


class _Settings(TypedDict):
    attacks: dict[str, _Attack]


class _Stored(TypedDict):
    """The keys of attack.json that `Robustness.from_dict` reads."""

    model: str
    data: str
    suite: str
    protocol: str
    budgets: list[_Budget]
    labels: tuple[int, ...]
    predictions: dict[str, tuple[int, ...]]
    corruptions: dict[str, tuple[float, ...]]
    calibration_error: float | None
    detection: Detection | None
    mean_corruption_error: CorruptionComparison | None
    sanity: tuple[SanityLine, ...]
    notes: tuple[str, ...]
    settings: _Settings


def _plain(estimate: Estimate) -> dict[str, float | int]:
    return {
        "accuracy": estimate.value, "low": estimate.interval.low, "high": estimate.interval.high,
        "images": estimate.images,
    }  # fmt: skip

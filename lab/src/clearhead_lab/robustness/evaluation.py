"""Evaluate an image classifier under attacks: every attack, budget and image, with sanity lines.

Budgets are in pixels from 0 to 1. Robust accuracy is the worst over all attacks. With the protocol "paper", attacks are
those of Teo and Nguyen 2024 (arXiv 2406.13762) on normalised inputs: nothing is clipped, labels are the model's own
predictions, and PGD takes 20 steps of .15 eps.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from clearhead import __version__
from clearhead.errors import InputError
from clearhead.shapes import Float, Int
from clearhead.storage import tensor_fingerprint
from clearhead_lab.robustness.classifier import PixelClassifier, evaluated, optimises_in_forward, pixel_classifier
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import AttackResult, SanityLine, budget_text
from clearhead_lab.robustness.sanity import CHECKS, Evidence
from clearhead_lab.robustness.suites import SUITES, Attack, Protocol, SuiteName, select_attacks
from clearhead_lab.robustness.task import (
    CORRUPTED_AT_ONCE,
    Task,
    check_other_images,
    clean_predictions,
    corrupted_accuracies,
    detect_other_images,
    make_examples,
)

__all__ = ["attack"]

Progress = Callable[[str, int, int], None]
CHECKED = 100
"""Images of the sanity checks."""
WRONG = -1
"""The prediction of an image that was misclassified before any attack."""


def _no_progress(what: str, done: int, total: int) -> None:
    pass


def _no_notice(line: str) -> None:
    pass


def attack(
    model: nn.Module | PixelClassifier,
    images: Float[Tensor, "n c y x"],
    labels: Int[Tensor, "n"],
    *,
    eps: float | Sequence[float] = 8 / 255,
    suite: SuiteName = "fast",
    attacks: Sequence[str | Attack] = (),
    protocol: Protocol = "pixels",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    twin: nn.Module | PixelClassifier | None = None,
    batch_size: int = 100,
    seed: int = 0,
    ood: Float[Tensor, "m c y x"] | None = None,
    name: str = "",
    data: str = "",
    ood_data: str = "",
    folder: Path | None = None,
    progress: Progress = _no_progress,
    notice: Callable[[str], None] = _no_notice,
) -> Robustness:
    """Attack a classifier and return its accuracy under every attack and budget, with sanity lines.

    images: pixels from 0 to 1, before any normalisation
    eps: the largest change of a pixel, or several
    suite, attacks: "fast", "standard" or "full"; or the names of attacks, with the settings of the suite, and attacks
        of your own, each an `Attack`
    mean, std: by channel, of the normalisation that the model expects; by default what the model says of itself
    twin: a model with softmax attention for the same classes; its images are tried on the model too
    batch_size: images that a model gets at once, which bounds the memory
    ood: images of other classes, whose detection by low confidence is measured
    name, data, ood_data: of the model and the images, for the record
    folder: keeps finished batches, so that an interrupted evaluation continues

    The model is evaluated in evaluation mode on its own device, and gets its mode and gradients back.
    """
    classifier = pixel_classifier(model, mean=mean, std=std).in_batches(batch_size)
    budgets = tuple(sorted({float(e) for e in (eps if isinstance(eps, Sequence) else (eps,))}))
    chosen = select_attacks(suite, attacks, protocol=protocol)
    _check(images, labels, budgets, batch_size)
    if ood is not None:
        check_other_images(ood, images)
    of_twin = None if twin is None else pixel_classifier(twin)
    training = classifier.model.training
    with evaluated(classifier), evaluated(of_twin):
        device = next((p.device for p in classifier.model.parameters()), torch.device("cpu"))
        images, labels = images.to(device), labels.to(device).long()
        task = Task(
            classifier=classifier, images=images, labels=labels, batch_size=batch_size, seed=seed, protocol=protocol,
            folder=folder, notice=notice, twin=of_twin, training=training, ood=ood, ood_data=ood_data,
        )  # fmt: skip
        return _evaluate(task, chosen, budgets, suite=suite, name=name or _name(model), data=data, progress=progress)


def _evaluate(
    task: Task, attacks: Mapping[str, Attack], budgets: Sequence[float], *, suite: SuiteName, name: str, data: str,
    progress: Progress,
) -> Robustness:  # fmt: skip
    corrupted = SUITES[suite].corruptions if task.protocol == "pixels" else "none"
    batches = {n: sum(1 for _ in task.batches(attack.most)) for n, attack in attacks.items()}
    total = len(budgets) * sum(batches.values()) + len(CHECKS) + (corrupted != "none")
    progress("clean", 0, total)
    predictions = clean_predictions(task)
    clean = predictions.predicted
    detection = None if task.ood is None else detect_other_images(task, predictions, task.ood)
    weights = tensor_fingerprint(task.classifier.model.state_dict().values(), source=str(task.classifier.normalisation))
    pictures = tensor_fingerprint([task.images, task.labels])
    key = {
        "version": __version__, "torch": torch.__version__, "weights": weights, "images": pictures, "seed": task.seed,
        "batch_size": task.batch_size, "protocol": task.protocol,
        # Models with the same weights can have different operators.
        "predictions": tensor_fingerprint([clean]), "scores": f"{predictions.level:.4g}",
    }  # fmt: skip
    results, done = [], 0
    for eps in budgets:
        for attack_name, method in attacks.items():
            predicted: list[int] = []
            largest = 0.0
            for start, images, labels in task.batches(method.most):
                progress(f"{method.title} at {budget_text(eps)}", done, total)
                part = task.part(
                    f"{attack_name}-{eps:.6g}-{start}",
                    {**key, "attack": method.title, "settings": dict(method.settings), "eps": eps, "most": method.most},
                    functools.partial(
                        _attack_batch, task, method, images, labels, clean[start : start + len(images)], eps,
                        task.generator(attack_name, eps, start),
                    ),
                    kind=_Part,
                )  # fmt: skip
                if len(part["predicted"]) != len(images):
                    raise InputError(f"a part in {task.folder} is of other images; delete the folder")
                predicted += part["predicted"]
                largest = max(largest, part["largest_change"])
                done += 1
            results.append(
                AttackResult(
                    attack=attack_name, title=method.title, eps=eps, predicted=tuple(predicted), largest_change=largest
                )
            )
    record = Robustness(
        model=name, data=data, suite=suite, protocol=task.protocol, budgets=tuple(budgets),
        labels=tuple(task.labels.tolist()), clean=tuple(clean.tolist()), results=tuple(results),
        calibration_error=predictions.calibration_error(task.labels), detection=detection,
        settings={
            **key, "normalisation": task.classifier.normalisation,
            "attacks": {n: {"title": a.title, "access": a.access, **a.settings} for n, a in attacks.items()},
        },
    )  # fmt: skip
    sanity: list[SanityLine] = []
    evidence = _evidence(task, attacks, record, clean)
    for check in CHECKS if evidence is not None else ():
        progress("sanity checks", done, total)
        assert evidence is not None
        lines = task.part(
            f"sanity-{check.__name__}",
            {**key, "eps": evidence.eps, "results": _digest(results), "twin": _twin_key(task.twin)},
            functools.partial(_as_plain, check, evidence),
            kind=SanityLine,
        )
        sanity.append(SanityLine(**lines))
        done += 1
    corruptions: Mapping[str, tuple[float, ...]] = {}
    if corrupted != "none":
        progress("corruptions", done, total)
        stored = task.part(
            "corruptions", {**key, "corruptions": corrupted, "corrupted at once": CORRUPTED_AT_ONCE},
            lambda: corrupted_accuracies(task, corrupted),
            kind=dict[str, tuple[float, ...]],
        )  # fmt: skip
        corruptions = {kind: tuple(values) for kind, values in stored.items()}
    examples, example_attack = make_examples(task, clean, budgets[-1])
    progress("done", total, total)
    return dataclasses.replace(
        record, sanity=tuple(sanity), corruptions=corruptions, examples=examples, example_attack=example_attack,
        notes=_notes(task, evidence is None),
    )  # fmt: skip


class _Part(TypedDict):
    """What an attack did to a batch."""

    predicted: list[int]
    largest_change: float


def _attack_batch(
    task: Task, method: Attack, images: Tensor, labels: Tensor, clean: Tensor, eps: float, generator: torch.Generator
) -> dict[str, Any]:
    """Return the predictions after an attack. In pixels, an image that was misclassified without it is not attacked."""
    if task.protocol == "paper":
        spread = task.classifier.spread.to(images)

        def scores(inputs: Tensor) -> Tensor:
            return task.classifier(inputs * spread)

        inputs = images / spread
        attacked = method(scores, inputs, clean, eps=eps, bounds=None, generator=generator)
        with torch.no_grad():
            predicted = scores(attacked).argmax(dim=-1)
        return {"predicted": predicted.tolist(), "largest_change": float((attacked - inputs).abs().max())}
    right = clean == labels
    predicted = torch.full_like(labels, WRONG)
    largest = 0.0
    if bool(right.any()):
        attacked = method(task.classifier, images[right], labels[right], eps=eps, generator=generator)
        largest = float((attacked - images[right]).abs().max())
        if not largest <= eps + 1e-6 or not bool(((attacked >= 0) & (attacked <= 1)).all()):
            raise InputError(f"{method.title} left its budget {eps} or the pixels from 0 to 1: a change of {largest}")
        predicted[right] = task.classifier.predict(attacked)
    return {"predicted": predicted.tolist(), "largest_change": largest}


def _evidence(task: Task, attacks: Mapping[str, Attack], record: Robustness, clean: Tensor) -> Evidence | None:
    """Return what the sanity checks use; None in the protocol of the paper, and if no image is classified correctly.

    The budget is the one whose robust accuracy is nearest to half of the clean one: where all images or none survive,
    attacks cannot be compared.
    """
    right = (clean == task.labels).nonzero()[:CHECKED, 0]
    if task.protocol == "paper" or not len(right):
        return None
    half = record.clean_accuracy().value / 2
    eps = min(record.budgets, key=lambda budget: abs(record.worst(budget).value - half))
    return Evidence(
        classifier=task.classifier, images=task.images[right], labels=task.labels[right], eps=eps,
        attacks=dict(attacks), results=record.results, all_labels=task.labels, batch_size=task.batch_size,
        seed=task.seed, twin=task.twin,
    )  # fmt: skip


def _as_plain(check: Callable[[Evidence], SanityLine], evidence: Evidence) -> dict[str, str]:
    line = check(evidence)
    return {"name": line.name, "status": line.status, "text": line.text}


def _notes(task: Task, unchecked: bool) -> tuple[str, ...]:
    notes = []
    if task.training:
        notes.append("The model was in training mode. It was evaluated in evaluation mode, and has its mode back.")
    if optimises_in_forward(task.classifier.model):
        notes.append(
            "The forward pass runs an optimisation loop. RobustBench does not admit such models: their gradients can "
            "mislead an attack."
        )
    if task.protocol == "paper":
        spread = float(task.classifier.spread.mean())
        notes.append(
            f"Protocol of the paper: budgets are in normalised inputs, so that a nominal 1/255 is {spread:.3g}/255 in "
            "pixels; nothing is clipped, and labels are the model's own predictions. There are no sanity lines."
        )
    elif unchecked:
        notes.append("No image is classified correctly, so that there is nothing to attack and no sanity line.")
    if task.classifier.normalisation == "none":
        notes.append("The model gets pixels from 0 to 1. If it expects normalised inputs, pass its mean and std.")
    return tuple(notes)


def _check(images: Tensor, labels: Tensor, budgets: Sequence[float], batch_size: int) -> None:
    if batch_size < 1:
        raise InputError(f"expected a batch_size of at least 1; got {batch_size}")
    if not budgets or not all(0 <= eps <= 1 and math.isfinite(eps) for eps in budgets):
        raise InputError(
            f"expected budgets eps from 0 to 1, such as 8/255; got {', '.join(map(str, budgets)) or 'none'}"
        )
    if images.ndim != 4 or not images.is_floating_point() or not len(images):
        raise InputError(
            f"expected images (n, c, y, x) of floats from 0 to 1; got {tuple(images.shape)} of {images.dtype}"
        )
    lowest, highest = (float(x) for x in images.aminmax())
    if not (lowest >= 0 and highest <= 1):
        raise InputError(
            f"expected pixels from 0 to 1; got {lowest:.3g} to {highest:.3g}: pass images "
            "that are not normalised, and the normalisation as mean and std"
        )
    if labels.shape != images.shape[:1] or labels.is_floating_point():
        raise InputError(f"expected {len(images)} integer labels; got {tuple(labels.shape)} of {labels.dtype}")


def _name(model: nn.Module | PixelClassifier) -> str:
    return type(model.model if isinstance(model, PixelClassifier) else model).__name__


def _twin_key(twin: PixelClassifier | None) -> str:
    return "" if twin is None else tensor_fingerprint(twin.model.state_dict().values())


def _digest(results: Sequence[AttackResult]) -> str:
    return hashlib.sha256(repr(results).encode()).hexdigest()

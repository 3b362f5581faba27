"""`clearhead attack`: read the model and the images, attack, write the page and the JSON, print the table."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.cli.console import ProgressBar, printing
from clearhead.cli.failure import CommandError, RunInterruptedError, TerminatedError
from clearhead.cli.models import load_named_model
from clearhead.errors import InputError
from clearhead.loading.model import LoadedModel
from clearhead.report.wording import clean
from clearhead.storage import lock_folder, parse_json, read_bytes
from clearhead.stored_json import read_json, write_json, write_text
from clearhead_lab.data.augmentation import Augmentation, image_transform
from clearhead_lab.data.batches import all_samples
from clearhead_lab.data.image_sets import digits, read_images
from clearhead_lab.robustness.attack_page import render_attack
from clearhead_lab.robustness.attack_text import print_attack, print_differences
from clearhead_lab.robustness.classifier import PixelClassifier, pixel_classifier
from clearhead_lab.robustness.evaluation import attack
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import Difference
from clearhead_lab.robustness.suites import Protocol, SuiteName
from clearhead_lab.training.run import open_held_out

PAGE, RESULT = "index.html", "attack.json"
PROCESSOR_FILE, MAX_PROCESSOR = "preprocessor_config.json", 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRequest:
    """The options of the command."""

    model: str
    data: Path | None
    eps: tuple[str, ...]
    suite: SuiteName
    attacks: tuple[str, ...]
    inputs: int
    twin: str | None
    against: Path | None
    ood: Path | None
    protocol: Protocol
    mean: str | None
    std: str | None
    batch_size: int
    seed: int
    out: Path


def run_attack(request: AttackRequest, bar: ProgressBar) -> tuple[Robustness, Sequence[Difference]]:
    """Attack the model and write the results. Return the record, and the differences from `against`."""
    budgets = [parse_budget(text) for text in request.eps]
    if any(path.exists() and not path.is_dir() for path in (request.out, *request.out.parents)):
        raise CommandError(f"{request.out} is a file or inside a file; choose a folder with --out")
    other = None if request.against is None else _read_record(request.against)
    bar.update("loading the model", 0, None)
    loaded = load_named_model(request.model, max_tokens=1, classifier=True)
    classifier = _classifier(loaded, request.mean, request.std)
    twin = None
    if request.twin is not None:
        twin = _classifier(load_named_model(request.twin, max_tokens=1, classifier=True), None, None)
    bar.update("reading the images", 0, None)
    images, labels, data = _read_data(request.data, loaded.model, request.inputs)
    ood, ood_data = None, ""
    if request.ood is not None:
        ood, _, ood_data = _read_data(request.ood, loaded.model, request.inputs)
    request.out.mkdir(parents=True, exist_ok=True)
    with lock_folder(request.out):
        try:
            record = attack(
                classifier, images, labels, eps=budgets, suite=request.suite, attacks=request.attacks,
                protocol=request.protocol, twin=twin, batch_size=request.batch_size, seed=request.seed, ood=ood,
                name=loaded.name, data=data, ood_data=ood_data, folder=request.out, progress=bar.update,
                notice=bar.notice,
            )  # fmt: skip
        except (KeyboardInterrupt, TerminatedError) as signal:
            raise RunInterruptedError(f"the same command continues from {request.out}", signal) from None
        differences = () if other is None else record.differences(other)
        record = record if other is None else record.with_baseline(other)
        write_json(request.out / RESULT, record.to_dict())
        write_text(request.out / PAGE, render_attack(record))
    return record, differences


def print_record(
    record: Robustness, differences: Sequence[Difference], request: AttackRequest, *, as_json: bool
) -> None:
    """Print the record as a table or as JSON, and the files."""
    with printing() as console:
        if as_json:
            plain = record.to_dict()
            if request.against is not None:
                plain["differences"] = [
                    {
                        "measure": d.measure, "eps": d.eps, "difference": d.estimate.value,
                        "low": d.estimate.interval.low, "high": d.estimate.interval.high,
                    }
                    for d in differences
                ]  # fmt: skip
            console.print(json.dumps(plain, indent=1), soft_wrap=True, highlight=False, markup=False, emoji=False)
            return
        print_attack(record, console)
        if request.against is not None:
            print_differences(differences, console, other=clean(request.against.name))
        for name in (PAGE, RESULT):
            console.print(clean(str(request.out / name)), style="bold", soft_wrap=True, highlight=False, markup=False)


def parse_budget(text: str) -> float:
    """Return the budget of a text such as 8/255 or 0.03. Raise CommandError for anything else."""
    try:
        top, slash, bottom = text.partition("/")
        value = float(top) / (float(bottom) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        raise CommandError(f"--eps is {clean(text)!r}; give a number such as 8/255 or 0.03") from None
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise CommandError(f"--eps is {clean(text)}; budgets are from 0 to 1, in pixels, such as 8/255")
    return value


def _classifier(loaded: LoadedModel, mean: str | None, std: str | None) -> PixelClassifier:
    """Return the model with its normalisation: the given one, that of the folder's image processor, or its own."""
    numbers = {name: _numbers(name, text) for name, text in (("mean", mean), ("std", std)) if text is not None}
    if not numbers and loaded.folder is not None and (loaded.folder / PROCESSOR_FILE).is_file():
        path = loaded.folder / PROCESSOR_FILE
        stored = parse_json(read_bytes(path, max_bytes=MAX_PROCESSOR), path)
        if isinstance(stored, dict) and stored.get("do_normalize", True):
            numbers = {
                name: stored[key]
                for name, key in (("mean", "image_mean"), ("std", "image_std"))
                if _is_numbers(stored.get(key))
            }
    return pixel_classifier(loaded.model, **numbers)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(x) in (int, float) for x in value)


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(f"--{name} is {clean(text)!r}; give numbers such as .485,.456,.406") from None


def _read_data(data: Path | None, model: nn.Module, count: int) -> tuple[Tensor, Tensor, str]:
    """Return the first test images as pixels from 0 to 1, their labels, and the name of the data."""
    if data is None:
        raise CommandError("name test images with --data: CIFAR-10, IDX, an .npz file, folders of images, or digits")
    if str(data) == "digits":
        stored = digits()
    else:
        try:
            stored = read_images(data)
        except InputError as error:
            if not data.exists() or data.suffix == ".npz":
                raise
            return _read_samples(data, model, count, error)
    return stored.test_images[:count].float() / 255, stored.test_labels[:count], stored.name


def _read_samples(data: Path, model: nn.Module, count: int, unread: InputError) -> tuple[Tensor, Tensor, str]:
    """Return the same from files that are decoded one by one, resized to the images of the model."""
    size = _image_size(model)
    try:
        samples = open_held_out(data, target="label")
    except InputError as error:
        raise InputError(f"{error}; {unread}") from None
    if size is None:
        raise CommandError("the model does not say the size of its images; give --data as an .npz file of that size")
    images, labels = [], []
    transform = image_transform(Augmentation(test_crop=0.875), size, train=False)
    for batch, of_batch in all_samples(samples, batch_size=min(count, 100), transform=transform):
        images.append(batch)
        labels.append(of_batch)
        if sum(map(len, images)) >= count:
            break
    return torch.cat(images)[:count].clamp(0, 1), torch.cat(labels)[:count], data.name


def _image_size(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    size: Any = getattr(config, "image_size", None)
    if size is None:
        stored = getattr(model, "pretrained_cfg", None)
        size = stored.get("input_size", (None,))[-1] if isinstance(stored, dict) else None
    return size if isinstance(size, int) else None


def _read_record(folder: Path) -> Robustness:
    try:
        return Robustness.from_dict(read_json(folder / RESULT))
    except FileNotFoundError:
        raise CommandError(f"{folder} has no {RESULT}; give the --out folder of another attack") from None
